//! Decodes maps of labels and annotations, of which we need a handful: what people and tools put there
//! besides can be large, and is not even copied.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// Decodes a map, keeping the entries whose key is one of `keys`. Null is an empty map.
pub(super) fn pick<'de, D: Deserializer<'de>>(
    deserializer: D,
    keys: impl Fn(&str) -> bool,
) -> Result<BTreeMap<String, String>, D::Error> {
    struct Picker<F>(F);

    impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Picker<F> {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(BTreeMap::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut picked = BTreeMap::new();
            while let Some(key) = map.next_key::<String>()? {
                if self.0(&key) {
                    picked.insert(key, map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(picked)
        }
    }

    deserializer.deserialize_any(Picker(keys))
}
