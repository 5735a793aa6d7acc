//! The packets before the first message: a length and a code, without a tag.

use crate::payload::cstr;
use crate::{Severity, Sqlstate, message};

/// Longest startup packet that PostgreSQL accepts: `MAX_STARTUP_PACKET_LENGTH`, and the length itself.
pub const MAX_STARTUP: usize = 10_004;

/// Protocol 3.0.
pub const V3_0: u32 = 3 << 16;
/// Protocol 3.2: cancel keys of variable length.
pub const V3_2: u32 = 3 << 16 | 2;

pub(crate) const SSL: u32 = 1234 << 16 | 5679;
const GSS: u32 = 1234 << 16 | 5680;
const CANCEL: u32 = 1234 << 16 | 5678;

/// A packet before the first message.
#[derive(Debug, PartialEq, Eq)]
pub enum Startup<'a> {
    /// SSLRequest: asks for TLS. The answer is `S` or `N`.
    Ssl,
    /// GSSENCRequest: asks for GSSAPI encryption. The answer is `G` or `N`.
    Gss,
    /// CancelRequest: asks to cancel the statement that another connection runs.
    Cancel {
        /// The process id in the other connection's `BackendKeyData`.
        pid: u32,
        /// The secret key there.
        secret: &'a [u8],
    },
    /// StartupMessage: starts a session.
    Login {
        /// The protocol version that the client asks for: major in the high 16 bits, minor in the low ones.
        version: u32,
        /// Names and values, each ended by NUL; see [`parameters`].
        parameters: &'a [u8],
    },
}

/// Reason for which a startup packet is refused. [`StartupError::write`] writes the answer to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StartupError {
    /// Too short or too long. Packets of other protocols usually end up here, too: Terminate, HTTP, TLS.
    #[error("invalid length of startup packet: {0} bytes, expected 8 to {MAX_STARTUP}")]
    Length(u32),
    /// Not protocol 3, or a request for encryption that comes again.
    #[error("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2")]
    Version {
        /// The version asked for.
        major: u16,
        /// The version asked for.
        minor: u16,
    },
    /// The contents do not end where the format says.
    #[error("invalid startup packet layout: expected terminator as last byte")]
    Layout,
}

impl StartupError {
    /// Appends PostgreSQL's answer. A peer whose packet has no valid length gets none: it may not speak the protocol. A
    /// peer of protocol 2 or older gets an error in the form that it can read.
    pub fn write(self, out: &mut Vec<u8>) {
        match self {
            StartupError::Length(_) => {}
            StartupError::Version { major: ..=2, .. } if self != version(0) => {
                out.extend_from_slice(format!("EFATAL:  {self}\n\0").as_bytes())
            }
            StartupError::Version { .. } => {
                message::error(out, Severity::Fatal, Sqlstate::FEATURE_NOT_SUPPORTED, &self.to_string(), "");
            }
            StartupError::Layout => {
                message::error(out, Severity::Fatal, Sqlstate::PROTOCOL_VIOLATION, &self.to_string(), "");
            }
        }
    }
}

impl Startup<'_> {
    /// Returns the error for a request for encryption that PostgreSQL does not read as one, because it comes again or the connection is encrypted:
    /// its code is then a protocol version. `None` for other packets.
    #[must_use]
    pub fn as_version(&self) -> Option<StartupError> {
        let code = match self {
            Startup::Ssl => SSL,
            Startup::Gss => GSS,
            Startup::Cancel { .. } | Startup::Login { .. } => return None,
        };
        Some(version(code))
    }
}

fn version(code: u32) -> StartupError {
    StartupError::Version { major: (code >> 16) as u16, minor: (code & 0xffff) as u16 }
}

/// Reads the packet at the start of `bytes`: gives the packet and its length in bytes, or `None` if it is incomplete.
pub fn read(bytes: &[u8]) -> Result<Option<(Startup<'_>, usize)>, StartupError> {
    let Some(length) = bytes.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length);
    let total = length as usize;
    if !(8..=MAX_STARTUP).contains(&total) {
        return Err(StartupError::Length(length));
    }
    let Some(packet) = bytes.get(4..total) else { return Ok(None) };
    let Some((code, rest)) = packet.split_first_chunk::<4>() else { return Err(StartupError::Layout) };
    let startup = match u32::from_be_bytes(*code) {
        // PostgreSQL does not look behind the code.
        SSL => Startup::Ssl,
        GSS => Startup::Gss,
        CANCEL => {
            let (pid, secret) = rest.split_first_chunk::<4>().ok_or(StartupError::Length(length))?;
            if !(4..=256).contains(&secret.len()) {
                return Err(StartupError::Length(length));
            }
            Startup::Cancel { pid: u32::from_be_bytes(*pid), secret }
        }
        version if version >> 16 == 3 => {
            if parameters(rest).last() != Some(Err(End::Whole)) {
                return Err(StartupError::Layout);
            }
            Startup::Login { version, parameters: rest }
        }
        code => return Err(version(code)),
    };
    Ok(Some((startup, total)))
}

/// End of a list of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// An empty name, as the format requires.
    Whole,
    /// Any other end.
    Broken,
}

/// Returns the parameters of a login packet, in order; the last item says how the list ended.
pub fn parameters(mut list: &[u8]) -> impl Iterator<Item = Result<(&[u8], &[u8]), End>> {
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        if list == [0] {
            ended = true;
            return Some(Err(End::Whole));
        }
        let pair = cstr(list).filter(|(name, _)| !name.is_empty()).and_then(|(name, rest)| {
            let (value, rest) = cstr(rest)?;
            Some((name, value, rest))
        });
        match pair {
            Some((name, value, rest)) => {
                list = rest;
                Some(Ok((name, value)))
            }
            None => {
                ended = true;
                Some(Err(End::Broken))
            }
        }
    })
}

/// Splits the startup parameter `options` as the server does: into words at white space, where a backslash escapes the
/// next character. `-c name=value`, `-cname=value` and `--name=value` become pairs; dashes in a name become
/// underscores. `Err`: the word that has none of these forms.
pub fn options(value: &str) -> Result<Vec<(String, String)>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        if c.is_ascii_whitespace() {
            words.extend(word.take());
        } else {
            let c = if c == '\\' { chars.next().unwrap_or('\\') } else { c };
            word.get_or_insert_default().push(c);
        }
    }
    words.extend(word);
    let mut pairs = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let setting = if word == "-c" {
            words.next().ok_or(word)?
        } else if let Some(rest) = word.strip_prefix("--").or_else(|| word.strip_prefix("-c")) {
            rest.to_owned()
        } else {
            return Err(word);
        };
        match setting.split_once('=') {
            Some((name, value)) if !name.is_empty() => pairs.push((name.replace('-', "_"), value.to_owned())),
            _ => return Err(setting),
        }
    }
    Ok(pairs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn packet(code: u32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = ((8 + rest.len()) as u32).to_be_bytes().to_vec();
        bytes.extend(code.to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn packets() {
        assert_eq!(read(&packet(SSL, b"")), Ok(Some((Startup::Ssl, 8))));
        assert_eq!(read(&packet(GSS, b"")), Ok(Some((Startup::Gss, 8))));
        assert_eq!(read(&packet(SSL, b"x")), Ok(Some((Startup::Ssl, 9))));
        assert_eq!(
            read(&packet(CANCEL, b"\0\0\0\x07abcd")),
            Ok(Some((Startup::Cancel { pid: 7, secret: b"abcd" }, 16)))
        );
        assert_eq!(read(&packet(CANCEL, b"\0\0\0\x07abc")), Err(StartupError::Length(15)));
        let login = packet(V3_0, b"user\0u\0database\0d\0\0");
        assert_eq!(
            read(&login),
            Ok(Some((Startup::Login { version: V3_0, parameters: b"user\0u\0database\0d\0\0" }, login.len())))
        );
        for cut in 0..login.len() {
            assert_eq!(read(&login[..cut]), Ok(None), "{cut}");
        }
        assert_eq!(read(&packet(V3_0, b"user\0u\0")), Err(StartupError::Layout));
        assert_eq!(read(&packet(V3_0, b"user\0u\0\0\0")), Err(StartupError::Layout));
        assert_eq!(read(&packet(2 << 16, b"")), Err(StartupError::Version { major: 2, minor: 0 }));
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), Err(StartupError::Length(0x4745_5420)));
        assert_eq!(read(b"\x16\x03\x01\x02\0\x01"), Err(StartupError::Length(0x1603_0102)));
    }

    #[test]
    fn option_words() {
        let pairs = |s| options(s).unwrap();
        let own = |list: &[(&str, &str)]| -> Vec<(String, String)> {
            list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
        };
        assert_eq!(pairs(""), vec![]);
        assert_eq!(pairs("-c geqo=off"), own(&[("geqo", "off")]));
        assert_eq!(pairs(" -cgeqo=off --statement-timeout=5s "), own(&[("geqo", "off"), ("statement_timeout", "5s")]));
        assert_eq!(pairs(r"-c search_path=a,\ b"), own(&[("search_path", "a, b")]));
        assert_eq!(options("-d 5"), Err("-d".to_owned()));
        assert_eq!(options("-c"), Err("-c".to_owned()));
        assert_eq!(options("-c geqo"), Err("geqo".to_owned()));
    }
}
