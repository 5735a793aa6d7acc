//! OAUTHBEARER (RFC 7628) as in PostgreSQL 18, the server's side; bytes in and values out.
//!
//! ```text
//!  Client                                                   Server
//!  SASLInitialResponse  ── n,,^Aauth=Bearer TOKEN^A^A ───▶  read()       the authenticator verifies the token
//!                       ◀─ AuthenticationOk ─────────────               valid: there is no final message
//!                       ◀─ {"status": …} ────────────────  challenge()  invalid, or there was none (discovery)
//!                       ── ^A ───────────────────────────▶  is_farewell()
//!                       ◀─ ErrorResponse ────────────────
//! ```
//!
//! Invariants:
//! - This module never decides if a token is valid.
//! - A token is equivalent to a password: no error of this module contains a part of one.
//! - An authorization identity (`n,a=name,`) is refused, as in PostgreSQL: the startup packet has named the user.

/// Name of the mechanism.
pub const MECHANISM: &str = "OAUTHBEARER";

/// Maximum length of an accepted token, in bytes. Usual ones have one or two thousand.
pub const MAX_TOKEN: usize = 16 << 10;

/// Maximum length of a client's accepted response, in bytes: a token, and a few words around it.
pub const MAX_RESPONSE: usize = MAX_TOKEN + 1024;

/// Separator of the pairs of keys and values.
const SEPARATOR: u8 = 1;

/// First response of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Response<'a> {
    /// No token: the client asks for the issuer.
    Discovery,
    /// A token with a valid form.
    Token(&'a str),
    /// A value without the form of a token. PostgreSQL treats it as an invalid token.
    NoToken,
}

/// Error in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The response violates the format of the RFC.
    #[error("malformed OAUTHBEARER message: {0}")]
    Malformed(&'static str),
    /// The response requests an unsupported feature.
    #[error("unsupported in OAUTHBEARER here: {0}")]
    Unsupported(&'static str),
    /// The response or its token is too long.
    #[error("the OAUTHBEARER message is longer than {MAX_RESPONSE} bytes, or its token than {MAX_TOKEN}")]
    TooLong,
}

impl std::fmt::Debug for Response<'_> {
    /// Formats the response without the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Response::Discovery => "Discovery",
            Response::Token(_) => "Token",
            Response::NoToken => "NoToken",
        })
    }
}

/// Parses a client's first response.
///
/// # Errors
/// Violations of the protocol according to PostgreSQL, and messages that are too long.
pub fn read(data: &[u8]) -> Result<Response<'_>, Error> {
    let malformed = |why| Err(Error::Malformed(why));
    if data.len() > MAX_RESPONSE {
        return Err(Error::TooLong);
    }
    let rest = match data {
        [] => return malformed("it is empty"),
        [b'p', ..] => return malformed("it has channel binding, which this mechanism has not"),
        [b'n' | b'y', b',', rest @ ..] => rest,
        [b'n' | b'y', ..] => return malformed("expected a comma behind the channel-binding flag"),
        _ => return malformed("expected a channel-binding flag"),
    };
    let mut rest = match rest {
        [b'a', ..] => return Err(Error::Unsupported("an authorization identity")),
        [b',', SEPARATOR, rest @ ..] => rest,
        [b',', ..] => return malformed("expected a separator of keys and values"),
        _ => return malformed("unexpected attribute"),
    };
    let mut auth = None;
    loop {
        let Some(end) = memchr::memchr(SEPARATOR, rest) else { return malformed("it does not end with a separator") };
        let (pair, behind) = (&rest[..end], &rest[end + 1..]);
        if pair.is_empty() {
            if !behind.is_empty() {
                return malformed("something follows its end");
            }
            break;
        }
        let Some(equals) = memchr::memchr(b'=', pair) else { return malformed("a key has no value") };
        let (key, value) = (&pair[..equals], &pair[equals + 1..]);
        if key.is_empty() || !key.iter().all(u8::is_ascii_alphabetic) {
            return malformed("a key is not made of letters");
        }
        if !value.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n')) {
            return malformed("a value has a character that is not allowed");
        }
        // Other keys (host, port) are ignored, as in PostgreSQL.
        if key == b"auth" && auth.replace(value).is_some() {
            return malformed("it has two values of auth");
        }
        rest = behind;
    }
    match auth {
        None => malformed("it has no value of auth"),
        Some([]) => Ok(Response::Discovery),
        Some(value) => bearer(value),
    }
}

/// Parses `Bearer TOKEN` (RFC 6750); the scheme in any case, and any number of blanks.
fn bearer(value: &[u8]) -> Result<Response<'_>, Error> {
    let scheme = value.split_first_chunk::<7>().filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"Bearer "));
    let Some((_, token)) = scheme else { return Ok(Response::NoToken) };
    let token = token.trim_ascii_start();
    if token.len() > MAX_TOKEN {
        return Err(Error::TooLong);
    }
    let letters = token.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    let good = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(byte);
    match std::str::from_utf8(token) {
        Ok(text) if letters > 0 && token[..letters].iter().all(good) => Ok(Response::Token(text)),
        _ => Ok(Response::NoToken),
    }
}

/// Returns the challenge for a client with an invalid token, or with none: the issuer, and the scope that tokens must have.
#[must_use]
pub fn challenge(issuer: &str, scope: &str) -> Vec<u8> {
    let mut out = String::from("{ \"status\": \"invalid_token\", \"openid-configuration\": ");
    quoted(&mut out, &format!("{issuer}/.well-known/openid-configuration"));
    out.push_str(", \"scope\": ");
    quoted(&mut out, scope);
    out.push_str(" }");
    out.into_bytes()
}

/// Appends a text as a JSON string.
fn quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// True for a client's response to a challenge, before it gets the error.
#[must_use]
pub fn is_farewell(data: &[u8]) -> bool {
    data == [SEPARATOR]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn responses_are_read_as_postgresql_reads_them() {
        let long = format!("n,,\x01auth=Bearer {}\x01\x01", "x".repeat(MAX_TOKEN));
        let longer = format!("n,,\x01auth=Bearer {}\x01\x01", "x".repeat(MAX_TOKEN + 1));
        let longest = format!("n,,\x01host={}\x01auth=Bearer x\x01\x01", "x".repeat(MAX_RESPONSE));
        let all = "x".repeat(MAX_TOKEN);
        for (text, expected) in [
            ("n,,\x01auth=Bearer a.b-c_d~e+f/g==\x01\x01", Ok(Response::Token("a.b-c_d~e+f/g=="))),
            ("y,,\x01auth=bEARER   t\x01\x01", Ok(Response::Token("t"))),
            ("n,,\x01host=h\x01port=5432\x01auth=Bearer t\x01\x01", Ok(Response::Token("t"))),
            (&long, Ok(Response::Token(&all))),
            ("n,,\x01auth=\x01\x01", Ok(Response::Discovery)),
            ("n,,\x01auth=Bearer \x01\x01", Ok(Response::NoToken)),
            ("n,,\x01auth=Bearer ==\x01\x01", Ok(Response::NoToken)),
            ("n,,\x01auth=Bearer a b\x01\x01", Ok(Response::NoToken)),
            ("n,,\x01auth=Bearer a=b\x01\x01", Ok(Response::NoToken)),
            ("n,,\x01auth=Basic dTpw\x01\x01", Ok(Response::NoToken)),
            ("n,a=alice,\x01auth=Bearer t\x01\x01", Err(Error::Unsupported("an authorization identity"))),
            (&longer, Err(Error::TooLong)),
            (&longest, Err(Error::TooLong)),
        ] {
            assert_eq!(read(text.as_bytes()), expected, "{:?}", &text[..text.len().min(60)]);
        }
        for text in [
            "",
            "n",
            "n,",
            "n,,",
            "x,,\x01auth=Bearer t\x01\x01",
            "p=tls-server-end-point,,\x01auth=Bearer t\x01\x01",
            "n;,\x01auth=Bearer t\x01\x01",
            "n,b,\x01auth=Bearer t\x01\x01",
            "n,,auth=Bearer t\x01\x01",
            "n,,\x01\x01",
            "n,,\x01auth=Bearer t",
            "n,,\x01auth=Bearer t\x01",
            "n,,\x01auth=Bearer t\x01\x01\x01",
            "n,,\x01auth\x01\x01",
            "n,,\x01=x\x01auth=Bearer t\x01\x01",
            "n,,\x01a1=x\x01auth=Bearer t\x01\x01",
            "n,,\x01auth=Bearer t\x01auth=Bearer t\x01\x01",
            "n,,\x01auth=Bearer t\0\x01\x01",
            "n,,\x01auth=Bearer ä\x01\x01",
        ] {
            assert!(matches!(read(text.as_bytes()), Err(Error::Malformed(_))), "{text:?}");
        }
    }

    #[test]
    fn a_challenge_says_who_gives_tokens() {
        let text = challenge("https://i/\"x", "openid\\ y");
        assert_eq!(
            String::from_utf8_lossy(&text),
            r#"{ "status": "invalid_token", "openid-configuration": "https://i/\"x/.well-known/openid-configuration", "scope": "openid\\ y" }"#
        );
        assert!(is_farewell(b"\x01") && !is_farewell(b"") && !is_farewell(b"\x01\x01"));
    }

    #[test]
    fn no_token_is_shown() {
        assert_eq!(format!("{:?}", read(b"n,,\x01auth=Bearer s3cret\x01\x01")), "Ok(Token)");
    }

    proptest! {
        #[test]
        fn what_is_read_was_written(token in "[A-Za-z0-9._~+/-]{1,200}={0,2}", more in "[a-z]{1,8}") {
            prop_assume!(more != "auth");
            let text = format!("n,,\x01{more}=x\x01auth=Bearer {token}\x01\x01");
            prop_assert_eq!(read(text.as_bytes()), Ok(Response::Token(&token)));
        }

        #[test]
        fn any_bytes_are_an_error_or_a_token_of_theirs(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(1), Just(b'=')], 0..300),
        ) {
            for bytes in [bytes.clone(), [b"n,,\x01auth=Bearer ", &bytes[..], b"\x01\x01"].concat()] {
                if let Ok(Response::Token(token)) = read(&bytes) {
                    prop_assert!(!token.is_empty() && !token.contains(['\x01', '\0', ' ']));
                    prop_assert!(memchr::memmem::find(&bytes, token.as_bytes()).is_some());
                }
            }
        }
    }
}
