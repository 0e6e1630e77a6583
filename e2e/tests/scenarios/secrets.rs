//! Tests that no credential leaks: a driver puts its credentials into every error, and the test searches all
//! output of csi-attacher at every log level and in both log formats, in traces, statuses, Events and HTTP
//! pages. Before that, an attach and a detach show the other content of their traces. The log at the default level is readable.

mod collector;
mod leaky_driver;
mod log;
mod page;
mod trace;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use anyhow::{Context, Result, ensure};
use csi_e2e::attacher::Kind;
use csi_e2e::fixture::{self, VolumeSource, mk_attachment, mk_claim, mk_csi_node, mk_meta, mk_node};
use csi_e2e::invariant::watch_recorder::WatchRecorder;
use csi_e2e::objects;
use csi_e2e::process::{Process, Spec, free_address};
use csi_e2e::scenario::TestContext;
use csi_e2e::wait::{self, Progress};
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::Api;
use kube::api::ListParams;
use libtest_mimic::Trial;
use verdict::Missing;

use self::collector::Collector;
use self::leaky_driver::{Credentials, LeakyDriver};
use crate::shared_cluster::{Access, SharedCluster};
use crate::unless;

const PREFIX: &str = "ours-secrets";
const DRIVER: &str = "ours-secrets.csi.local";
const NODE: &str = "ours-secrets-node";
const VOLUME: &str = "ours-secrets-volume";
const ACCOUNT: &str = "csi-attacher";
/// Replacement of a credential.
const STRIPPED: &str = "***stripped***";
/// Timeout of an attach with all its failures, on a machine that is busy with other trials.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn trial(shared: &Arc<SharedCluster>, access: Access, missing: Option<Missing>) -> Trial {
    let shared = Arc::clone(shared);
    unless(missing, format!("{access}::secrets::are_nowhere"), move || {
        shared.block_on(are_nowhere(&shared, access))
    })
}

/// Parameters of one run of the attacher.
struct SecretsEnv<'a> {
    ctx: &'a TestContext,
    dir: PathBuf,
    kubeconfig: PathBuf,
    socket: PathBuf,
    collector: Collector,
}

async fn are_nowhere(shared: &SharedCluster, access: Access) -> Result<()> {
    let ctx = shared.context(access).await?;
    let client = ctx.cluster().client();
    let credentials = Credentials::random();
    let dir = ctx.run().new_subdir(PREFIX)?;
    ctx.cluster().create_namespace(PREFIX).await?;
    ctx.cluster()
        .create_attacher_account(PREFIX, ACCOUNT, true)
        .await?;
    let kubeconfig = ctx
        .cluster()
        .service_account_kubeconfig(PREFIX, ACCOUNT, &dir)
        .await?;
    let secret = Secret {
        metadata: mk_meta(PREFIX, "credentials"),
        string_data: Some(credentials.data()),
        ..Secret::default()
    };
    objects::create(&Api::<Secret>::namespaced(client.clone(), PREFIX), &secret).await?;
    let node = mk_node(PREFIX, NODE);
    let node = objects::create(&Api::<Node>::all(client.clone()), &node).await?;
    let csi_node = mk_csi_node(PREFIX, &node, DRIVER, "node-0");
    objects::create(&Api::<CSINode>::all(client.clone()), &csi_node).await?;
    objects::create(&Api::<PersistentVolume>::all(client.clone()), &mk_volume()).await?;

    let recorder = WatchRecorder::start(client.clone(), DRIVER, PREFIX).await?;
    let driver = LeakyDriver::serve(&dir, DRIVER, credentials.clone())?;
    let env = SecretsEnv {
        ctx,
        kubeconfig,
        socket: driver.socket().to_owned(),
        collector: Collector::serve().await?,
        dir,
    };
    let mut texts = attach_and_detach(&env, "text", 1).await?;
    trace::verify(&env.collector.spans()?, &name("text", 1), &driver.contexts())?;
    driver.leak();
    for format in ["text", "json"] {
        for v in [0, 2, 5, 8, 10] {
            texts.extend(attach_and_detach(&env, format, v).await?);
        }
    }
    ensure!(driver.knows(), "the driver never got its credentials");
    for event in recorder.end().await? {
        let text = serde_json::to_string(&event.object)?;
        texts.push(("a VolumeAttachment".to_owned(), text.into_bytes()));
    }
    let events = Api::<Event>::namespaced(client.clone(), "default");
    for event in events.list(&ListParams::default()).await?.items {
        // Fields of an events.k8s.io Event, as of csi-attacher, and of a core Event.
        let source = event.source.as_ref().and_then(|source| source.component.clone());
        let mut reporters = event.reporting_component.iter().chain(&source);
        if reporters.any(|reporter| reporter.ends_with(DRIVER)) {
            texts.push(("an Event".to_owned(), serde_json::to_vec(&event)?));
        }
    }
    texts.push(("the traces".to_owned(), env.collector.seen()));
    verify(&texts, &credentials)?;
    clear(ctx).await
}

/// Names of one run of the attacher, and of its VolumeAttachment.
fn name(format: &str, v: u8) -> String {
    format!("{PREFIX}-{format}-{v}")
}

/// One run of the attacher. Returns its output.
async fn attach_and_detach(env: &SecretsEnv<'_>, format: &str, v: u8) -> Result<Vec<(String, Vec<u8>)>> {
    let name = name(format, v);
    let program = env.ctx.attacher(Kind::Ours).await?;
    let pages = free_address()?;
    let process = Process::spawn(
        env.ctx.run(),
        Spec::new(&name, program).dir(&env.dir).args([
            format!("--kubeconfig={}", env.kubeconfig.display()),
            format!("--csi-address={}", env.socket.display()),
            format!("--otlp-endpoint={}", env.collector.address()),
            format!("--http-endpoint={pages}"),
            format!("--logging-format={format}"),
            format!("-v={v}"),
            "--retry-interval-start=10ms".to_owned(),
            "--retry-interval-max=20ms".to_owned(),
        ]),
    )?;
    let client = env.ctx.cluster().client();
    let attachments = Api::<VolumeAttachment>::all(client);
    let attachment = mk_attachment(PREFIX, &name, DRIVER, VOLUME, NODE);
    let mut texts = Vec::new();
    let turned = process
        .while_alive(page::reading(pages, &mut texts, async {
            objects::create(&attachments, &attachment).await?;
            wait::for_object(&attachments, &name, STEP_TIMEOUT, "the attach", |seen| {
                let status = seen.and_then(|seen| seen.status.as_ref());
                Progress::of(status.is_some_and(|status| status.attached), || {
                    "it is not attached".to_owned()
                })
            })
            .await?;
            objects::delete(&attachments, &name).await?;
            wait::for_absence(&attachments, &name, STEP_TIMEOUT, "the detach").await?;
            // The exporter gives up two seconds after SIGTERM.
            wait::poll(STEP_TIMEOUT, "the trace of the detach", || async {
                let exported = trace::has_root(&env.collector.spans()?, "detach", &name);
                Ok(Progress::of(exported, || "it is not exported".to_owned()))
            })
            .await
        }))
        .await;
    turned.with_context(|| format!("with --logging-format={format} -v={v}"))?;
    let exit = process.stop(STEP_TIMEOUT).await?;
    ensure!(exit.status.success(), "the attacher ended with {}", exit.status);
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("read {}", path.display()));
    let written = read(process.log())?;
    if (format, v) == ("text", 0) {
        log::verify(&String::from_utf8_lossy(&written), &name)?;
    }
    texts.push((format!("the log {name}"), written));
    texts.push((format!("the output {name}"), read(process.stdout())?));
    Ok(texts)
}

fn verify(texts: &[(String, Vec<u8>)], credentials: &Credentials) -> Result<()> {
    // An output without the errors would prove nothing.
    let stripped = AhoCorasick::new([STRIPPED])?;
    for kind in [
        "the log",
        "a VolumeAttachment",
        "an Event",
        "the traces",
        "/statusz",
    ] {
        ensure!(
            texts
                .iter()
                .any(|(source, text)| source.starts_with(kind) && stripped.is_match(text)),
            "{kind} contains none of the driver's errors"
        );
    }
    let parts = credentials.parts();
    let secrets = AhoCorasick::new(parts.iter().map(|(_, part)| part))?;
    for (source, text) in texts {
        if let Some(found) = secrets.find(text) {
            // The value is omitted, because this text goes into a log.
            anyhow::bail!("{source} holds {}", parts[found.pattern()].0);
        }
    }
    Ok(())
}

fn mk_volume() -> PersistentVolume {
    let source = VolumeSource {
        driver: DRIVER.to_owned(),
        handle: "volume-0".to_owned(),
        attributes: std::collections::BTreeMap::new(),
        access: fixture::Access::OneNode,
        publish_secret: Some((PREFIX.to_owned(), "credentials".to_owned())),
    };
    let claim = mk_claim(PREFIX, "none", VOLUME, fixture::Access::OneNode);
    let mut volume = fixture::mk_persistent_volume(PREFIX, VOLUME, &source, &claim);
    // It has no claim.
    if let Some(spec) = &mut volume.spec {
        spec.claim_ref = None;
    }
    volume
}

async fn clear(ctx: &TestContext) -> Result<()> {
    csi_e2e::scenario::test_env::force_cleanup(ctx, PREFIX).await
}
