//! Compares the fields by which the embedded API server decodes protobuf bodies with those of the official
//! `generated.proto` files, which are in the Go modules `k8s.io/api` and `k8s.io/apimachinery`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use csi_e2e::toolchain::{without_run, workspace_root};
use prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use protox::{
    Compiler,
    file::{File, FileResolver},
};

/// The table of the embedded API server.
const TABLE: &str = "e2e/embedded/src/apiserver/protobuf/messages.txt";
/// The modules' versions are those of the control plane.
const CONTROL_PLANE: &str = "e2e/control-plane/go.mod";
const MODULES: [&str; 2] = ["k8s.io/api", "k8s.io/apimachinery"];
/// Packages and the messages in them that clients send.
const ROOTS: [(&str, &[&str]); 7] = [
    (
        "k8s.io/api/core/v1",
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
    (
        "k8s.io/api/storage/v1",
        &[
            "CSIDriver",
            "CSINode",
            "CSIStorageCapacity",
            "StorageClass",
            "VolumeAttachment",
        ],
    ),
    ("k8s.io/api/coordination/v1", &["Lease"]),
    ("k8s.io/api/events/v1", &["Event"]),
    ("k8s.io/api/policy/v1", &["Eviction"]),
    ("k8s.io/api/authentication/v1", &["TokenRequest"]),
    ("k8s.io/apimachinery/pkg/apis/meta/v1", &["DeleteOptions"]),
];
/// Embedded structs of Go: in JSON, their fields are those of the struct around them.
const INLINE: [&str; 5] = [
    "ephemeralContainerCommon",
    "handler",
    "localObjectReference",
    "persistentVolumeSource",
    "volumeSource",
];
/// Messages with a special JSON form.
const SCALARS: [&str; 4] = [
    "intstr.IntOrString",
    "meta.MicroTime",
    "meta.Time",
    "resource.Quantity",
];
/// The server has no `managedFields`.
const LEFT_OUT: &str = "managedFields";

/// The files of the modules.
struct Modules(BTreeMap<&'static str, PathBuf>);

impl FileResolver for Modules {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        let found = self
            .0
            .iter()
            .find_map(|(module, dir)| Some(dir.join(name.strip_prefix(module)?.strip_prefix('/')?)));
        match found {
            Some(path) => File::open(name, &path),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}

pub(crate) fn table_matches_official() -> Result<()> {
    let official = table(&official()?)?;
    let path = workspace_root().join(TABLE);
    let ours = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    if ours != official {
        let generated = path.with_extension("generated.txt");
        fs::write(&generated, official).with_context(|| format!("write {}", generated.display()))?;
        anyhow::bail!("{TABLE} must be replaced by {}", generated.display());
    }
    Ok(())
}

/// The messages of the control plane's version of Kubernetes.
fn official() -> Result<DescriptorPool> {
    let path = workspace_root().join(CONTROL_PLANE);
    let requirements = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut modules = BTreeMap::new();
    for module in MODULES {
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
    let mut compiler = Compiler::with_file_resolver(Modules(modules));
    for (package, _) in ROOTS {
        compiler.open_file(format!("{package}/generated.proto"))?;
    }
    Ok(compiler.include_imports(true).descriptor_pool())
}

/// A line for each message that is reachable from the roots.
fn table(pool: &DescriptorPool) -> Result<String> {
    let mut waiting = Vec::new();
    for (package, names) in ROOTS {
        for name in names {
            let full_name = format!("{}.{name}", package.replace('/', "."));
            let message = pool.get_message_by_name(&full_name);
            waiting.push(message.with_context(|| format!("{full_name} must exist"))?);
        }
    }
    let mut seen: BTreeSet<String> = waiting
        .iter()
        .map(|message| message.full_name().to_owned())
        .collect();
    let mut lines = BTreeMap::new();
    while let Some(message) = waiting.pop() {
        let mut fields: Vec<FieldDescriptor> = message
            .fields()
            .filter(|field| field.name() != LEFT_OUT)
            .collect();
        fields.sort_by_key(FieldDescriptor::number);
        let mut line = String::new();
        for field in &fields {
            write!(line, " {}={}:{}", json_name(field), field.number(), ty(field)?)?;
            let Some(next) = message_of(field).filter(|next| !SCALARS.contains(&short_name(next).as_str()))
            else {
                continue;
            };
            if seen.insert(next.full_name().to_owned()) {
                waiting.push(next);
            }
        }
        let shadowed = lines.insert(short_name(&message), line);
        ensure!(
            shadowed.is_none(),
            "two messages have the name {}",
            short_name(&message)
        );
    }
    let lines = lines.iter().map(|(name, line)| format!("{name}{line}\n"));
    Ok(lines.collect())
}

/// Name of the field in JSON; `~` if the fields of its message take its place.
fn json_name(field: &FieldDescriptor) -> &str {
    match field.name() {
        name if INLINE.contains(&name) => "~",
        "uID" => "uid",
        name => name,
    }
}

/// Package and name: `core.Pod` of `k8s.io.api.core.v1.Pod`.
fn short_name(message: &MessageDescriptor) -> String {
    let package = message.package_name().trim_end_matches(".v1");
    let package = package.rsplit('.').next().unwrap_or_default();
    format!("{package}.{}", message.name())
}

/// The message of a field, of its elements, or of its values.
fn message_of(field: &FieldDescriptor) -> Option<MessageDescriptor> {
    let kind = field.kind();
    let message = kind.as_message()?;
    if field.is_map() {
        let value = message.map_entry_value_field();
        value.kind().as_message().cloned()
    } else {
        Some(message.clone())
    }
}

fn ty(field: &FieldDescriptor) -> Result<String> {
    if field.is_map() {
        let entry = field.kind();
        let entry = entry.as_message().context("a map must have entries")?;
        let key = entry.map_entry_key_field();
        ensure!(
            key.kind() == Kind::String,
            "keys of {} must be strings",
            field.full_name()
        );
        return Ok(format!("map[string]{}", ty(&entry.map_entry_value_field())?));
    }
    let scalars = [
        (Kind::String, "string"),
        (Kind::Bool, "bool"),
        (Kind::Int32, "int"),
        (Kind::Int64, "int"),
        (Kind::Bytes, "bytes"),
    ];
    let scalar = scalars.iter().find(|(kind, _)| *kind == field.kind());
    let name = match message_of(field) {
        Some(message) => short_name(&message),
        None => {
            let (_, name) =
                scalar.with_context(|| format!("the type of {} is unknown", field.full_name()))?;
            (*name).to_owned()
        }
    };
    let list = if field.is_list() { "[]" } else { "" };
    Ok(format!("{list}{name}"))
}
