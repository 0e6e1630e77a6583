//! Keeps the values of secret fields out of logs and journals.
//!
//! Which fields are secret is said by the option `csi_secret` in `csi.proto` and by nothing else: the build
//! script reads it and generates the implementations of [`Secrets`] and of `Debug`. It refuses a secret field
//! that is not a string map and a message with secrets inside another message, so that nothing is missed.

use std::{collections::HashMap, fmt};

/// What stands in the place of a secret value.
pub const STRIPPED: &str = "***stripped***";

/// The type of every secret field.
pub type SecretMap = HashMap<String, String>;

/// Access to the secret fields of a message. Every top-level message has it, most with no secret field, so that
/// a journal can be written once for all of them.
pub trait Secrets {
    /// The message's full proto name, such as `csi.v1.ControllerPublishVolumeRequest`.
    const MESSAGE: &'static str;

    /// The names of the message's secret fields.
    const SECRET_FIELDS: &'static [&'static str];

    /// The content of each secret field.
    fn secrets(&self) -> impl Iterator<Item = &SecretMap>;

    /// Name and content of each secret field.
    fn secrets_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut SecretMap)>;

    /// Replaces every secret value by [`STRIPPED`]. The keys stay: they say which credentials were sent, and
    /// CSI allows them to be seen.
    fn strip_secrets(&mut self) {
        for (_, map) in self.secrets_mut() {
            for value in map.values_mut() {
                STRIPPED.clone_into(value);
            }
        }
    }
}

/// Prints a secret map with its keys in order and [`STRIPPED`] for each value.
pub(crate) struct Redacted<'a>(pub(crate) &'a SecretMap);

impl fmt::Debug for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut keys: Vec<_> = self.0.keys().collect();
        keys.sort_unstable();
        f.debug_map()
            .entries(keys.into_iter().map(|key| (key, STRIPPED)))
            .finish()
    }
}
