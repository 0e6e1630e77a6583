//! Inline volumes (CSI ephemeral volumes): kubelet marks them in the volume context, which also has the attributes of the
//! pod's spec.

use crate::array::quantity;
use crate::node::Map;
use crate::rpc::validate::Invalid;

/// Kubelet's key.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// The attribute of the pod's spec.
const SIZE: &str = "size";

const MIB: u64 = 1 << 20;

/// The default size: enough for every filesystem, in a sparse file.
const DEFAULT_BYTES: u64 = 1024 * MIB;

/// The size of the smallest filesystem, and of the largest volume.
const BOUNDS: std::ops::RangeInclusive<u64> = MIB..=1024 * 1024 * MIB;

/// The size in bytes of an inline volume, from the volume context; `None` for other volumes.
pub(super) fn read(context: &Map) -> Result<Option<u64>, Invalid> {
    if context.get(EPHEMERAL).is_none_or(|mark| mark != "true") {
        return Ok(None);
    }
    let bytes = match context.get(SIZE) {
        None => DEFAULT_BYTES,
        Some(text) => quantity::bytes(text)
            .filter(|bytes| BOUNDS.contains(bytes))
            .ok_or_else(|| {
                Invalid::new(
                    "volume_context[size]",
                    format!("must be a quantity from 1Mi to 1Ti, is \"{text}\""),
                )
            })?,
    };
    Ok(Some(bytes.next_multiple_of(512)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_context(size: Option<&str>) -> Map {
        let mut context = Map::from([(EPHEMERAL.to_owned(), "true".to_owned())]);
        context.extend(size.map(|size| (SIZE.to_owned(), size.to_owned())));
        context
    }

    #[test]
    fn size_comes_from_the_attributes() {
        // (attribute, bytes or none for a refusal)
        let table = [
            (None, Some(1 << 30)),
            (Some("64Mi"), Some(64 << 20)),
            (Some("2G"), Some(2_000_000_000)),
            (Some("1048577"), Some(1_049_088)),
            (Some("1k"), None),
            // As in flags: a valid quantity that is out of bounds.
            (Some("1Pi"), None),
            (Some("2Ti"), None),
            (Some("-1Mi"), None),
            (Some("1.5Gi"), None),
            (Some("much"), None),
            (Some(""), None),
            (Some("99999999999999999999Ti"), None),
        ];
        for (size, expected) in table {
            match expected {
                Some(bytes) => assert_eq!(read(&mk_context(size)).unwrap().unwrap(), bytes, "{size:?}"),
                None => assert!(read(&mk_context(size)).is_err(), "{size:?}"),
            }
        }
        assert!(read(&Map::new()).unwrap().is_none(), "all others are not inline");
    }
}
