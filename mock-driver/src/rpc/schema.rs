//! What the proto file says about methods and messages, for those who meet them as names or bytes: fault
//! rules, edits of replies, the proxy.
//!
//! Everything comes from the descriptors built into `csi-proto`, so a method added to the specification is
//! known here without another line.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor, MethodDescriptor};
use wildmatch::WildMatch;

/// The package whose services rules can name.
const PACKAGE: &str = "csi.v1";

/// The service that stands on one node.
const NODE_SERVICE: &str = "/csi.v1.Node/";

/// The fields of requests that say which volume a call is about; of ListSnapshots only which it asks for.
pub(crate) const VOLUME: [&str; 2] = ["volume_id", "source_volume_id"];

/// The field that says to which node.
pub(crate) const NODE: [&str; 1] = ["node_id"];

/// The field that says under which name something is to be made.
pub(crate) const NAME: [&str; 1] = ["name"];

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).expect("the built-in descriptors must decode")
});

static RPCS: LazyLock<Vec<Rpc>> = LazyLock::new(|| {
    let services = POOL
        .services()
        .filter(|service| service.package_name() == PACKAGE);
    services
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| Rpc {
            path: format!("/{}/{}", method.parent_service().full_name(), method.name()),
            method,
        })
        .collect()
});

/// A method of the specification.
#[derive(Clone, Debug)]
pub struct Rpc {
    path: String,
    method: MethodDescriptor,
}

// === impl Rpc ===

impl Rpc {
    /// Every method of CSI, service by service.
    pub fn all() -> &'static [Self] {
        &RPCS
    }

    /// The method of this path on the wire.
    pub fn at(path: &str) -> Option<&'static Self> {
        RPCS.iter().find(|rpc| rpc.path == path)
    }

    /// The method of this bare name or path.
    pub fn named(text: &str) -> Option<&'static Self> {
        RPCS.iter().find(|rpc| rpc.name() == text || rpc.path == text)
    }

    /// Its path on the wire.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its name without the service.
    pub fn name(&self) -> &str {
        self.method.name()
    }

    /// Its request.
    pub fn request(&self) -> MessageDescriptor {
        self.method.input()
    }

    /// Its reply.
    pub fn reply(&self) -> MessageDescriptor {
        self.method.output()
    }

    /// Whether its reply is a stream of messages.
    pub fn streams(&self) -> bool {
        self.method.is_server_streaming()
    }

    /// Whether its request has a field of this name.
    pub fn takes(&self, field: &str) -> bool {
        self.request().get_field_by_name(field).is_some()
    }

    /// Whether it is made on one node, which it does not name.
    pub fn is_on_node(&self) -> bool {
        is_on_node(&self.path)
    }

    /// Whether it is about a volume.
    pub fn has_volume(&self) -> bool {
        VOLUME.iter().any(|field| self.takes(field))
    }

    /// Whether it is about a node, or made on one.
    pub fn has_node(&self) -> bool {
        self.is_on_node() || NODE.iter().any(|field| self.takes(field))
    }

    /// Whether it makes something under a name.
    pub fn has_name(&self) -> bool {
        NAME.iter().any(|field| self.takes(field))
    }

    /// Whether a pattern of names means it.
    pub fn fits(&self, pattern: &WildMatch) -> bool {
        pattern.matches(self.name()) || pattern.matches(&self.path)
    }
}

/// Whether calls to this path are made on one node.
pub(crate) fn is_on_node(path: &str) -> bool {
    path.starts_with(NODE_SERVICE)
}

/// The message of this full name.
pub(crate) fn message(name: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_36_methods_of_the_specification_are_known_by_name_and_path() {
        assert_eq!(Rpc::all().len(), 36);
        for rpc in Rpc::all() {
            assert_eq!(Rpc::named(rpc.name()).map(Rpc::path), Some(rpc.path()));
            assert_eq!(Rpc::at(rpc.path()).map(Rpc::name), Some(rpc.name()));
        }
        let publish = Rpc::named("ControllerPublishVolume").unwrap();
        assert_eq!(publish.path(), "/csi.v1.Controller/ControllerPublishVolume");
        assert!(publish.takes("node_id") && !publish.takes("name") && !publish.streams());
        assert!(Rpc::named("GetMetadataDelta").unwrap().streams());
    }
}
