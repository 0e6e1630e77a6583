//! The replies with a volume condition of CSI before 1.13, for records of the driver's calls and of the proxied driver's.

use prost_reflect::{DescriptorPool, MessageDescriptor};

use crate::rpc::legacy::FILE_DESCRIPTOR_SET;
use crate::rpc::method::Method;

/// Adds the legacy messages to the descriptors of CSI.
pub(super) fn add_to(pool: &mut DescriptorPool) {
    pool.decode_file_descriptor_set(FILE_DESCRIPTOR_SET)
        .expect("the built-in descriptors must decode");
}

/// The legacy reply of a method, if it has one.
pub(super) fn reply(pool: &DescriptorPool, path: &str) -> Option<MessageDescriptor> {
    let method = Method::at(path)?;
    method.condition()?;
    pool.get_message_by_name(&format!("csi.legacy.{method}Response"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn legacy_replies_have_all_fields_of_current_ones_with_the_same_numbers() {
        let mut pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap();
        add_to(&mut pool);
        let mut conditions = 0;
        let methods = Method::ALL
            .into_iter()
            .filter(|method| method.condition().is_some());
        for path in methods.map(Method::path) {
            let (service, name) = path.strip_prefix('/').unwrap().split_once('/').unwrap();
            let service = pool.get_service_by_name(service).unwrap();
            let today = service.methods().find(|method| method.name() == name).unwrap();
            let mut pairs = vec![(today.output(), reply(&pool, path).unwrap())];
            while let Some((today, legacy)) = pairs.pop() {
                for field in today.fields() {
                    let same = legacy.get_field(field.number()).unwrap();
                    assert_eq!(same.name(), field.name(), "{path}");
                    assert_eq!(same.cardinality(), field.cardinality(), "{path} {}", field.name());
                    if let (Some(today), Some(legacy)) = (field.kind().as_message(), same.kind().as_message())
                    {
                        pairs.extend((today != legacy).then(|| (today.clone(), legacy.clone())));
                    }
                }
                conditions += legacy
                    .fields()
                    .filter(|field| field.name() == "volume_condition")
                    .count();
            }
        }
        assert_eq!(conditions, 3);
        assert!(reply(&pool, "/csi.v1.Identity/Probe").is_none());
    }
}
