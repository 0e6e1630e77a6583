//! The images: complete OCI layouts, and the repository's Rust version for the build.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use csi_e2e::process::stdout_of;
use csi_e2e::toolchain::workspace_root;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio::process::Command;
use verdict::Requirement;

use crate::Harness;

/// The programs with an image.
const PROGRAMS: [&str; 2] = ["csi-attacher", "csi-mock-driver"];
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

trials! { "deploy":
    layouts_are_consistent_and_reproducible,
    layouts_are_replaced_and_a_missing_binary_is_an_error,
    images_run_one_program_as_root,
    images_are_built_by_the_compiler_of_the_tree,
}

/// Uses placeholder binaries, because compiling takes too long for a test.
async fn layouts_are_consistent_and_reproducible(harness: Arc<Harness>) -> Result<()> {
    let dir = harness.run.subdir("images")?;
    let binaries = dir.join("binaries");
    mk_binaries(&binaries, "")?;
    let (first, second) = (dir.join("first"), dir.join("second"));
    for out in [&first, &second] {
        pack(&binaries, out).await?;
    }
    for program in PROGRAMS {
        let files = files(&first.join(program))?;
        ensure!(
            files == self::files(&second.join(program))?,
            "two layouts of {program} from the same binaries differ"
        );
        let layout = Layout(files);
        let outer = layout.json("index.json")?;
        let index = layout.resolved(&outer["manifests"][0])?;
        let manifests = index["manifests"]
            .as_array()
            .context("an index must have manifests")?;
        let platforms: Vec<_> = manifests
            .iter()
            .map(|manifest| &manifest["platform"]["architecture"])
            .collect();
        ensure!(platforms == ARCHITECTURES, "{program} is for {platforms:?}");
        for descriptor in manifests {
            let architecture = &descriptor["platform"]["architecture"];
            let manifest = layout.resolved(descriptor)?;
            let config = layout.resolved(&manifest["config"])?;
            ensure!(config["architecture"] == *architecture, "{program}: {config}");
            ensure!(
                config["config"]["Entrypoint"] == json!([format!("/{program}")]),
                "{config}"
            );
            // Root, as in upstream's sidecar images: only root may open the socket of a driver that runs as
            // root.
            ensure!(config["config"].get("User").is_none(), "{config}");
            ensure!(
                config["rootfs"]["diff_ids"][0] == manifest["layers"][0]["digest"],
                "{config}"
            );
            let layer = layout.blob(&manifest["layers"][0])?;
            let text = String::from_utf8_lossy(layer);
            let wanted = format!("{program} for {}", architecture.as_str().unwrap_or_default());
            ensure!(
                text.starts_with(program) && text.contains(&wanted),
                "the layer does not contain {wanted}"
            );
        }
    }
    Ok(())
}

/// A build replaces all layouts of an earlier build in the same directory, and a missing binary is an error.
async fn layouts_are_replaced_and_a_missing_binary_is_an_error(harness: Arc<Harness>) -> Result<()> {
    let dir = harness.run.subdir("images-again")?;
    let (old, new) = (dir.join("old"), dir.join("new"));
    mk_binaries(&old, "of yesterday")?;
    mk_binaries(&new, "of today")?;
    let (used, unused) = (dir.join("used"), dir.join("unused"));
    pack(&old, &used).await?;
    pack(&new, &used).await?;
    pack(&new, &unused).await?;
    for program in PROGRAMS {
        ensure!(
            files(&used.join(program))? == files(&unused.join(program))?,
            "the layout of {program} contains files of an earlier build"
        );
    }
    for architecture in ARCHITECTURES {
        std::fs::remove_file(new.join(architecture).join(PROGRAMS[1]))?;
    }
    let refused = pack(&new, &unused).await;
    let refused = refused.err().context("an image was built without a binary")?;
    ensure!(refused.to_string().contains(PROGRAMS[1]), "{refused}");
    Ok(())
}

/// The harness builds the images of real nodes with these programs and without a user, so the Containerfile must match.
async fn images_run_one_program_as_root(_harness: Arc<Harness>) -> Result<()> {
    let file = workspace_root().join("deploy/images/Containerfile");
    let text = std::fs::read_to_string(&file).context("read the Containerfile")?;
    let mut images: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut image = "";
    for line in text.lines() {
        let (instruction, rest) = line.split_once(' ').unwrap_or((line, ""));
        match instruction {
            "FROM" => image = rest.rsplit(' ').next().unwrap_or_default(),
            "ENTRYPOINT" | "CMD" | "USER" | "ENV" | "WORKDIR" => images.entry(image).or_default().push(line),
            _ => {}
        }
    }
    // The stage that compiles is no image.
    images.remove("build");
    let expected = [
        ("csi-attacher", vec![r#"ENTRYPOINT ["/csi-attacher"]"#]),
        ("csi-mock-driver", vec![r#"ENTRYPOINT ["/csi-mock-driver"]"#]),
        ("csi-mock-driver-node", vec![r#"ENTRYPOINT ["/csi-mock-driver"]"#]),
    ];
    ensure!(images == BTreeMap::from(expected), "the images are {images:?}");
    Ok(())
}

async fn images_are_built_by_the_compiler_of_the_tree(_harness: Arc<Harness>) -> Result<()> {
    let read = |file: &str| {
        std::fs::read_to_string(workspace_root().join(file)).with_context(|| format!("read {file}"))
    };
    let toolchain = read("rust-toolchain.toml")?;
    let channel = toolchain
        .split('"')
        .nth(1)
        .context("rust-toolchain.toml must name a channel")?;
    for file in ["deploy/images/Containerfile", ".github/workflows/ci.yml"] {
        ensure!(
            read(file)?.contains(&format!("rust:{channel}-")),
            "{file} must start from Rust {channel}, as rust-toolchain.toml says"
        );
    }
    Ok(())
}

/// A placeholder for each binary.
fn mk_binaries(dir: &Path, note: &str) -> Result<()> {
    for architecture in ARCHITECTURES {
        let folder = dir.join(architecture);
        std::fs::create_dir_all(&folder)?;
        for program in PROGRAMS {
            std::fs::write(
                folder.join(program),
                format!("{program} for {architecture} {note}"),
            )?;
        }
    }
    Ok(())
}

async fn pack(binaries: &Path, out: &Path) -> Result<()> {
    Requirement::Program("bash").check()?;
    let mut pack = Command::new(workspace_root().join("deploy/images/oci-layout"));
    pack.args([binaries, out]).env("SOURCE_DATE_EPOCH", "1700000000");
    stdout_of(&mut pack).await.map(drop)
}

/// Contents of all files, by path.
fn files(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for folder in ["", "blobs/sha256/"] {
        let listed = dir.join(folder);
        for entry in std::fs::read_dir(&listed).with_context(|| format!("list {}", listed.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                let name = format!("{folder}{}", entry.file_name().to_string_lossy());
                found.insert(name, std::fs::read(entry.path())?);
            }
        }
    }
    Ok(found)
}

struct Layout(BTreeMap<String, Vec<u8>>);

impl Layout {
    fn json(&self, file: &str) -> Result<Value> {
        let content = self.0.get(file).with_context(|| format!("there is no {file}"))?;
        serde_json::from_slice(content).with_context(|| format!("{file} must be JSON"))
    }

    fn resolved(&self, descriptor: &Value) -> Result<Value> {
        serde_json::from_slice(self.blob(descriptor)?)
            .with_context(|| format!("{descriptor} must refer to JSON"))
    }

    /// The blob of a descriptor, if digest and size match.
    fn blob(&self, descriptor: &Value) -> Result<&[u8]> {
        let named = descriptor["digest"]
            .as_str()
            .and_then(|digest| digest.strip_prefix("sha256:"));
        let named = named.with_context(|| format!("{descriptor} must have a digest"))?;
        let content = self.0.get(&format!("blobs/sha256/{named}"));
        let content = content.with_context(|| format!("there is no blob {named}"))?;
        let hash = digest(&SHA256, content);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        ensure!(hash == named, "the blob {named} is {hash}");
        ensure!(
            descriptor["size"] == content.len(),
            "{descriptor} is {} bytes",
            content.len()
        );
        Ok(content)
    }
}
