//! Tokens: 32 random bytes in text, of which configurations hold the SHA-256.

use crate::error::Failure;

/// A new token and its hash in hexadecimal.
pub(crate) fn make() -> Result<(String, String), Failure> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
    let token = format!("kp_{}", hex(&random));
    let hash = hash(&token);
    Ok((token, hash))
}

/// A token's hash in hexadecimal.
pub(crate) fn hash(token: &str) -> String {
    hex(&registry::api::hash_of(token))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
