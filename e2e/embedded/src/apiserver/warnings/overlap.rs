//! Warnings about files of a volume whose paths overlap (`warningsForOverlappingVirtualPaths` of Kubernetes).

use std::fmt;

use serde_json::{Value, json};

/// Sources with files, and their names in warnings.
const SOURCES: [(&str, &str); 3] = [
    ("configMap", "ConfigMap"),
    ("secret", "Secret"),
    ("downwardAPI", "DownwardAPI"),
];

/// A file of a volume.
struct File {
    path: String,
    /// The source in a projected volume, else empty.
    source: String,
}

/// Warnings about the volumes of a pod.
pub(super) fn warnings(volumes: &[Value]) -> Vec<String> {
    let mut warnings = Vec::new();
    for volume in volumes {
        let name = &volume["name"];
        for (field, kind) in SOURCES {
            let (source, mut files) = (&volume[field], Vec::new());
            let volume = format!("volume {name} ({})", title(kind, source));
            for file in items(source, "") {
                warnings.extend(add(&mut files, file, &volume));
            }
        }
        let (sources, mut files) = (volume["projected"]["sources"].as_array(), Vec::new());
        let volume = format!("volume {name} (Projected)");
        for source in sources.into_iter().flatten() {
            for file in projected(source) {
                warnings.extend(add(&mut files, file, &volume));
            }
            if *source == json!({}) {
                warnings.push(format!("{volume} has no sources provided"));
            }
        }
    }
    warnings
}

/// Adds a file to those of a volume; returns the warnings about it.
fn add(files: &mut Vec<File>, file: File, volume: &str) -> Vec<String> {
    let others = files.iter().filter(|other| file.overlaps(other));
    let warnings = others.map(|other| format!("{volume}: overlapping paths: {file} with {other}"));
    let warnings = warnings.collect();
    files.push(file);
    warnings
}

/// The files of a source of a projected volume.
fn projected(source: &Value) -> Vec<File> {
    let mut with_items = SOURCES
        .iter()
        .filter(|(field, _)| source[field]["items"].is_array());
    if let Some((field, kind)) = with_items.next() {
        return items(&source[field], &title(kind, &source[field]));
    }
    let path = source["serviceAccountToken"]["path"].as_str();
    let token = path.map(|path| File::new(path, "ServiceAccountToken"));
    token.into_iter().collect()
}

/// Kind and name of a source.
fn title(kind: &str, source: &Value) -> String {
    let name = source.get("secretName").or_else(|| source.get("name"));
    name.map_or_else(|| kind.to_owned(), |name| format!("{kind} {name}"))
}

fn items(owner: &Value, source: &str) -> Vec<File> {
    let items = owner["items"].as_array().into_iter().flatten();
    let paths = items.map(|item| item["path"].as_str().unwrap_or_default());
    paths.map(|path| File::new(path, source)).collect()
}

// === impl File ===

impl File {
    fn new(path: &str, source: &str) -> Self {
        Self {
            path: path.trim_end_matches('/').to_owned(),
            source: source.to_owned(),
        }
    }

    fn overlaps(&self, other: &Self) -> bool {
        let [path, other] = [&self.path, &other.path].map(|path| format!("{path}/"));
        path != "/" && other != "/" && (path.starts_with(&other) || other.starts_with(&path))
    }
}

impl fmt::Display for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, source } = self;
        match source.as_str() {
            "" => write!(f, "{path:?}"),
            source => write!(f, "{path:?} ({source})"),
        }
    }
}
