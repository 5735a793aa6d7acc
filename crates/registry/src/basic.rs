//! Basic authentication of HTTP requests that the registry sends.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Returns the content of `Authorization` for a user and a password.
pub fn basic_login(user: impl AsRef<[u8]>, password: impl AsRef<[u8]>) -> String {
    format!("Basic {}", STANDARD.encode([user.as_ref(), b":", password.as_ref()].concat()))
}
