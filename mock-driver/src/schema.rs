//! What the proto file says about methods and messages, for those who meet them as names or bytes: fault
//! rules, edits of replies, the proxy.
//!
//! Everything comes from the descriptors built into `csi-proto`, so a method added to the specification is
//! known here without another line.

use std::sync::LazyLock;

use prost_reflect::{
    DescriptorPool, ExtensionDescriptor, FieldDescriptor, MessageDescriptor, MethodDescriptor,
};
use wildmatch::WildMatch;

/// The package whose services rules can name.
const PACKAGE: &str = "csi.v1";
/// The option that marks a field as secret.
const SECRET_OPTION: &str = "csi.v1.csi_secret";

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

static SECRET: LazyLock<Option<ExtensionDescriptor>> =
    LazyLock::new(|| POOL.get_extension_by_name(SECRET_OPTION));

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

    /// Whether a pattern of names means it.
    pub fn fits(&self, pattern: &WildMatch) -> bool {
        pattern.matches(self.name()) || pattern.matches(&self.path)
    }
}

/// Whether the field holds secrets.
pub(crate) fn is_secret(field: &FieldDescriptor) -> bool {
    let Some(option) = SECRET.as_ref() else {
        return false;
    };
    let options = field.options();
    options.has_extension(option) && options.get_extension(option).as_bool().unwrap_or_default()
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

    #[test]
    fn secret_fields_are_those_the_specification_marks() {
        let request = Rpc::named("NodeStageVolume").unwrap().request();
        let secret = |name: &str| is_secret(&request.get_field_by_name(name).unwrap());
        assert!(secret("secrets"));
        assert!(!secret("volume_context"));
    }
}
