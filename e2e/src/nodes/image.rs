//! Images of all pods on real nodes, with the names that `deploy/` and tests use: one OCI image layout, built without a
//! container engine. No image is pulled from a registry.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::real_node::SANDBOX_IMAGE;
use crate::process::stdout_of_blocking;
use crate::toolchain::NodePrograms;

/// Image of the pods in tests.
pub const BUSYBOX: &str = "busybox:1.37";
/// Image of the Go attacher, as its project publishes it.
pub const GO_ATTACHER: &str = "registry.k8s.io/sig-storage/csi-attacher:v4.13.0";
/// Images that recipes of the documents, and csi-driver-host-path's manifests in Kubernetes' tests, need beyond those of the
/// deployed overlay.
pub(super) const RECIPE_IMAGES: [&str; 9] = [
    "registry.k8s.io/sig-storage/csi-snapshotter:v8.7.0",
    "registry.k8s.io/sig-storage/snapshot-controller:v8.6.0",
    "registry.k8s.io/sig-storage/snapshot-controller:v8.7.0",
    "registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.16.0",
    "registry.k8s.io/sig-storage/csi-provisioner:v6.1.1",
    "registry.k8s.io/sig-storage/csi-resizer:v2.1.0",
    "registry.k8s.io/sig-storage/csi-snapshotter:v8.5.0",
    "registry.k8s.io/sig-storage/hostpathplugin:v1.17.1",
    "registry.k8s.io/sig-storage/livenessprobe:v2.18.0",
];

/// Command of an image whose container waits for SIGTERM.
const PAUSE: [&str; 3] = ["/bin/sh", "-c", "trap exit TERM; sleep 1000000000 & wait"];
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// An image layout under construction.
pub(super) struct Layout {
    dir: PathBuf,
    manifests: Vec<Value>,
}

/// A stored blob.
struct Blob {
    digest: String,
    size: u64,
}

// === impl Layout ===

impl Layout {
    /// Builds the images of the objects in `deploy/`, the sandbox image, [`BUSYBOX`] and [`GO_ATTACHER`] in `dir`.
    pub(super) fn make(dir: &Path, named: &BTreeSet<String>, programs: &NodePrograms) -> Result<PathBuf> {
        let layout = dir.join("layout");
        let blobs = layout.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(|| format!("make {}", blobs.display()))?;
        let mut images = Self {
            dir: layout.clone(),
            manifests: Vec::new(),
        };
        let busybox = images.layer(&busybox(dir)?)?;
        images.image(BUSYBOX, &["/bin/sh"], &[&busybox])?;
        images.image(SANDBOX_IMAGE, &PAUSE, &[&busybox])?;
        let go_attacher = images.layer(&single(dir, &programs.external_attacher, "external-attacher")?)?;
        images.image(GO_ATTACHER, &["/external-attacher"], &[&go_attacher])?;
        let debian = images.blob(&programs.debian)?;
        let suite = |name| {
            let suite = programs.suite.as_ref();
            suite.with_context(|| format!("{name} belongs to the suite"))
        };
        let mut layers = BTreeMap::new();
        for name in named {
            let program = name.rsplit('/').next().and_then(|name| name.split(':').next());
            let (program, entrypoint) = match program.unwrap_or_default() {
                "csi-attacher" => (&programs.attacher, "csi-attacher"),
                "csi-mock-driver" | "csi-mock-driver-node" | "hostpathplugin" => {
                    (&programs.driver, "csi-mock-driver")
                }
                "csi-provisioner" => (&programs.provisioner, "csi-provisioner"),
                "csi-resizer" => (&programs.resizer, "csi-resizer"),
                "csi-snapshotter" => (&programs.snapshotter, "csi-snapshotter"),
                "snapshot-controller" => (&programs.snapshot_controller, "snapshot-controller"),
                // The suite runs a shell with the programs of glibc in it.
                "agnhost" | "glibc-dns-testing" => (&suite(name)?.agnhost, "agnhost"),
                "csi-node-driver-registrar" | "livenessprobe" => (&programs.node_sidecar, "suite-sidecar"),
                "pause" => {
                    images.image(name, &PAUSE, &[&busybox])?;
                    continue;
                }
                // The suite runs a shell in nginx.
                "busybox" | "nginx" => {
                    images.image(name, &[], &[&busybox])?;
                    continue;
                }
                other => bail!("{name}: there is no program for an image named {other}"),
            };
            let layer = match layers.entry(entrypoint) {
                Entry::Occupied(made) => made.into_mut(),
                Entry::Vacant(missing) => missing.insert(images.layer(&single(dir, program, entrypoint)?)?),
            };
            // Tests run a shell and programs for filesystems in agnhost.
            let has_base = ["csi-mock-driver-node", "hostpathplugin"]
                .iter()
                .any(|node| name.contains(node))
                || entrypoint == "agnhost";
            let base = has_base.then_some(&debian);
            let layers: Vec<_> = base.into_iter().chain([&*layer]).collect();
            images.image(name, &[&format!("/{entrypoint}")], &layers)?;
        }
        let index = json!({"schemaVersion": 2, "manifests": images.manifests});
        write(&layout.join("index.json"), &index.to_string())?;
        write(&layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
        Ok(layout)
    }

    fn image(&mut self, name: &str, entrypoint: &[&str], layers: &[&Blob]) -> Result<()> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {
                "Entrypoint": entrypoint,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": {
                "type": "layers",
                "diff_ids": layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>(),
            },
        });
        let config = self.json_blob(&config)?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(CONFIG),
            "layers": layers.iter().map(|layer| layer.descriptor(LAYER)).collect::<Vec<_>>(),
        });
        let mut manifest = self.json_blob(&manifest)?.descriptor(MANIFEST);
        manifest["annotations"] = json!({"io.containerd.image.name": full_name(name)});
        self.manifests.push(manifest);
        Ok(())
    }

    fn json_blob(&self, content: &Value) -> Result<Blob> {
        let file = self.dir.join("blob.json");
        write(&file, &content.to_string())?;
        self.blob(&file)
    }

    /// Packs a directory.
    fn layer(&self, root: &Path) -> Result<Blob> {
        let layer = self.dir.join("layer.tar");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--owner=0", "--group=0", "--numeric-owner", "--file"])
            .arg(&layer)
            .arg("--directory")
            .arg(root)
            .arg(".");
        stdout_of_blocking(&mut tar)?;
        let blob = self.blob(&layer)?;
        fs::remove_file(&layer).context("remove a draft")?;
        Ok(blob)
    }

    fn blob(&self, file: &Path) -> Result<Blob> {
        let content = fs::read(file).with_context(|| format!("read {}", file.display()))?;
        let hash = digest(&SHA256, &content);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let blob = self.dir.join("blobs/sha256").join(&hash);
        fs::write(&blob, &content).with_context(|| format!("write {}", blob.display()))?;
        Ok(Blob {
            digest: format!("sha256:{hash}"),
            size: content.len() as u64,
        })
    }
}

// === impl Blob ===

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.size})
    }
}

/// The fully qualified name of an image in a manifest.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((registry, _)) if registry.contains('.') => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

/// A root filesystem with busybox and all its applets.
fn busybox(dir: &Path) -> Result<PathBuf> {
    let root = dir.join("busybox");
    let bin = root.join("bin");
    for path in [&bin, &root.join("etc"), &root.join("root"), &root.join("tmp")] {
        fs::create_dir_all(path).with_context(|| format!("make {}", path.display()))?;
    }
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).context("open /tmp")?;
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n")?;
    write(&root.join("etc/group"), "root:x:0:\n")?;
    for applet in stdout_of_blocking(Command::new("busybox").arg("--list"))?.lines() {
        if applet != "busybox" {
            symlink("busybox", bin.join(applet)).with_context(|| format!("link {applet}"))?;
        }
    }
    let path = stdout_of_blocking(Command::new("sh").args(["-c", "command -v busybox"]))?;
    let path = path.trim();
    fs::copy(path, bin.join("busybox")).with_context(|| format!("copy {path}"))?;
    Ok(root)
}

/// A root filesystem with one program.
fn single(dir: &Path, program: &Path, name: &str) -> Result<PathBuf> {
    let root = dir.join(name);
    fs::create_dir_all(&root).with_context(|| format!("make {}", root.display()))?;
    fs::copy(program, root.join(name)).with_context(|| format!("copy {}", program.display()))?;
    Ok(root)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_their_registry() {
        let names = [
            "registry.k8s.io/sig-storage/csi-resizer:v2.3.0",
            "local/x:1",
            BUSYBOX,
        ];
        assert_eq!(
            names.map(full_name),
            [
                "registry.k8s.io/sig-storage/csi-resizer:v2.3.0",
                "docker.io/local/x:1",
                "docker.io/library/busybox:1.37"
            ]
        );
    }
}
