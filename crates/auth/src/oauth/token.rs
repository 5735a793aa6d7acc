//! Verification of a JSON Web Token (RFC 7519): its signature, by an issuer's keys, and its claims. No I/O.
//!
//! Invariants (RFC 8725):
//! - The key decides which algorithms it can be used with, never the token alone. Only asymmetric algorithms are supported: `none` and those with a
//!   shared secret (HS256 …) are not, so a public key is never used as a secret.
//! - A token names its key by `kid`; keys in the token, or addresses of keys (`jwk`, `jku`, `x5c`, `x5u`), are ignored.
//! - The claims of a token are used only after its signature was verified.
//! - No error contains a part of a token.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::Value;

/// Most keys of an issuer.
pub(super) const MOST_KEYS: usize = 100;
/// Allowed difference of the issuer's and this machine's clocks, in seconds.
const LEEWAY: u64 = 30;
/// Type (`typ`) of an access token or an ID token, in small letters.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// The reason why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Bad {
    #[error("it is no JSON Web Token in three parts")]
    Format,
    #[error("its algorithm (alg) is not one of RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA")]
    Algorithm,
    #[error("its type (typ) is not that of an access token or an ID token")]
    Type,
    #[error("it has extensions that have to be understood (crit)")]
    Critical,
    #[error("the issuer has no key of its name (kid) for its algorithm")]
    NoKey,
    #[error("its signature is not by the issuer's key")]
    Signature,
    #[error("it is of another issuer (iss)")]
    Issuer,
    #[error("it is for others (aud, proxy.oauth.audience)")]
    Audience,
    #[error("it has expired (exp), or does not say when it will")]
    Expired,
    #[error("it is not valid yet (nbf)")]
    Early,
    #[error("it lacks a scope that the rule asks for")]
    Scope,
    #[error("it does not say who its bearer is (proxy.oauth.claim)")]
    Nobody,
    #[error("its address of mail is not verified (email_verified)")]
    Mail,
    #[error("it does not name the user (proxy.oauth.users_claim)")]
    User,
}

/// Requirements on a token's claims.
pub(super) struct Demands<'a> {
    pub(super) issuer: &'a str,
    pub(super) audience: &'a [String],
    pub(super) scope: &'a str,
    /// Seconds since 1970.
    pub(super) now: u64,
}

/// A supported algorithm.
#[derive(Clone, Copy)]
enum Algorithm {
    Rsa(&'static RsaParameters),
    Other(&'static dyn VerificationAlgorithm, Kind),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    P256,
    P384,
    Ed25519,
}

impl Algorithm {
    fn of(name: &str) -> Option<Algorithm> {
        Some(match name {
            "RS256" => Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            "RS384" => Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            "RS512" => Algorithm::Rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            "PS256" => Algorithm::Rsa(&signature::RSA_PSS_2048_8192_SHA256),
            "PS384" => Algorithm::Rsa(&signature::RSA_PSS_2048_8192_SHA384),
            "PS512" => Algorithm::Rsa(&signature::RSA_PSS_2048_8192_SHA512),
            "ES256" => Algorithm::Other(&signature::ECDSA_P256_SHA256_FIXED, Kind::P256),
            "ES384" => Algorithm::Other(&signature::ECDSA_P384_SHA384_FIXED, Kind::P384),
            "EdDSA" | "Ed25519" => Algorithm::Other(&signature::ED25519, Kind::Ed25519),
            _ => return None,
        })
    }
}

/// A public key of an issuer.
struct Key {
    id: Option<String>,
    /// The only allowed algorithm, if the key names one.
    algorithm: Option<String>,
    material: Material,
}

enum Material {
    Rsa { n: Vec<u8>, e: Vec<u8> },
    Other(Kind, Vec<u8>),
}

impl Key {
    /// Parses a JSON Web Key (RFC 7517); `None` for one that verifies no signature here.
    fn read(key: &Value) -> Option<Key> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let bytes = |name: &str| text(name).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let verifies = |operations: &Value| {
            operations.as_array().is_some_and(|list| list.iter().any(|operation| operation == "verify"))
        };
        if !key.get("key_ops").is_none_or(verifies) {
            return None;
        }
        let point = || Some([vec![4], bytes("x")?, bytes("y")?].concat());
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => Material::Rsa { n: bytes("n")?, e: bytes("e")? },
            ("EC", Some("P-256")) => Material::Other(Kind::P256, point()?),
            ("EC", Some("P-384")) => Material::Other(Kind::P384, point()?),
            ("OKP", Some("Ed25519")) => Material::Other(Kind::Ed25519, bytes("x")?),
            _ => return None,
        };
        Some(Key { id: text("kid").map(str::to_owned), algorithm: text("alg").map(str::to_owned), material })
    }

    fn is_for(&self, name: &str, algorithm: Algorithm) -> bool {
        self.algorithm.as_deref().is_none_or(|own| own == name)
            && match (&self.material, algorithm) {
                (Material::Rsa { .. }, Algorithm::Rsa(_)) => true,
                (Material::Other(own, _), Algorithm::Other(_, kind)) => *own == kind,
                _ => false,
            }
    }

    fn has_signed(&self, algorithm: Algorithm, signed: &[u8], signature: &[u8]) -> bool {
        match (&self.material, algorithm) {
            (Material::Rsa { n, e }, Algorithm::Rsa(parameters)) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, signed, signature).is_ok()
            }
            (Material::Other(own, key), Algorithm::Other(algorithm, kind)) if *own == kind => {
                UnparsedPublicKey::new(algorithm, key).verify(signed, signature).is_ok()
            }
            _ => false,
        }
    }
}

/// The keys of an issuer.
pub(super) struct Keys(Vec<Key>);

impl Keys {
    /// Parses a set of keys (JWKS). Keys of no use here are skipped.
    ///
    /// # Errors
    /// The fault of the set.
    pub(super) fn read(text: &[u8]) -> Result<Keys, &'static str> {
        let set: Value = serde_json::from_slice(text).map_err(|_| "it is no JSON")?;
        let keys = set.get("keys").and_then(Value::as_array).ok_or("it has no list of keys")?;
        if keys.len() > MOST_KEYS {
            return Err("it has more than 100 keys");
        }
        let keys: Vec<Key> = keys.iter().filter_map(Key::read).collect();
        if keys.is_empty() { Err("it has no key that verifies signatures here") } else { Ok(Keys(keys)) }
    }

    /// Returns the key for a token: that of its name; for a token without a name the only one of its algorithm.
    fn find(&self, head: &Head<'_>) -> Option<&Key> {
        let mut fitting = self.0.iter().filter(|key| key.is_for(&head.name, head.algorithm));
        match &head.key {
            Some(id) => fitting.find(|key| key.id.as_ref() == Some(id)),
            None => fitting.next().filter(|_| fitting.next().is_none()),
        }
    }

    /// True if the set has a key for the token.
    pub(super) fn has(&self, head: &Head<'_>) -> bool {
        self.find(head).is_some()
    }
}

/// A token before its verification. There is no `Debug`: it is a secret.
pub(super) struct Head<'a> {
    name: String,
    algorithm: Algorithm,
    key: Option<String>,
    signed: &'a str,
    claims: &'a str,
    signature: Vec<u8>,
}

impl<'a> Head<'a> {
    pub(super) fn read(token: &'a str) -> Result<Head<'a>, Bad> {
        let (signed, signature) = token.rsplit_once('.').ok_or(Bad::Format)?;
        let (head, claims) = signed.split_once('.').ok_or(Bad::Format)?;
        let decoded = URL_SAFE_NO_PAD.decode(head).map_err(|_| Bad::Format)?;
        let head: Value = serde_json::from_slice(&decoded).map_err(|_| Bad::Format)?;
        let name = head.get("alg").and_then(Value::as_str).ok_or(Bad::Algorithm)?;
        let algorithm = Algorithm::of(name).ok_or(Bad::Algorithm)?;
        if head.get("crit").is_some() {
            return Err(Bad::Critical);
        }
        let known = |kind: &Value| kind.as_str().is_some_and(|kind| TYPES.contains(&&*kind.to_ascii_lowercase()));
        if !head.get("typ").is_none_or(known) {
            return Err(Bad::Type);
        }
        let key = match head.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err(Bad::Format),
        };
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Bad::Format)?;
        Ok(Head { name: name.to_owned(), algorithm, key, signed, claims, signature })
    }

    /// Verifies the token and returns its claims.
    pub(super) fn verify(&self, keys: &Keys, demands: &Demands<'_>) -> Result<Claims, Bad> {
        let key = keys.find(self).ok_or(Bad::NoKey)?;
        if !key.has_signed(self.algorithm, self.signed.as_bytes(), &self.signature) {
            return Err(Bad::Signature);
        }
        let decoded = URL_SAFE_NO_PAD.decode(self.claims).map_err(|_| Bad::Format)?;
        let claims: Value = serde_json::from_slice(&decoded).map_err(|_| Bad::Format)?;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        if text("iss") != Some(demands.issuer) {
            return Err(Bad::Issuer);
        }
        if !names(claims.get("aud")).any(|aud| demands.audience.iter().any(|wanted| wanted == aud)) {
            return Err(Bad::Audience);
        }
        let now = demands.now as f64;
        let leeway = LEEWAY as f64;
        if !claims.get("exp").and_then(Value::as_f64).is_some_and(|end| now < end + leeway) {
            return Err(Bad::Expired);
        }
        if claims.get("nbf").is_some_and(|start| !start.as_f64().is_some_and(|start| start <= now + leeway)) {
            return Err(Bad::Early);
        }
        // `scope` is RFC 9068's; some issuers use `scp`, a string or a list.
        let given: Vec<&str> =
            names(claims.get("scope").or(claims.get("scp"))).flat_map(str::split_ascii_whitespace).collect();
        if !demands.scope.split_ascii_whitespace().all(|wanted| given.contains(&wanted)) {
            return Err(Bad::Scope);
        }
        Ok(Claims(claims))
    }
}

/// Returns the words of a string, or of a list of strings.
fn names(value: Option<&Value>) -> impl Iterator<Item = &str> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    value.and_then(Value::as_str).into_iter().chain(list.iter().filter_map(Value::as_str))
}

/// Claims of a verified token.
#[derive(Debug)]
pub(super) struct Claims(Value);

impl Claims {
    /// Returns the bearer's name.
    pub(super) fn name(&self, claim: &str) -> Result<&str, Bad> {
        let name = self.0.get(claim).and_then(Value::as_str).filter(|name| !name.is_empty()).ok_or(Bad::Nobody)?;
        // Many issuers let their users set any address.
        if claim == "email" && self.0.get("email_verified") != Some(&Value::Bool(true)) {
            return Err(Bad::Mail);
        }
        Ok(name)
    }

    /// Checks that the issuer permits the bearer to be this user.
    pub(super) fn lets_be(&self, claim: &str, user: &str) -> Result<(), Bad> {
        names(self.0.get(claim)).any(|name| name == user).then_some(()).ok_or(Bad::User)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING as P256, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_000_000;

    fn part(value: &Value) -> String {
        URL_SAFE_NO_PAD.encode(value.to_string())
    }

    fn demands(audience: &[String]) -> Demands<'_> {
        Demands { issuer: "https://one", audience, scope: "db read", now: NOW }
    }

    fn claims() -> Value {
        json!({"iss": "https://one", "aud": ["other", "kp"], "exp": NOW + 1, "scope": "read db more", "sub": "alice"})
    }

    fn with(change: Value) -> Value {
        let mut claims = claims();
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    }

    struct Signer(Ed25519KeyPair, EcdsaKeyPair);

    impl Signer {
        fn new() -> Signer {
            let random = SystemRandom::new();
            let one = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
            let other = EcdsaKeyPair::generate_pkcs8(&P256, &random).unwrap();
            let other = EcdsaKeyPair::from_pkcs8(&P256, other.as_ref(), &random).unwrap();
            Signer(Ed25519KeyPair::from_pkcs8(one.as_ref()).unwrap(), other)
        }

        fn keys(&self) -> Value {
            let point = self.1.public_key().as_ref();
            let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
            json!({"keys": [
                {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encode(self.0.public_key().as_ref())},
                {"kty": "EC", "crv": "P-256", "kid": "ec", "alg": "ES256", "x": encode(&point[1..33]), "y": encode(&point[33..])},
                {"kty": "oct", "kid": "shared", "k": "c2VjcmV0"},
            ]})
        }

        fn sign(&self, head: &Value, claims: &Value) -> String {
            let signed = format!("{}.{}", part(head), part(claims));
            let signature = match head["alg"].as_str() {
                Some("ES256") => self.1.sign(&SystemRandom::new(), signed.as_bytes()).unwrap().as_ref().to_vec(),
                _ => self.0.sign(signed.as_bytes()).as_ref().to_vec(),
            };
            format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
        }
    }

    fn judge(token: &str, keys: &Keys) -> Result<Claims, Bad> {
        Head::read(token).and_then(|head| head.verify(keys, &demands(&["kp".to_owned()])))
    }

    #[test]
    fn what_a_token_says_decides() {
        let signer = Signer::new();
        let keys = Keys::read(signer.keys().to_string().as_bytes()).unwrap();
        let head = json!({"alg": "ES256", "kid": "ec", "typ": "at+JWT"});
        let decide = |claims: &Value| judge(&signer.sign(&head, claims), &keys).map(drop);
        for (change, expected) in [
            (json!({}), Ok(())),
            (json!({"aud": "kp"}), Ok(())),
            (json!({"scope": null, "scp": ["db", "read"]}), Err(Bad::Scope)),
            (json!({"exp": NOW - 29}), Ok(())),
            (json!({"nbf": NOW + 30}), Ok(())),
            (json!({"iss": "https://two"}), Err(Bad::Issuer)),
            (json!({"iss": "https://one/"}), Err(Bad::Issuer)),
            (json!({"aud": "other"}), Err(Bad::Audience)),
            (json!({"aud": null}), Err(Bad::Audience)),
            (json!({"exp": NOW - 30}), Err(Bad::Expired)),
            (json!({"exp": "9999999999"}), Err(Bad::Expired)),
            (json!({"exp": null}), Err(Bad::Expired)),
            (json!({"nbf": NOW + 31}), Err(Bad::Early)),
            (json!({"nbf": "soon"}), Err(Bad::Early)),
            (json!({"scope": "db reading"}), Err(Bad::Scope)),
            (json!({"scope": ""}), Err(Bad::Scope)),
        ] {
            assert_eq!(decide(&with(change.clone())), expected, "{change}");
        }
        let mut listed = claims();
        listed.as_object_mut().unwrap().remove("scope");
        listed["scp"] = json!(["db", "read"]);
        assert_eq!(decide(&listed), Ok(()));
        // Without an audience no token is accepted.
        let token = signer.sign(&head, &claims());
        assert_eq!(Head::read(&token).unwrap().verify(&keys, &demands(&[])).err(), Some(Bad::Audience));
    }

    #[test]
    fn the_key_decides_what_it_verifies() {
        let (signer, stranger) = (Signer::new(), Signer::new());
        let keys = Keys::read(signer.keys().to_string().as_bytes()).unwrap();
        let decide = |by: &Signer, head: Value| judge(&by.sign(&head, &claims()), &keys).map(drop);
        for (head, expected) in [
            (json!({"alg": "EdDSA", "kid": "ed"}), Ok(())),
            (json!({"alg": "ES256"}), Ok(())),
            (json!({"alg": "EdDSA"}), Ok(())),
            (json!({"alg": "EdDSA", "kid": "ec"}), Err(Bad::NoKey)),
            (json!({"alg": "ES256", "kid": "ed"}), Err(Bad::NoKey)),
            (json!({"alg": "RS256", "kid": "ec"}), Err(Bad::NoKey)),
            (json!({"alg": "ES256", "kid": "ex"}), Err(Bad::NoKey)),
            (json!({"alg": "ES256", "kid": 1}), Err(Bad::Format)),
            (json!({"alg": "none", "kid": "ec"}), Err(Bad::Algorithm)),
            (json!({"alg": "None"}), Err(Bad::Algorithm)),
            (json!({"alg": "HS256", "kid": "shared"}), Err(Bad::Algorithm)),
            (json!({"alg": "HS256", "kid": "ec"}), Err(Bad::Algorithm)),
            (json!({"kid": "ec"}), Err(Bad::Algorithm)),
            (json!({"alg": "ES256", "kid": "ec", "crit": ["x"]}), Err(Bad::Critical)),
            (json!({"alg": "ES256", "kid": "ec", "typ": "logout+jwt"}), Err(Bad::Type)),
        ] {
            assert_eq!(decide(&signer, head.clone()), expected, "{head}");
        }
        // Neither another issuer's signature, nor a key in the token.
        let brought = stranger.keys()["keys"][1].clone();
        for head in [json!({"alg": "ES256", "kid": "ec"}), json!({"alg": "ES256", "kid": "ec", "jwk": brought})] {
            assert_eq!(decide(&stranger, head), Err(Bad::Signature));
        }
        // Neither words of another token, nor none.
        let head = json!({"alg": "ES256", "kid": "ec"});
        let good = signer.sign(&head, &claims());
        let signature = good.rsplit_once('.').unwrap().1;
        let other = format!("{}.{}", part(&head), part(&with(json!({"sub": "bob"}))));
        assert_eq!(judge(&format!("{other}.{signature}"), &keys).err(), Some(Bad::Signature));
        assert_eq!(judge(&format!("{other}."), &keys).err(), Some(Bad::Signature));
        for text in ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", &good[1..]] {
            assert!(judge(text, &keys).is_err(), "{text}");
        }
    }

    #[test]
    fn who_the_bearer_is() {
        let said = |claims: Value| Claims(claims);
        assert_eq!(said(json!({"sub": "alice"})).name("sub"), Ok("alice"));
        for claims in [json!({}), json!({"sub": ""}), json!({"sub": 1}), json!({"sub": ["alice"]})] {
            assert_eq!(said(claims).name("sub"), Err(Bad::Nobody));
        }
        assert_eq!(said(json!({"email": "a@b", "email_verified": true})).name("email"), Ok("a@b"));
        for claims in [json!({"email": "a@b"}), json!({"email": "a@b", "email_verified": "true"})] {
            assert_eq!(said(claims).name("email"), Err(Bad::Mail));
        }
        for (users, may) in [(json!("alice"), true), (json!(["bob", "alice"]), true), (json!(["bob"]), false)] {
            assert_eq!(said(json!({"users": users})).lets_be("users", "alice").is_ok(), may);
        }
        assert!(said(json!({})).lets_be("users", "alice").is_err());
    }

    #[test]
    fn sets_of_keys_are_bounded_and_of_use() {
        let key = json!({"kty": "OKP", "crv": "Ed25519", "x": "AAAA"});
        let many = |count| json!({"keys": vec![key.clone(); count]}).to_string();
        assert!(Keys::read(many(MOST_KEYS).as_bytes()).is_ok());
        assert!(Keys::read(many(MOST_KEYS + 1).as_bytes()).is_err());
        for text in ["", "[]", "{}", r#"{"keys": []}"#, r#"{"keys": [{"kty": "oct", "k": "AAAA"}]}"#] {
            assert!(Keys::read(text.as_bytes()).is_err(), "{text}");
        }
        for (name, value) in [("use", json!("enc")), ("key_ops", json!(["sign"]))] {
            let mut key = key.clone();
            key[name] = value;
            assert!(Key::read(&key).is_none());
        }
    }
}
