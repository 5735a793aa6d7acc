//! Tokens: 32 random bytes as text; configurations hold their SHA-256.

use crate::error::Failure;

/// Makes a new token and its hash in hexadecimal.
pub fn make() -> Result<(String, String), Failure> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| Failure::runtime(format!("no random numbers: {error}")))?;
    let token = format!("kp_{}", hex(&random));
    let hash = hash(&token);
    Ok((token, hash))
}

/// Returns a token's hash in hexadecimal.
pub fn hash(token: &str) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
