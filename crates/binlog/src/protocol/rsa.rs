//! Encryption of a password with a server's RSA key: RSAES-OAEP with SHA-1 and MGF1, as OpenSSL's default padding (RFC 8017, section 7.1.1).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use num_bigint::BigUint;
use sha1::{Digest, Sha1};

/// Bytes of the random seed: those of a SHA-1.
pub(crate) const SEED: usize = 20;
/// Longest modulus, in bytes: that of a key of 16384 bits.
const LONGEST: usize = 2048;

/// Encrypts `message` with a public key in PEM. `seed`: random bytes, for this encryption only.
///
/// # Errors
/// The reason why the key is of no use.
pub(crate) fn encrypt(pem: &[u8], message: &[u8], seed: &[u8; SEED]) -> Result<Vec<u8>, &'static str> {
    let PublicKey { modulus, exponent } = parse(pem).ok_or("its answer is not an RSA key in PEM")?;
    let length = modulus.len();
    let room = length.checked_sub(2 * SEED + 2).filter(|_| length <= LONGEST).ok_or("the key has a wrong length")?;
    let padding = room.checked_sub(message.len()).ok_or("the password is too long for the key")?;
    let mut data = Sha1::digest(b"").to_vec();
    data.resize(SEED + padding, 0);
    data.push(1);
    data.extend_from_slice(message);
    mask(&mut data, seed);
    let mut masked_seed = seed.to_vec();
    mask(&mut masked_seed, &data);
    let encoded = BigUint::from_bytes_be(&[&[0][..], &masked_seed, &data].concat());
    let encrypted = encoded.modpow(&BigUint::from_bytes_be(&exponent), &BigUint::from_bytes_be(&modulus)).to_bytes_be();
    let mut out = vec![0; length.saturating_sub(encrypted.len())];
    out.extend_from_slice(&encrypted);
    Ok(out)
}

/// Applies MGF1 of `seed` to `data`.
fn mask(data: &mut [u8], seed: &[u8]) {
    for (counter, part) in data.chunks_mut(SEED).enumerate() {
        let mask = Sha1::new().chain_update(seed).chain_update((counter as u32).to_be_bytes()).finalize();
        part.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}

/// Takes the content of a DER element with this tag.
fn element<'a>(rest: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let [found, first, behind @ ..] = *rest else { return None };
    let (length, behind) = match first {
        0..=0x7f => (usize::from(*first), behind),
        0x81..=0x83 => {
            let (bytes, behind) = behind.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), behind)
        }
        _ => return None,
    };
    let (content, behind) = behind.split_at_checked(length)?;
    *rest = behind;
    (*found == tag).then_some(content)
}

/// A public key: big-endian numbers without leading zeroes.
struct PublicKey {
    modulus: Vec<u8>,
    exponent: Vec<u8>,
}

/// Parses a `PUBLIC KEY` in PEM.
fn parse(pem: &[u8]) -> Option<PublicKey> {
    const SEQUENCE: u8 = 0x30;
    const BITS: u8 = 0x03;
    const INTEGER: u8 = 0x02;
    let text = std::str::from_utf8(pem).ok()?;
    let (_, text) = text.split_once("-----BEGIN PUBLIC KEY-----")?;
    let (text, _) = text.split_once("-----END PUBLIC KEY-----")?;
    let text: String = text.chars().filter(|character| !character.is_ascii_whitespace()).collect();
    let der = STANDARD.decode(text).ok()?;
    let mut key = element(&mut &der[..], SEQUENCE)?;
    element(&mut key, SEQUENCE)?;
    // The number of unused bits, which is 0, comes first.
    let mut bits = element(&mut key, BITS)?.strip_prefix(&[0])?;
    let mut numbers = element(&mut bits, SEQUENCE)?;
    let mut number = || -> Option<Vec<u8>> {
        let number = element(&mut numbers, INTEGER)?;
        let number = number.strip_prefix(&[0]).unwrap_or(number);
        number.first().filter(|first| **first != 0).map(|_| number.to_vec())
    };
    Some(PublicKey { modulus: number()?, exponent: number()? })
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// A key made for this test.
    pub(crate) const PEM: &str = "-----BEGIN PUBLIC KEY-----\n\
        MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAsMo7SEqEZosee3WbfHyM\n\
        zIDBQFAO1oWkp4nKGiRMbTqpWBtzOpojQ67Bla3z61lKbYNj9dhm26Qthf/DWs3O\n\
        AlJuoSpPRUnfEP/LpiMBPzxMEA7w48aVablstTWyIRXkcUaX0lt2dtk3KpcSVtb7\n\
        HI5ZSdOZ5gY15Vm1mL4H1K9Ewt1g1Ev/DJLcBEPzmXsoTY329twBcZFCf987KUwI\n\
        wA+jOP6H0h9dcuXuTGmDv4TYWb+C1Ov9o/GIWJrnx7nZiAGkK2AzLitmOczzI6xc\n\
        WO0G2PNsNOU7qlhWi4LdWE0fMXylDD3vxrTIAa1hjSEGepPNZ40fr9XXy8Rn8NEW\n\
        1wIDAQAB\n\
        -----END PUBLIC KEY-----\n";
    /// Private exponent of the key.
    const PRIVATE: &str = "4856776b5d124fe31cd5e78977a67ef62eb8e457ddba6974b618eb594700feb0c21a0b215b1936d4baecfb11f27c9a4c9a02e923ef28273746694dfde169d4a1\
        9e9925d8ea16afe356515442e68fdc10100f820d8f25f27d10222b038d9f7c15bd43e55b6d914b9015c2978e297a4dc5a179677bedbcf14d9c4ad8c366fe4d47\
        bbb29ac5518edcc69ea8edbe5b8cbc9c3fbedb19cd57d7e3e576b7a503d3b10c5608aa2b3adf883cecf058784c5784bf7cb0dac8b45d9e06374ae990a6dffb65\
        16e3e7f29051a4a76532b78b0c7ba72a46c291c892e5319c3a88355e4e4c6e6ab9db83dc1c3e131fc315389a95b6b3a60319238df0b6df5c8d7c4e6dfcddaa1";

    /// The private key takes the encryption off again.
    #[test]
    fn what_was_encrypted_is_found_again() {
        let modulus = parse(PEM.as_bytes()).unwrap().modulus;
        assert_eq!(modulus.len(), 256);
        let encrypted = encrypt(PEM.as_bytes(), b"a secret\0", &[9; SEED]).unwrap();
        let private = BigUint::parse_bytes(PRIVATE.as_bytes(), 16).unwrap();
        let encoded = BigUint::from_bytes_be(&encrypted).modpow(&private, &BigUint::from_bytes_be(&modulus));
        let encoded = encoded.to_bytes_be();
        // The leading zero is not there.
        let (seed, data) = encoded.split_at(SEED);
        let (mut seed, mut data) = (seed.to_vec(), data.to_vec());
        mask(&mut seed, &data);
        assert_eq!(seed, [9; SEED]);
        mask(&mut data, &seed);
        assert_eq!(data[..SEED], Sha1::digest(b"")[..]);
        let message = data[SEED..].iter().position(|byte| *byte == 1).unwrap();
        assert_eq!(&data[SEED + message + 1..], b"a secret\0");
        assert!(encrypt(PEM.as_bytes(), &[1; 215], &[9; SEED]).is_err(), "too long");
    }

    proptest! {
        #[test]
        fn no_key_makes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..60), raw: bool) {
            let pem = match raw {
                true => bytes,
                false => {
                    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----", STANDARD.encode(bytes)).into_bytes()
                }
            };
            let _ = encrypt(&pem, b"secret", &[7; SEED]);
        }
    }
}
