//! Comma-separated texts of SCRAM messages. All input comes from the peer.

use base64::Engine as _;

use super::{BASE64, Error, KEY_LEN, MAX_MESSAGE};

/// Rest of a comma-separated list of `letter=value`.
pub(super) struct Attributes<'a>(pub(super) &'a str);

impl<'a> Attributes<'a> {
    /// Returns the value of the next attribute, whose name must be `letter`.
    pub(super) fn take(&mut self, letter: char) -> Result<&'a str, Error> {
        let (found, value) = self.next()?;
        if found != letter {
            return Err(Error::Malformed("an attribute is missing or not in its place"));
        }
        Ok(value)
    }

    fn next(&mut self) -> Result<(char, &'a str), Error> {
        let (attribute, rest) = self.0.split_once(',').unwrap_or((self.0, ""));
        let (letter, value) = attribute.split_once('=').ok_or(Error::Malformed("an attribute has no value"))?;
        match letter.as_bytes() {
            [letter] if letter.is_ascii_alphabetic() => {
                self.0 = rest;
                Ok((char::from(*letter), value))
            }
            _ => Err(Error::Malformed("an attribute's name is not one letter")),
        }
    }

    pub(super) fn refuse_mandatory_extension(&self) -> Result<(), Error> {
        if self.0.starts_with("m=") { Err(Error::Unsupported("a mandatory extension")) } else { Ok(()) }
    }

    /// Skips optional extensions at the end: their format is checked, their meaning is ignored.
    pub(super) fn skip_extensions(&mut self) -> Result<(), Error> {
        while !self.0.is_empty() {
            self.next()?;
        }
        Ok(())
    }
}

pub(super) fn text(message: &[u8]) -> Result<&str, Error> {
    if message.len() > MAX_MESSAGE {
        return Err(Error::Malformed("the message is longer than 4096 bytes"));
    }
    let text = std::str::from_utf8(message).map_err(|_| Error::Malformed("the message is not UTF-8"))?;
    if text.contains('\0') { Err(Error::Malformed("the message has a zero byte")) } else { Ok(text) }
}

/// Checks for printable ASCII, as the RFC requires. (Splitting at commas has removed any comma.)
pub(super) fn check_nonce(nonce: &str) -> Result<(), Error> {
    if nonce.is_empty() || !nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::Malformed("the nonce is empty or not printable"));
    }
    Ok(())
}

pub(super) fn parse_iterations(digits: &[u8]) -> Result<u32, Error> {
    // `u32::from_str` would accept a plus sign.
    let bounded = (1..=7).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    if !bounded {
        return Err(Error::Malformed("the iteration count is not a number within 1 and 1000000"));
    }
    Ok(digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0')))
}

pub(super) fn decode(encoded: &[u8], otherwise: &'static str) -> Result<Vec<u8>, Error> {
    BASE64.decode(encoded).map_err(|_| Error::Malformed(otherwise))
}

pub(super) fn decode_key(encoded: &[u8], otherwise: &'static str) -> Result<[u8; KEY_LEN], Error> {
    decode(encoded, otherwise)?.try_into().map_err(|_| Error::Malformed(otherwise))
}
