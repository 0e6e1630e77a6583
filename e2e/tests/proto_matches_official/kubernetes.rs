//! Generates the embedded API server's table of Kubernetes' types from their Go sources, which are in the modules
//! `k8s.io/api` and `k8s.io/apimachinery`, and compares it with the committed one.
//!
//! A line is the name of a type and its underlying type, or the fields of a struct, in Go's order. A field is
//! `name=number:type`, with its number in protobuf, followed by `,always` if Go serializes it even if it is empty, and by
//! the strategy of a list in strategic merge patches. The name of an embedded struct, whose fields are those of the struct
//! around it in JSON, is `~`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use csi_e2e::toolchain::{without_run, workspace_root};

/// The table of the embedded API server.
const TABLE: &str = "e2e/embedded/src/apiserver/schema/types.txt";
/// The modules' versions are those of the control plane.
const CONTROL_PLANE: &str = "e2e/control-plane/go.mod";
/// Module and folder of each package, and the types in it that clients send.
const PACKAGES: [(&str, &str, &[&str]); 8] = [
    ("k8s.io/api", "authentication/v1", &["TokenRequest"]),
    ("k8s.io/api", "coordination/v1", &["Lease"]),
    (
        "k8s.io/api",
        "core/v1",
        &[
            "Binding",
            "Event",
            "Namespace",
            "Node",
            "PersistentVolume",
            "PersistentVolumeClaim",
            "Pod",
            "Secret",
            "ServiceAccount",
        ],
    ),
    ("k8s.io/api", "events/v1", &["Event"]),
    ("k8s.io/api", "policy/v1", &["Eviction"]),
    (
        "k8s.io/api",
        "storage/v1",
        &[
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
        ],
    ),
    ("k8s.io/apimachinery", "pkg/apis/meta/v1", &["DeleteOptions"]),
    ("k8s.io/apimachinery", "pkg/types", &[]),
];
/// Structs with a special JSON form.
const SCALARS: [&str; 5] = [
    "intstr.IntOrString",
    "meta.FieldsV1",
    "meta.MicroTime",
    "meta.Time",
    "resource.Quantity",
];

/// The declaration of a type.
enum Declaration {
    Struct(Vec<Field>),
    /// Another name of this type.
    Named(String),
}

/// A field of a struct.
struct Field {
    ty: String,
    tag: String,
}

/// The declarations of all packages by qualified name, such as `core.Pod`.
type Declarations = BTreeMap<String, Declaration>;

pub(crate) fn table_matches_official() -> Result<()> {
    let official = official()?;
    let path = workspace_root().join(TABLE);
    let ours = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    if ours != official {
        let generated = path.with_extension("generated.txt");
        fs::write(&generated, official).with_context(|| format!("write {}", generated.display()))?;
        anyhow::bail!("{TABLE} must be replaced by {}", generated.display());
    }
    Ok(())
}

/// The table of the control plane's version of Kubernetes.
fn official() -> Result<String> {
    let path = workspace_root().join(CONTROL_PLANE);
    let requirements = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut modules = BTreeMap::new();
    for (module, ..) in PACKAGES {
        if modules.contains_key(module) {
            continue;
        }
        let mut lines = requirements.lines().map(str::trim);
        let version = lines.find_map(|line| line.strip_prefix(module)?.strip_prefix(" v"));
        let version = version.and_then(|version| version.split_whitespace().next());
        let version = version.with_context(|| format!("{CONTROL_PLANE} must require {module}"))?;
        let release = format!("{module}@v{version}");
        modules.insert(
            module,
            without_run(async |toolchain| toolchain.go_sources(&release).await)?,
        );
    }
    table(&modules)
}

/// A line for each type that is reachable from those that clients send.
fn table(modules: &BTreeMap<&str, PathBuf>) -> Result<String> {
    let mut declared = Declarations::new();
    let mut waiting = Vec::new();
    for (module, folder, roots) in PACKAGES {
        let package = package_name(folder);
        add_package(&mut declared, package, &modules[module].join(folder))?;
        waiting.extend(roots.iter().map(|root| format!("{package}.{root}")));
    }
    let mut lines = BTreeMap::new();
    while let Some(name) = waiting.pop() {
        if SCALARS.contains(&name.as_str()) || lines.contains_key(&name) {
            continue;
        }
        let declaration = declared
            .get(&name)
            .with_context(|| format!("{name} must exist"))?;
        let line = match declaration {
            Declaration::Named(ty) => {
                waiting.extend(names_in(ty));
                ty.clone()
            }
            Declaration::Struct(fields) => {
                waiting.extend(fields.iter().flat_map(|field| names_in(&field.ty)));
                let fields: Vec<String> = fields.iter().map(|field| field.entry(&declared)).collect();
                fields.join(" ")
            }
        };
        lines.insert(name, line);
    }
    let lines = lines.iter().map(|(name, line)| format!("{name} {line}\n"));
    Ok(lines.collect())
}

/// The name of a package in the table: `core` of `k8s.io/api/core/v1`.
fn package_name(path: &str) -> &str {
    let path = path.trim_end_matches("/v1");
    path.rsplit('/').next().unwrap_or(path)
}

/// The qualified names in a type.
fn names_in(ty: &str) -> impl Iterator<Item = String> {
    let names = ty.split(['*', '[', ']']);
    names.filter(|name| name.contains('.')).map(str::to_owned)
}

/// Adds the declarations in a package's files.
fn add_package(declared: &mut Declarations, package: &str, folder: &Path) -> Result<()> {
    let files = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    for file in files {
        let path = file?.path();
        let name = path.to_string_lossy();
        if name.ends_with(".go") && !name.ends_with("_test.go") {
            let source = fs::read_to_string(&path).with_context(|| format!("read {name}"))?;
            add_file(declared, package, &source);
        }
    }
    Ok(())
}

fn add_file(declared: &mut Declarations, package: &str, source: &str) {
    let mut imports = BTreeMap::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (name, declaration) = match words[..] {
            ["import", "("] => {
                let block = lines.by_ref().take_while(|line| *line != ")");
                imports = block.filter_map(import).collect();
                continue;
            }
            ["type", name, "struct", "{"] => {
                let block = lines.by_ref().take_while(|line| *line != "}");
                let fields = block.filter_map(|line| Field::of_line(line, package, &imports));
                (name, Declaration::Struct(fields.collect()))
            }
            ["type", name, ty] => (name, Declaration::Named(qualified(ty, package, &imports))),
            _ => continue,
        };
        declared.insert(format!("{package}.{name}"), declaration);
    }
}

/// The name and the package of an import.
fn import(line: &str) -> Option<(&str, &str)> {
    let (alias, rest) = line.trim().split_once('"')?;
    let path = rest.trim_end_matches('"');
    let name = package_name(path);
    Some((if alias.is_empty() { name } else { alias.trim() }, name))
}

/// A type with the packages of its names.
fn qualified(ty: &str, package: &str, imports: &BTreeMap<&str, &str>) -> String {
    const BUILT_IN: [&str; 5] = ["bool", "byte", "int32", "int64", "string"];
    let qualified = |ty| qualified(ty, package, imports);
    if let Some(target) = ty.strip_prefix('*') {
        format!("*{}", qualified(target))
    } else if let Some(element) = ty.strip_prefix("[]") {
        format!("[]{}", qualified(element))
    } else if let Some((key, value)) = ty.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
        format!("map[{}]{}", qualified(key), qualified(value))
    } else if let Some((alias, name)) = ty.split_once('.') {
        format!("{}.{name}", imports.get(alias).unwrap_or(&alias))
    } else if BUILT_IN.contains(&ty) {
        ty.to_owned()
    } else {
        format!("{package}.{ty}")
    }
}

// === impl Field ===

impl Field {
    /// The field in a line of a struct. An embedded struct has no name.
    fn of_line(line: &str, package: &str, imports: &BTreeMap<&str, &str>) -> Option<Self> {
        let (declaration, rest) = line.trim().split_once('`')?;
        let (tag, _) = rest.split_once('`')?;
        if declaration.starts_with("//") {
            return None;
        }
        let ty = declaration.split_whitespace().next_back()?;
        Some(Self {
            ty: qualified(ty, package, imports),
            tag: tag.to_owned(),
        })
    }

    /// A value in the field's tag.
    fn tag(&self, name: &str) -> Option<&str> {
        let (_, value) = self.tag.split_once(&format!("{name}:\""))?;
        value.split_once('"').map(|(value, _)| value)
    }

    /// The field's entry in the table.
    fn entry(&self, declared: &Declarations) -> String {
        let mut json = self.tag("json").unwrap_or_default().split(',');
        let name = json.next().filter(|name| !name.is_empty()).unwrap_or("~");
        let options: Vec<&str> = json.collect();
        let number = self.tag("protobuf").and_then(|tag| tag.split(',').nth(1));
        let mut entry = format!("{name}={}:{}", number.unwrap_or_default(), self.ty);
        // `omitempty` does not omit structs.
        let is_struct = SCALARS.contains(&self.ty.as_str())
            || matches!(declared.get(&self.ty), Some(Declaration::Struct(_)));
        let omits = options.contains(&"omitzero") || (options.contains(&"omitempty") && !is_struct);
        if name != "~" && !omits {
            entry.push_str(",always");
        }
        let strategy = self.tag("patchStrategy").unwrap_or_default();
        if strategy.split(',').any(|part| part == "merge") {
            entry.push_str(",merge=");
            entry.push_str(self.tag("patchMergeKey").unwrap_or_default());
        }
        if strategy.split(',').any(|part| part == "retainKeys") {
            entry.push_str(",retainKeys");
        }
        entry
    }
}
