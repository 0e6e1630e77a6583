//! PersistentVolume specs of all kinds, and the ControllerPublishVolume requests that follow from them.
//!
//! The scenario creates volumes and attachments itself, because the attach/detach controller attaches some of these only for a
//! matching pod.

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::Scenario;
use super::test_env::{A, SECRET, SECRET_KEY, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::driver::journal::{Line, PUBLISH, UNPUBLISH};
use crate::objects;

/// A driver with SINGLE_NODE_MULTI_WRITER and PUBLISH_READONLY.
pub(super) const ALL: Scenario = Scenario::new(
    "volume-shapes",
    "Block and mount volumes, access modes, readonly, secrets, contexts and inline volumes reach the driver as specified.",
    |env| Box::pin(run(env, Driver::Complete)),
)
.with_config(ScenarioConfig {
    node_drivers: false,
    ..ScenarioConfig::ONE_NODE
});

/// A driver with neither capability.
pub(super) const PLAIN: Scenario = Scenario::new(
    "volume-shapes-plain",
    "A driver without SINGLE_NODE_MULTI_WRITER and PUBLISH_READONLY gets only access modes and flags that it supports.",
    |env| Box::pin(run(env, Driver::Plain)),
)
.with_config(ScenarioConfig {
    capabilities: "-SINGLE_NODE_MULTI_WRITER,-PUBLISH_READONLY",
    node_drivers: false,
    ..ScenarioConfig::ONE_NODE
});

#[derive(Clone, Copy, PartialEq, Eq)]
enum Driver {
    Complete,
    Plain,
}

/// A PersistentVolume, and the expected result.
struct Shape {
    name: &'static str,
    /// The PersistentVolume's spec, without the source.
    spec: Value,
    /// Fields of its `csi` source other than driver and handle.
    csi: Value,
    /// Whether the attachment has the spec inline, without a PersistentVolume.
    inline: bool,
    outcome: Outcome,
}

enum Outcome {
    Published(Published),
    /// The attacher sends no call; the attachment's error contains this text.
    Refused(&'static str),
}

/// The fields of the publish request.
struct Published {
    access: Value,
    mode: &'static str,
    readonly: bool,
    secret: bool,
    context: Value,
}

// === shapes ===

impl Shape {
    /// A volume with these access modes and no other fields.
    fn mount(name: &'static str, access_modes: &[&str], mode: &'static str) -> Self {
        Self {
            name,
            spec: json!({ "accessModes": access_modes }),
            csi: json!({}),
            inline: false,
            outcome: Outcome::Published(Published {
                access: json!({"mount": {}}),
                mode,
                readonly: false,
                secret: false,
                context: json!({}),
            }),
        }
    }

    fn refused(name: &'static str, access_modes: &[&str], error: &'static str) -> Self {
        Self {
            outcome: Outcome::Refused(error),
            ..Self::mount(name, access_modes, "")
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Value, &mut Value, &mut Published)) -> Self {
        if let Outcome::Published(published) = &mut self.outcome {
            change(&mut self.spec, &mut self.csi, published);
        }
        self
    }
}

fn shapes(driver: Driver, namespace: &str) -> Vec<Shape> {
    let complete = driver == Driver::Complete;
    let one_node = if complete {
        "SINGLE_NODE_MULTI_WRITER"
    } else {
        "SINGLE_NODE_WRITER"
    };
    let one_pod = if complete {
        "SINGLE_NODE_SINGLE_WRITER"
    } else {
        "SINGLE_NODE_WRITER"
    };
    let many = "MULTI_NODE_MULTI_WRITER";
    let secret = json!({"name": SECRET, "namespace": namespace});
    let mut shapes = vec![
        Shape::mount("rwo", &["ReadWriteOnce"], one_node),
        Shape::mount("rwop", &["ReadWriteOncePod"], one_pod),
        Shape::mount("rox", &["ReadOnlyMany"], "MULTI_NODE_READER_ONLY"),
        Shape::mount("rwx", &["ReadWriteMany"], many),
        Shape::mount("rwx-rwo", &["ReadWriteOnce", "ReadWriteMany"], many),
        Shape::mount("rwx-rox", &["ReadOnlyMany", "ReadWriteMany"], many),
        Shape::refused(
            "rwo-rox",
            &["ReadWriteOnce", "ReadOnlyMany"],
            "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume",
        ),
        Shape::mount("block", &["ReadWriteOnce"], one_node).with(|spec, csi, published| {
            spec["volumeMode"] = "Block".into();
            // Ignored for a block volume.
            csi["fsType"] = "ext4".into();
            published.access = json!({"block": {}});
        }),
        Shape::mount("filesystem", &["ReadWriteOnce"], one_node).with(|spec, csi, published| {
            spec["volumeMode"] = "Filesystem".into();
            spec["mountOptions"] = json!(["noatime", "discard"]);
            csi["fsType"] = "xfs".into();
            published.access = json!({"mount": {"fs_type": "xfs", "mount_flags": ["noatime", "discard"]}});
        }),
        Shape::mount("read-only", &["ReadWriteMany"], many).with(|_, csi, published| {
            csi["readOnly"] = true.into();
            published.readonly = complete;
        }),
        Shape::mount("context", &["ReadWriteOnce"], one_node).with(|_, csi, published| {
            csi["volumeAttributes"] = json!({"tier": "gold", "empty": ""});
            published.context = json!({"tier": "gold", "empty": ""});
        }),
        Shape::mount("secret", &["ReadWriteOnce"], one_node).with(|_, csi, published| {
            csi["controllerPublishSecretRef"] = secret.clone();
            published.secret = true;
        }),
    ];
    let mut lost_secret = Shape::refused("lost-secret", &["ReadWriteOnce"], "failed to load secret");
    lost_secret.csi = json!({"controllerPublishSecretRef": {"name": "lost", "namespace": namespace}});
    shapes.push(lost_secret);

    let inline = |mut shape: Shape| {
        shape.inline = true;
        shape
    };
    shapes.push(inline(Shape::mount("inline", &["ReadWriteOnce"], one_node).with(
        |spec, csi, published| {
            spec["mountOptions"] = json!(["ro"]);
            csi["fsType"] = "ext4".into();
            csi["controllerPublishSecretRef"] = secret.clone();
            csi["volumeAttributes"] = json!({"inline": "yes"});
            published.access = json!({"mount": {"fs_type": "ext4", "mount_flags": ["ro"]}});
            published.secret = true;
            published.context = json!({"inline": "yes"});
        },
    )));
    shapes.push(inline(Shape::refused(
        "inline-rwo-rox",
        &["ReadWriteOnce", "ReadOnlyMany"],
        "CSI does not support ReadOnlyMany and ReadWriteOnce on the same PersistentVolume",
    )));
    shapes
}

// === the scenario ===

async fn run(env: &mut TestEnv<'_>, driver: Driver) -> Result<()> {
    let shapes = shapes(driver, env.prefix());
    let attachments = Api::<VolumeAttachment>::all(env.client());
    let mut made = Vec::new();
    for shape in &shapes {
        let handle = env.unbound_volume(shape.name).await?;
        let mut spec = shape.spec.clone();
        spec["csi"] = shape.csi.clone();
        spec["csi"]["driver"] = env.driver.name().into();
        spec["csi"]["volumeHandle"] = handle.clone().into();
        let name = format!("{}-{}", env.prefix(), shape.name);
        let source = if shape.inline {
            json!({ "inlineVolumeSpec": spec })
        } else {
            env.unbound_persistent_volume(&name, spec).await?;
            json!({ "persistentVolumeName": name })
        };
        let attachment: VolumeAttachment = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"attacher": env.driver.name(), "nodeName": env.node(A).name(), "source": source},
        }))?;
        objects::create(&attachments, &attachment).await?;
        made.push((shape, name, handle));
    }
    for (shape, name, handle) in &made {
        let verified = verify(env, shape, name, handle).await;
        verified.with_context(|| format!("a volume of the shape {}", shape.name))?;
    }
    for (_, name, _) in &made {
        objects::delete(&attachments, name).await?;
    }
    env.wait_until_all_detached(STEP_TIMEOUT).await?;
    for (shape, _, handle) in &made {
        if let Outcome::Published(wanted) = &shape.outcome {
            let request = request(env, UNPUBLISH, handle)?
                .with_context(|| format!("{}: no ControllerUnpublishVolume", shape.name))?;
            has_secrets(&request, wanted.secret).with_context(|| format!("unpublish of {}", shape.name))?;
        }
    }
    Ok(())
}

async fn verify(env: &TestEnv<'_>, shape: &Shape, name: &str, handle: &str) -> Result<()> {
    let attachment = env.wait_until_attached_or_failed(name).await?;
    let status = attachment.status.clone().unwrap_or_default();
    let reported = status.attach_error.and_then(|error| error.message);
    let request = request(env, PUBLISH, handle)?;
    let wanted = match (&shape.outcome, request) {
        (Outcome::Refused(error), None) => {
            ensure!(
                reported.as_ref().is_some_and(|reported| reported.contains(error)),
                "the error is {reported:?} and should hold \"{error}\""
            );
            ensure!(
                attachment.finalizers().is_empty(),
                "nothing was published, but it is held by {:?}",
                attachment.finalizers()
            );
            return Ok(());
        }
        (Outcome::Refused(_), Some(request)) => bail!("the driver was called: {request}"),
        (Outcome::Published(_), None) => bail!("the driver was not called; the error is {reported:?}"),
        (Outcome::Published(wanted), Some(request)) => (wanted, request),
    };
    let (wanted, request) = wanted;
    ensure!(status.attached, "published, but not attached: {reported:?}");
    let mut capability = wanted.access.clone();
    capability["access_mode"] = json!({"mode": wanted.mode});
    ensure!(
        request["volume_capability"] == capability,
        "the capability is {}, should be {capability}",
        request["volume_capability"]
    );
    ensure!(
        request["readonly"].as_bool().unwrap_or_default() == wanted.readonly,
        "readonly is {}",
        request["readonly"]
    );
    let context = request.get("volume_context").cloned().unwrap_or(json!({}));
    ensure!(
        context == wanted.context,
        "the volume context is {context}, should be {}",
        wanted.context
    );
    has_secrets(&request, wanted.secret)?;
    ensure!(
        attachment.finalizers() == [env.finalizer()],
        "the attachment is held by {:?}",
        attachment.finalizers()
    );
    Ok(())
}

/// The latest request of this method about a volume.
fn request(env: &TestEnv<'_>, method: &str, handle: &str) -> Result<Option<Value>> {
    let lines = env.driver.journal().lines()?;
    let mut requests = lines.into_iter().filter_map(|line| match line {
        Line::Begin { method, request, .. } => Some((method, request)),
        Line::End { .. } | Line::Late { .. } | Line::Faults { .. } | Line::Lost { .. } => None,
    });
    let found = requests
        .rfind(|(of, request)| of.ends_with(&format!("/{method}")) && request["volume_id"] == handle)
        .map(|(_, request)| request.into_owned());
    Ok(found)
}

fn has_secrets(request: &Value, wanted: bool) -> Result<()> {
    let keys: Vec<_> = request["secrets"].as_object().into_iter().flatten().collect();
    let right = match keys.as_slice() {
        [] => !wanted,
        [(key, _)] => wanted && *key == SECRET_KEY,
        _ => false,
    };
    ensure!(right, "the secrets are those of {keys:?}");
    Ok(())
}
