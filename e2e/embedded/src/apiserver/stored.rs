//! Versions of objects in the store, and changes between them.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;

use super::object::{self, Object};

/// Key of an object: `namespace/name`, or the name of an object without namespace. Ordered as in etcd.
pub(crate) type Key = Arc<str>;

/// A version of an object.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The parsed object; None after [`Self::keep_json`].
    object: Mutex<Option<Arc<Object>>>,
    pub(crate) revision: u64,
    /// Whether its key is new in the store.
    pub(crate) is_first: bool,
    json: OnceLock<Bytes>,
}

/// The result of a write.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) revision: u64,
    /// The version before; `None` for a creation.
    pub(crate) before: Option<Arc<Stored>>,
    /// The version after; for a deletion the last version under the deletion's revision.
    pub(crate) after: Arc<Stored>,
    pub(crate) is_deletion: bool,
}

// === impl Stored ===

impl Stored {
    pub(crate) fn new(mut object: Object, revision: u64) -> Self {
        object::set(&mut object, "/metadata/resourceVersion", revision.to_string());
        Self {
            revision,
            ..Self::unsaved(object)
        }
    }

    /// An object that is not in the store: the result of a dry run, or a removed object.
    pub(crate) fn unsaved(object: Object) -> Self {
        Self {
            object: Mutex::new(Some(Arc::new(object))),
            revision: 0,
            is_first: false,
            json: OnceLock::new(),
        }
    }

    /// The object, without `apiVersion` and `kind`.
    pub(crate) fn object(&self) -> Arc<Object> {
        let parse = || serde_json::from_slice(self.json()).expect("the JSON of an object must be valid");
        let parsed = self.parsed().clone();
        parsed.unwrap_or_else(|| Arc::new(parse()))
    }

    /// Keeps only the JSON, which takes much less memory than the parsed object.
    pub(crate) fn keep_json(&self) {
        self.json();
        self.parsed().take();
    }

    fn parsed(&self) -> MutexGuard<'_, Option<Arc<Object>>> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_parsed(&self) -> bool {
        self.parsed().is_some()
    }

    /// The same object at another revision.
    pub(crate) fn at_revision(&self, revision: u64) -> Self {
        Self::new(Object::clone(&self.object()), revision)
    }

    /// The object as JSON, without `apiVersion` and `kind`; serialized once.
    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| to_json(&self.object()))
    }
}

/// Serializes an object.
pub(crate) fn to_json(object: &Object) -> Bytes {
    serde_json::to_vec(object)
        .expect("an object must be serializable")
        .into()
}

/// Key of an object of a table.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}
