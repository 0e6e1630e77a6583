//! Short names: without the common prefix, and volumes by their Kubernetes name instead of the driver's id.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;

use csi_e2e::mutex::lock;
use csi_e2e::scenario::TestEnv;

/// Number of printed characters of an attachment's name, a long hash.
const HASH: usize = 8;

/// The names of one test environment.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
    /// By the driver's id.
    nodes: Arc<BTreeMap<String, String>>,
    volumes: Arc<Mutex<BTreeMap<String, String>>>,
}

// === impl Names ===

impl Names {
    /// The names of a test environment.
    pub(crate) fn of(env: &TestEnv<'_>) -> Self {
        let names = Self::with_prefix(env.prefix());
        let nodes = env.nodes().iter();
        let nodes = nodes.map(|node| (node.node_id().to_owned(), names.short(node.name())));
        Self {
            nodes: Arc::new(nodes.collect()),
            ..names
        }
    }

    /// The names of objects with this prefix.
    pub fn with_prefix(prefix: &str) -> Self {
        Self {
            prefix: format!("{prefix}-"),
            nodes: Arc::default(),
            volumes: Arc::default(),
        }
    }

    /// Records the driver's id of a volume.
    pub fn learn(&self, volume: &PersistentVolume) {
        if let Some(csi) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) {
            let name = self.short(&volume.name_any());
            let mut volumes = lock(&self.volumes);
            volumes.insert(csi.volume_handle.clone(), name);
        }
    }

    /// The name of the volume with this id; the id if the name is unknown.
    pub fn volume(&self, handle: &str) -> String {
        let volumes = lock(&self.volumes);
        volumes
            .get(handle)
            .map_or_else(|| handle.to_owned(), Clone::clone)
    }

    /// The name of the node with this id of the driver; the id if the name is unknown.
    pub(crate) fn node(&self, id: &str) -> String {
        self.nodes.get(id).map_or_else(|| id.to_owned(), Clone::clone)
    }

    /// How kubectl and the driver name nodes and volumes.
    pub(crate) fn about(&self) -> String {
        let Self { prefix, nodes, .. } = self;
        let ids: Vec<_> = nodes
            .iter()
            .map(|(id, node)| format!("{id} for {node}"))
            .collect();
        format!(
            "kubectl and explain show nodes and PersistentVolumes with the prefix {prefix}: node a is {prefix}a. \
             The driver's ids of the nodes are {}.",
            ids.join(", ")
        )
    }

    /// A text with the names of nodes, volumes and VolumeAttachments, as whole words, in place of those of kubectl and of the driver.
    pub(crate) fn translated(&self, text: &str) -> String {
        let volumes = lock(&self.volumes);
        let is_known = |short: &str| {
            let names = self.nodes.values().chain(volumes.values());
            names.into_iter().any(|known| known == short)
        };
        let name_of = |word: &str| {
            let by_id = self.nodes.get(word).or_else(|| volumes.get(word));
            let is_hash = |hash: &str| hash.len() > HASH && hash.chars().all(|c| c.is_ascii_hexdigit());
            let is_attachment = word.strip_prefix("csi-").is_some_and(is_hash);
            by_id.cloned().or_else(|| {
                let short = self.short(word);
                (is_attachment || is_known(&short)).then_some(short)
            })
        };
        let is_in_word = |c: char| c.is_alphanumeric() || "-.".contains(c);
        let mut translated = String::new();
        let mut rest = text;
        while let Some(start) = rest.find(is_in_word) {
            let (before, from) = rest.split_at(start);
            let end = from.find(|c| !is_in_word(c)).unwrap_or(from.len());
            // The end of a sentence is no part of its last word.
            let word = from[..end].trim_end_matches(['.', '-']);
            translated.push_str(before);
            match name_of(word) {
                Some(name) => translated.push_str(&name),
                None => translated.push_str(word),
            }
            translated.push_str(&from[word.len()..end]);
            rest = &from[end..];
        }
        translated + rest
    }

    /// The names of the volumes that a text mentions.
    pub fn mentioned(&self, text: &str) -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphanumeric() && !"-.".contains(c));
        let words: BTreeSet<_> = words.map(|word| self.short(word)).collect();
        let volumes = lock(&self.volumes);
        let known: BTreeSet<_> = volumes.values().cloned().collect();
        words.intersection(&known).cloned().collect()
    }

    /// The name of an object without the test environment's prefix, or the beginning of an attachment's hash.
    pub fn short(&self, name: &str) -> String {
        match (name.strip_prefix(&self.prefix), name.strip_prefix("csi-")) {
            (Some(short), _) => short.to_owned(),
            (None, Some(hash)) if hash.len() > HASH => {
                format!("csi-{}…", hash.chars().take(HASH).collect::<String>())
            }
            (None, _) => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi_e2e::fixture::{Access, VolumeSource, mk_claim, mk_persistent_volume};

    #[test]
    fn names_are_shortened() {
        let names = Names::with_prefix("round-1");
        for (long, short) in [
            ("round-1-a", "a"),
            ("csi-0123456789abcdef", "csi-01234567…"),
            ("csi-1", "csi-1"),
            ("other", "other"),
        ] {
            assert_eq!(names.short(long), short);
        }
    }

    #[test]
    fn other_names_of_the_nodes_are_listed() {
        let ids = [("node-0", "a"), ("node-1", "b")].map(|(id, node)| (id.to_owned(), node.to_owned()));
        let names = Names {
            nodes: Arc::new(ids.into()),
            ..Names::with_prefix("playground")
        };
        let about = names.about();
        assert!(about.contains("node a is playground-a."), "{about}");
        assert!(about.ends_with("node-0 for a, node-1 for b."), "{about}");
    }

    #[test]
    fn texts_have_the_names_of_the_views() {
        let names = Names {
            nodes: Arc::new([("node-0".to_owned(), "a".to_owned())].into()),
            ..Names::with_prefix("playground")
        };
        lock(&names.volumes).insert("vol-1".to_owned(), "logs".to_owned());
        for (text, expected) in [
            ("node node-0 has no room", "node a has no room"),
            ("vol-1 is on \"node-0\".", "logs is on \"a\"."),
            (
                "volume \"playground-logs\" on playground-a",
                "volume \"logs\" on a",
            ),
            ("kubernetes.io/csi/d^vol-1", "kubernetes.io/csi/d^logs"),
            (
                "VolumeAttachment csi-0123456789abcdef",
                "VolumeAttachment csi-01234567…",
            ),
            // Other words stay.
            ("node-01, my-node-0 and vol-1.5", "node-01, my-node-0 and vol-1.5"),
            (
                "playground-mock of csi-attacher-leader...",
                "playground-mock of csi-attacher-leader...",
            ),
            ("", ""),
        ] {
            assert_eq!(names.translated(text), expected);
        }
    }

    #[test]
    fn volumes_go_by_their_own_name_once_it_is_known() {
        let names = Names::with_prefix("s");
        assert_eq!(names.volume("mock-1"), "mock-1");
        let source = VolumeSource {
            driver: "d".to_owned(),
            handle: "mock-1".to_owned(),
            attributes: BTreeMap::new(),
            access: Access::OneNode,
            publish_secret: None,
        };
        names.learn(&mk_persistent_volume(
            "s",
            "s-data",
            &source,
            &mk_claim("s", "data", "s-data", Access::OneNode),
        ));
        assert_eq!(names.volume("mock-1"), "data");
        for (text, expected) in [
            ("reports in use: data, logs", &["data"][..]),
            (
                "AttachVolume.Attach failed for volume \"s-data\" : full",
                &["data"],
            ),
            ("binds pod database to node a", &[]),
        ] {
            assert_eq!(names.mentioned(text), expected, "{text}");
        }
    }
}
