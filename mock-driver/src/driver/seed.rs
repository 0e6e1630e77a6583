//! The seed of all random choices.

use super::settings::OpenError;
use crate::fault::Seed;

/// The configured seed, or a random one.
pub(super) fn seed_of_run(given: Option<u64>) -> Result<Seed, OpenError> {
    let entropy = random()?;
    let by_chance = u32::from_le_bytes([entropy[0], entropy[1], entropy[2], entropy[3]]);
    Ok(Seed(given.unwrap_or(u64::from(by_chance))))
}

/// Random bytes from the kernel.
pub(super) fn random() -> Result<[u8; 16], OpenError> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())
            .map_err(|error| OpenError::Random(error.into()))?;
    }
    Ok(bytes)
}
