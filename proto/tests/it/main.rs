//! What other crates rely on: secrets stay out of sight, and the wire is that of CSI 1.13.

mod registration;
mod secret;
mod wire;
