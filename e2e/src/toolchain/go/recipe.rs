//! The inputs of a Go build, and their hash as the key of the cached build.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ring::digest::{SHA256, digest};

use super::GoProgram;

/// Flags of every build: the build must not change the committed go.mod and go.sum, and the program must not
/// depend on the tree's path or commit.
const BUILD_FLAGS: &[&str] = &["-mod=readonly", "-trimpath", "-buildvcs=false"];
/// Settings of every build: without a C compiler, and without a go.work of a parent folder.
pub(super) const BUILD_ENV: &[(&str, &str)] = &[("CGO_ENABLED", "0"), ("GOWORK", "off")];

/// A Go installation that can build a module.
#[derive(Debug)]
pub(super) struct Go {
    pub(super) executable: PathBuf,
    /// Version, system and architecture.
    pub(super) identity: String,
}

/// A program with all inputs of its build.
#[derive(Debug)]
pub(super) struct Recipe<'a> {
    pub(super) program: &'a GoProgram,
    pub(super) module: PathBuf,
    pub(super) go: Go,
    pub(super) flags: Vec<String>,
}

// === impl Recipe ===

impl<'a> Recipe<'a> {
    /// Fails if go.mod lacks a module whose version is linked into the program.
    pub(super) fn new(program: &'a GoProgram, module: PathBuf, go: Go) -> Result<Self> {
        let manifest = read_manifest(&module)?;
        // Without symbols the control plane's executable is half the size.
        let mut linking = vec!["-s".to_owned(), "-w".to_owned()];
        for (variable, of) in program.stamps {
            let version = required_version(&manifest, of)
                .with_context(|| format!("go.mod in {} must require {of}", program.module))?;
            linking.push(format!("-X {variable}={version}"));
        }
        let mut flags: Vec<_> = BUILD_FLAGS.iter().map(|flag| (*flag).to_owned()).collect();
        flags.push(format!("-ldflags={}", linking.join(" ")));
        Ok(Self {
            program,
            module,
            go,
            flags,
        })
    }

    /// A hash of all inputs of the build: the sources, the versions in go.mod, compiler and flags.
    pub(super) fn key(&self) -> Result<String> {
        let mut files = Vec::new();
        source_files(&self.module, &mut files)?;
        files.sort();
        let Self {
            program, go, flags, ..
        } = self;
        let mut input = format!("{} {} {flags:?} {BUILD_ENV:?}\n", program.package, go.identity).into_bytes();
        for file in files {
            let content = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
            let name = file
                .strip_prefix(&self.module)
                .context("a module's file must lie in the module")?;
            input.extend_from_slice(format!("{} {}\n", name.display(), content.len()).as_bytes());
            input.extend_from_slice(&content);
        }
        let hash = digest(&SHA256, &input);
        Ok(hash
            .as_ref()
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect())
    }
}

// === go.mod and versions ===

/// The version in the `go` line of the module's go.mod.
pub(super) fn needed_version(module: &Path) -> Result<String> {
    let manifest = read_manifest(module)?;
    let line = manifest.lines().find_map(|line| line.strip_prefix("go "));
    Ok(line
        .with_context(|| format!("go.mod in {} must have a `go` line", module.display()))?
        .trim()
        .to_owned())
}

/// Major, minor and patch of a version, for comparisons: `1.26rc1` and `1.26` are `(1, 26, 0)`.
pub(super) fn release(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split('.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(0)
    });
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

fn read_manifest(module: &Path) -> Result<String> {
    let file = module.join("go.mod");
    fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))
}

/// The version of a module that go.mod requires, which follows its name.
fn required_version<'a>(manifest: &'a str, module: &str) -> Option<&'a str> {
    let requirement = |line: &'a str| {
        let mut words = line
            .trim_start()
            .trim_start_matches("require ")
            .split_ascii_whitespace();
        (words.next() == Some(module)).then(|| words.next())?
    };
    manifest
        .lines()
        .filter_map(requirement)
        .find(|version| version.starts_with('v'))
}

fn source_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let path = entry.with_context(|| format!("list {}", dir.display()))?.path();
        if path.is_dir() {
            source_files(&path, files)?;
        } else if path
            .extension()
            .is_some_and(|kind| kind == "go" || kind == "mod" || kind == "sum")
        {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: GoProgram = GoProgram {
        module: "m",
        package: ".",
        name: "m",
        stamps: &[("main.version", "example.org/dep")],
        what: "m",
        expectation: "soon",
    };

    fn recipe(module: &Path, identity: &str) -> Result<Recipe<'static>> {
        let go = Go {
            executable: "go".into(),
            identity: identity.to_owned(),
        };
        Recipe::new(&PROGRAM, module.to_owned(), go)
    }

    #[test]
    fn releases_are_compared_as_numbers() {
        assert!(release("1.26.8") > release("1.26.0"));
        assert!(release("1.9.9") < release("1.26"));
        assert_eq!(release("1.26rc1"), (1, 26, 0));
        assert_eq!(release(""), (0, 0, 0));
    }

    #[test]
    fn versions_are_those_of_go_mod() {
        let manifest = "require a.org/x v1.0.0\nrequire (\n\ta.org/y/v2 v2.3.4 // indirect\n)\nreplace (\n\tb => b v9\n)\n";
        assert_eq!(required_version(manifest, "a.org/x"), Some("v1.0.0"));
        assert_eq!(required_version(manifest, "a.org/y/v2"), Some("v2.3.4"));
        assert_eq!(required_version(manifest, "a.org/y"), None);
        assert_eq!(required_version(manifest, "b"), None);
    }

    #[test]
    fn the_key_follows_every_source_and_the_compiler() {
        let module = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(module.path().join(name), text).unwrap();
        let key = |identity: &str| recipe(module.path(), identity).unwrap().key().unwrap();
        fs::create_dir(module.path().join("sub")).unwrap();
        write(
            "go.mod",
            "module m\n\ngo 1.26.0\n\nrequire example.org/dep v1.2.3\n",
        );
        write("sub/main.go", "package main\n");
        write("README", "not a source");
        let first = key("go1.26.8");
        assert_eq!(first.len(), 16);
        assert_ne!(first, key("go1.26.9"));
        write("README", "still not a source");
        assert_eq!(first, key("go1.26.8"));
        write("sub/main.go", "package main // changed\n");
        assert_ne!(first, key("go1.26.8"));
        assert_eq!(needed_version(module.path()).unwrap(), "1.26.0");
        assert!(
            recipe(module.path(), "")
                .unwrap()
                .flags
                .iter()
                .any(|flag| flag.contains("main.version=v1.2.3"))
        );
    }

    #[test]
    fn a_version_that_go_mod_does_not_name_is_an_error() {
        let module = tempfile::tempdir().unwrap();
        fs::write(module.path().join("go.mod"), "module m\n\ngo 1.26.0\n").unwrap();
        let error = format!("{:#}", recipe(module.path(), "").unwrap_err());
        assert!(error.contains("must require example.org/dep"), "{error}");
    }
}
