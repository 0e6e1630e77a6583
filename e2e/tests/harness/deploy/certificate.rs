//! The script for the certificate of snapshot metadata: the address in its SnapshotMetadataService selects the sidecar, and
//! clients trust the certificate.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::cluster::manifest;
use csi_e2e::process::stdout_of;
use csi_e2e::toolchain::workspace_root;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Secret, Service};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::DynamicObject;
use tokio::process::Command;
use verdict::Requirement::Program;

use super::driver::kind;
use super::shape::Shape;
use super::sidecars::METADATA;
use super::{container_of_image, kinds, of_kind, only_namespaces, selects, template};
use crate::Harness;

const OVERLAY: &str = "mock-driver-snapshot-metadata";

trials! { "deploy":
    address_of_snapshot_metadata_selects_the_sidecar,
    certificate_of_snapshot_metadata_is_valid_for_its_address_only,
}

/// Output of the script.
struct Made {
    secret: Secret,
    /// The SnapshotMetadataService.
    service_object: DynamicObject,
}

// === impl Made ===

impl Made {
    /// Runs the script as in the README, in its own directory.
    async fn by_the_script(args: &[&str]) -> Result<(Self, String)> {
        for program in ["bash", "openssl"] {
            Program(program).check()?;
        }
        let script = workspace_root()
            .join("deploy/overlays")
            .join(OVERLAY)
            .join("certificate");
        let yaml = stdout_of(Command::new(script).args(args)).await?;
        let objects = manifest::parse(&yaml)?;
        let secrets = of_kind::<Secret>(&objects, "Secret")?;
        let [secret] = <[Secret; 1]>::try_from(secrets)
            .map_err(|secrets| anyhow::anyhow!("there are {} secrets", secrets.len()))?;
        let mut service_objects = objects.into_iter();
        let service_object = service_objects.find(|object| kind(object) == "SnapshotMetadataService");
        let service_object = service_object.context("there must be a SnapshotMetadataService")?;
        Ok((
            Self {
                secret,
                service_object,
            },
            yaml,
        ))
    }

    fn spec(&self, field: &str) -> Result<&str> {
        let value = self.service_object.data["spec"][field].as_str();
        value.with_context(|| format!("the SnapshotMetadataService must have {field}"))
    }

    fn authority(&self) -> Result<Vec<u8>> {
        let value = self.service_object.data["spec"]["caCert"].clone();
        Ok(serde_json::from_value::<ByteString>(value)?.0)
    }

    fn file(&self, name: &str) -> Result<&[u8]> {
        let data = self.secret.data.as_ref().and_then(|data| data.get(name));
        Ok(&data.with_context(|| format!("the Secret must have {name}"))?.0)
    }

    /// The address without its port.
    fn host(&self) -> Result<&str> {
        let (host, _) = self
            .spec("address")?
            .rsplit_once(':')
            .context("an address must have a port")?;
        Ok(host)
    }
}

/// Address, Service, pod, port and files match.
async fn address_of_snapshot_metadata_selects_the_sidecar(harness: Arc<Harness>) -> Result<()> {
    let (cluster, _shared) = (harness.cluster().await?, harness.control_plane_lock.read().await);
    kinds::install(cluster).await?;
    let yaml = Shape::overlay(OVERLAY).build(&harness).await?;
    let objects = manifest::parse(&yaml)?;
    let (made, printed) = Made::by_the_script(&[]).await?;
    cluster.apply(&only_namespaces(&yaml)?).await?;
    cluster
        .check(&printed)
        .await
        .context("apply the output of the script")?;

    let drivers = of_kind::<CSIDriver>(&objects, "CSIDriver")?;
    ensure!(
        drivers
            .iter()
            .any(|driver| driver.name_any() == made.service_object.name_any()),
        "{} is no driver",
        made.service_object.name_any()
    );
    let services = of_kind::<Service>(&objects, "Service")?;
    let [service] = services.as_slice() else {
        anyhow::bail!("there are {} Services", services.len());
    };
    let spec = service.spec.clone().context("a Service must have a spec")?;
    let [port] = spec.ports.as_deref().unwrap_or_default() else {
        anyhow::bail!("the Service must have one port");
    };
    let namespace = service.namespace().context("a Service must have a namespace")?;
    let address = format!("{}.{namespace}.svc:{}", service.name_any(), port.port);
    ensure!(
        made.spec("address")? == address,
        "the SnapshotMetadataService must have the address {address}, not {}",
        made.spec("address")?
    );

    let deployments = of_kind::<Deployment>(&objects, "Deployment")?;
    let [deployment] = deployments.as_slice() else {
        anyhow::bail!("there are {} Deployments", deployments.len());
    };
    ensure!(
        deployment.namespace() == Some(namespace),
        "Service and Deployment are in two namespaces"
    );
    ensure!(
        deployment.namespace() == made.secret.namespace(),
        "the Secret is in another namespace"
    );
    let template = template(deployment);
    let selector = LabelSelector {
        match_labels: spec.selector,
        ..LabelSelector::default()
    };
    ensure!(selects(&selector, &template), "the Service finds no pod");
    let pod = template.spec.context("a pod template must have a spec")?;
    let container = container_of_image(pod.containers.iter(), METADATA).context("there must be a sidecar")?;
    let args = container.args.clone().unwrap_or_default();
    let target = port.target_port.clone();
    let mut ports = container.ports.iter().flatten();
    let named = ports.find(|port| port.name.clone().map(IntOrString::String) == target);
    let named = named.with_context(|| format!("the sidecar has no port {target:?}"))?;
    ensure!(
        args.contains(&format!("--port={}", named.container_port)),
        "{args:?}"
    );
    for (flag, file) in [("--tls-cert=", "tls.crt"), ("--tls-key=", "tls.key")] {
        let path = args.iter().find_map(|arg| arg.strip_prefix(flag));
        let path = path.with_context(|| format!("the sidecar must have {flag}"))?;
        let files = files_of(&pod, &made.secret.name_any())?;
        ensure!(Path::new(path) == files.join(file), "{path} is not in the Secret");
        made.file(file)?;
    }
    Ok(())
}

/// Mount path of a Secret in the sidecar.
fn files_of(pod: &PodSpec, secret: &str) -> Result<std::path::PathBuf> {
    let mut volumes = pod.volumes.iter().flatten();
    let volume = volumes.find(|volume| {
        let name = volume
            .secret
            .as_ref()
            .and_then(|volume| volume.secret_name.as_deref());
        name == Some(secret)
    });
    let volume = volume.with_context(|| format!("no volume has the Secret {secret}"))?;
    let container = container_of_image(pod.containers.iter(), METADATA).context("there must be a sidecar")?;
    let mut mounts = container.volume_mounts.iter().flatten();
    let mount = mounts.find(|mount| mount.name == volume.name);
    Ok(mount
        .context("the sidecar must have the Secret")?
        .mount_path
        .clone()
        .into())
}

/// Verifies the certificate with openssl as a TLS client does, here and in another namespace.
async fn certificate_of_snapshot_metadata_is_valid_for_its_address_only(harness: Arc<Harness>) -> Result<()> {
    // Maximum length of a DNS label.
    let long = "n".repeat(63);
    for (number, args) in [vec![], vec![long.as_str(), "another-service"]]
        .iter()
        .enumerate()
    {
        let (made, _) = Made::by_the_script(args).await?;
        ensure!(args.is_empty() || made.host()? == format!("another-service.{long}.svc"));
        let dir = harness.run.subdir(&format!("certificate-{number}"))?;
        let (authority, certificate, key) = (dir.join("ca.crt"), dir.join("tls.crt"), dir.join("tls.key"));
        std::fs::write(&authority, made.authority()?)?;
        std::fs::write(&certificate, made.file("tls.crt")?)?;
        std::fs::write(&key, made.file("tls.key")?)?;
        let verify = |host: &str| {
            let mut command = Command::from(verdict::command("openssl"));
            command.args([
                "verify",
                "-x509_strict",
                "-purpose",
                "sslserver",
                "-verify_hostname",
                host,
            ]);
            command.arg("-CAfile").arg(&authority).arg(&certificate);
            command
        };
        stdout_of(&mut verify(made.host()?)).await?;
        let elsewhere = stdout_of(&mut verify("elsewhere.svc")).await;
        ensure!(elsewhere.is_err(), "the certificate is valid for any host");

        let mut x509 = Command::from(verdict::command("openssl"));
        x509.args(["x509", "-noout", "-pubkey", "-in"]).arg(&certificate);
        let mut pkey = Command::from(verdict::command("openssl"));
        pkey.args(["pkey", "-pubout", "-in"]).arg(&key);
        ensure!(
            stdout_of(&mut x509).await? == stdout_of(&mut pkey).await?,
            "the key is of another certificate"
        );
        let keys: BTreeMap<_, _> = made.secret.data.iter().flatten().collect();
        ensure!(
            keys.len() == 2,
            "the Secret holds more than is needed: {:?}",
            keys.keys()
        );
    }
    Ok(())
}
