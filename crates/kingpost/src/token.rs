//! Tokens: 32 random bytes as text; configurations hold their SHA-256.

use crate::error::Failure;

/// Makes a new token and its hash in hexadecimal.
pub(crate) fn make() -> Result<(String, String), Failure> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
    let token = format!("kp_{}", hex(&random));
    let hash = hash(&token);
    Ok((token, hash))
}

/// Returns a token's hash in hexadecimal.
pub(crate) fn hash(token: &str) -> String {
    hex(&registry::api::hash_of(token))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
