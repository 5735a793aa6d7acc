//! Secrets of a user's logins: one, or several while a password is being changed.
//!
//! A secret has one of the three forms of `pg_authid.rolpassword` and of an `auth_file` of PgBouncer: a SCRAM verifier (`SCRAM-SHA-256$…`), an MD5
//! verifier (`md5…`) or the password itself.
//!
//! Each secret admits a client, by the one method that the proxy uses for the user ([`Secrets::by_md5`]). Secrets that cannot are an error in the
//! configuration: two SCRAM verifiers with different salts (a login offers one salt before it knows which password the client has), and an MD5
//! verifier beside a SCRAM verifier (a user with the latter is asked for SCRAM).

use wire::md5;
use wire::scram::{self, Verifier, Verifiers};

use crate::config::Secret;

/// Maximum number of secrets of one user: each takes milliseconds of hashing at a reload, and two hashes at each login.
pub const MOST_SECRETS: usize = 8;

/// Secrets of one user. The first one is also the first one used for servers.
#[derive(Clone, Default)]
pub struct Secrets {
    /// Verifiers of clients that are asked for SCRAM.
    scram: Option<Verifiers>,
    /// Verifiers of clients that are asked for MD5: of passwords and MD5 verifiers.
    md5: Vec<md5::Verifier>,
    /// Passwords known in clear text, for logins to servers.
    passwords: Vec<String>,
    /// True if one of the secrets is a SCRAM verifier: then clients cannot be asked for MD5.
    scram_only: bool,
}

/// Reason why secrets cannot be used. No variant contains a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// A text begins like a verifier, and is not one.
    #[error("expected SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey> or md5<hash> as in pg_authid")]
    Verifier,
    /// A password is empty.
    #[error("found an empty string, expected a password")]
    Empty,
    /// The password is too long, or the system provides no random bytes.
    #[error("password: {0}")]
    Password(#[source] scram::Error),
    /// Two SCRAM verifiers have different salts or iteration counts.
    #[error(
        "two SCRAM verifiers have different salts or iteration counts, and a login can offer only one salt: give one of them, and the other password in clear text (password_file)"
    )]
    OtherSalt,
    /// An MD5 verifier is beside a SCRAM verifier.
    #[error("an MD5 verifier beside a SCRAM verifier lets nobody in: a user with a SCRAM verifier is asked for SCRAM")]
    Mixed,
    /// Too many secrets.
    #[error("more than {MOST_SECRETS} secrets")]
    TooMany,
}

/// One secret, by its form.
enum Form {
    Scram(Verifier),
    Other(Other),
}

/// A secret without a salt that all of a user's logins would have to share.
enum Other {
    Md5(md5::Verifier),
    Password(String),
}

/// Compatible secrets of a user, each kind in the given order.
#[derive(Default)]
struct Sorted {
    scram: Option<Verifiers>,
    others: Vec<Other>,
}

impl Form {
    fn read(text: &str) -> Result<Form, SecretsError> {
        if let Some(verifier) = md5::Verifier::parse(text) {
            return Ok(Form::Other(Other::Md5(verifier)));
        }
        if text.starts_with("SCRAM-SHA-256$") {
            return Verifier::parse(text).map(Form::Scram).map_err(|_| SecretsError::Verifier);
        }
        Ok(Form::password(text))
    }

    fn password(text: &str) -> Form {
        Form::Other(Other::Password(text.to_owned()))
    }
}

/// Secrets of a user in the configuration.
#[derive(Clone, Copy, Default)]
pub struct Given<'a> {
    /// A password in clear text, whatever form it resembles.
    pub password: Option<&'a str>,
    /// A SCRAM or an MD5 verifier.
    pub verifier: Option<&'a str>,
    /// Further secrets, each in one of the three forms.
    pub others: &'a [Secret],
}

impl Given<'_> {
    /// Checks that the secrets are compatible, as far as possible without hashing.
    ///
    /// # Errors
    /// [`SecretsError`]: a secret cannot be used, or not beside the others.
    pub fn check(&self) -> Result<(), SecretsError> {
        self.sorted().map(|_| ())
    }

    /// Sorts the secrets by their forms, without hashing.
    fn sorted(&self) -> Result<Sorted, SecretsError> {
        let mut forms: Vec<Form> = self.password.map(Form::password).into_iter().collect();
        match self.verifier.map(Form::read).transpose()? {
            Some(Form::Other(Other::Password(_))) => return Err(SecretsError::Verifier),
            verifier => forms.extend(verifier),
        }
        for text in self.others {
            forms.push(Form::read(text.expose())?);
        }
        if forms.len() > MOST_SECRETS {
            return Err(SecretsError::TooMany);
        }
        let mut sorted = Sorted::default();
        for form in forms {
            match form {
                Form::Scram(verifier) => match &mut sorted.scram {
                    None => sorted.scram = Some(verifier.into()),
                    Some(known) => known.add(verifier).map_err(|_| SecretsError::OtherSalt)?,
                },
                Form::Other(Other::Password(password)) if password.is_empty() => return Err(SecretsError::Empty),
                Form::Other(other) => sorted.others.push(other),
            }
        }
        if sorted.scram.is_some() && sorted.others.iter().any(|other| matches!(other, Other::Md5(_))) {
            return Err(SecretsError::Mixed);
        }
        Ok(sorted)
    }
}

impl Secrets {
    /// Creates the secrets of the user `name`. Computes verifiers, which takes some milliseconds for each password.
    ///
    /// # Errors
    /// [`SecretsError`]: a secret cannot be used, or not beside the others.
    pub fn new(name: &str, given: &Given<'_>) -> Result<Secrets, SecretsError> {
        let Sorted { scram, others } = given.sorted()?;
        // Passwords use the salt of the verifiers.
        let mut secrets = Secrets { scram_only: scram.is_some(), scram, ..Secrets::default() };
        for other in others {
            match other {
                Other::Md5(verifier) => secrets.md5.push(verifier),
                Other::Password(password) => {
                    match &mut secrets.scram {
                        None => {
                            let verifier = Verifier::from_password(&password).map_err(SecretsError::Password)?;
                            secrets.scram = Some(verifier.into());
                        }
                        Some(known) => known.add_password(&password).map_err(SecretsError::Password)?,
                    }
                    secrets.md5.push(md5::Verifier::new(name, &password));
                    secrets.passwords.push(password);
                }
            }
        }
        Ok(secrets)
    }

    /// Creates the secret of a looked-up user, in one of the three forms.
    ///
    /// # Errors
    /// [`SecretsError`].
    pub fn looked_up(name: &str, secret: Option<&str>) -> Result<Secrets, SecretsError> {
        let others: Vec<Secret> = secret.map(Secret::new).into_iter().collect();
        Secrets::new(name, &Given { others: &others, ..Given::default() })
    }

    /// True if there are no secrets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scram.is_none() && self.md5.is_empty()
    }

    /// True if a client of the method `md5` is asked for MD5. As in PostgreSQL, a user with a SCRAM verifier is asked for SCRAM. A user without
    /// secrets is also asked for MD5, so that clients cannot find out which users exist.
    #[must_use]
    pub fn by_md5(&self) -> bool {
        !self.scram_only
    }

    /// Returns the verifiers for clients that are asked for SCRAM.
    #[must_use]
    pub fn scram(&self) -> Option<&Verifiers> {
        self.scram.as_ref()
    }

    /// Returns the verifier that matches this answer to an MD5 challenge.
    #[must_use]
    pub fn md5_of(&self, salt: [u8; 4], answer: &[u8]) -> Option<&md5::Verifier> {
        // Tries all of them, so that the time does not reveal which one matched.
        self.md5
            .iter()
            .fold(None, |found, verifier| if verifier.accepts(salt, answer) { Some(verifier) } else { found })
    }

    /// Returns the password for the login to a server that has refused `refused` others before.
    #[must_use]
    pub fn password(&self, refused: usize) -> Option<&str> {
        nth(&self.passwords, refused).map(String::as_str)
    }

    /// Returns the MD5 verifier for the login to a server that has refused `refused` others before.
    #[must_use]
    pub fn md5(&self, refused: usize) -> Option<&md5::Verifier> {
        nth(&self.md5, refused)
    }

    /// Returns the number of different secrets for a login to a server.
    #[must_use]
    pub fn for_servers(&self) -> usize {
        self.passwords.len().max(self.md5.len())
    }
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets(..)")
    }
}

fn nth<T>(list: &[T], n: usize) -> Option<&T> {
    list.get(n.checked_rem(list.len())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use wire::scram::{Client, Credential, Server};

    use super::*;

    fn scram(secrets: &Secrets, password: &str) -> bool {
        let mut server = Server::new(secrets.scram().unwrap().clone());
        let mut client = Client::new(Credential::password(password)).unwrap();
        let challenge = server.first(&client.first()).unwrap();
        server.last(&client.final_(&challenge).unwrap()).is_ok_and(|last| client.verify(&last).is_ok())
    }

    fn md5(secrets: &Secrets, user: &str, password: &str) -> bool {
        let salt = [7, 1, 0, 9];
        secrets.md5_of(salt, md5::Verifier::new(user, password).answer(salt).as_bytes()).is_some()
    }

    fn secrets(password: Option<&str>, others: &[&str]) -> Result<Secrets, SecretsError> {
        let others: Vec<Secret> = others.iter().copied().map(Secret::new).collect();
        Secrets::new("a", &Given { password, verifier: None, others: &others })
    }

    #[test]
    fn each_secret_lets_in_and_no_other_does() {
        let verifier = Verifier::from_password("by verifier").unwrap().encode();
        // The secrets; the passwords accepted by SCRAM, and by MD5; true if the method md5 means MD5.
        type Case<'a> = (Option<&'a str>, &'a [&'a str], &'a [&'a str], &'a [&'a str], bool);
        let cases: [Case; 6] = [
            (Some("new"), &[], &["new"], &["new"], true),
            (Some("new"), &["old"], &["new", "old"], &["new", "old"], true),
            (Some("new"), &[&verifier], &["new", "by verifier"], &["new"], false),
            (None, &[&verifier, "old", "older"], &["by verifier", "old", "older"], &["old", "older"], false),
            // MD5 of "old" and "a".
            (Some("new"), &["md5b99edb6317b29863dcc3adb8e2d882ba"], &["new"], &["new", "old"], true),
            (Some("md5b99edb6317b29863dcc3adb8e2d882ba"), &["old"], &["old"], &["old"], true),
        ];
        for (password, others, by_scram, by_md5, asks_md5) in cases {
            let secrets = secrets(password, others).unwrap();
            for tried in ["new", "old", "older", "by verifier", "wrong", ""] {
                assert_eq!(scram(&secrets, tried), by_scram.contains(&tried), "{password:?} {others:?} {tried:?}");
                assert_eq!(md5(&secrets, "a", tried), by_md5.contains(&tried), "{password:?} {others:?} {tried:?}");
                // Another user's hash of the same password is not accepted for this user.
                assert!(!md5(&secrets, "b", tried));
            }
            assert_eq!(secrets.by_md5(), asks_md5, "{others:?}");
        }
    }

    #[test]
    fn what_could_let_nobody_in_is_refused() {
        let [one, two] = ["one", "two"].map(|password| Verifier::from_password(password).unwrap().encode());
        let md5 = "md504c6c28e26d0c4bb6a1ea2c7ae4bfb0f";
        let refused =
            |password, others: &[&str]| secrets(password, others).map(|_| ()).expect_err("is accepted").to_string();
        assert!(refused(None, &[&one, &two]).contains("different salts"));
        assert!(refused(None, &[&one, md5]).contains("asked for SCRAM"));
        assert!(refused(None, &["SCRAM-SHA-256$rubbish"]).contains("pg_authid"));
        assert!(refused(Some("new"), &[""]).contains("empty"));
        assert!(refused(Some("new"), &["x"; MOST_SECRETS]).contains("more than 8"));
        let plain = Given { verifier: Some("s3cret"), ..Given::default() };
        let plain = plain.check().expect_err("a password is no verifier").to_string();
        let shown = format!("{:?}", secrets(Some("s3cret"), &[]).unwrap());
        for text in [refused(None, &[&one, &two]), plain, shown] {
            assert!(!text.contains("s3cret") && !text.contains(&one), "{text}");
        }
    }

    #[test]
    fn servers_are_offered_one_after_the_other() {
        let both = secrets(Some("new"), &["old"]).unwrap();
        let offered: Vec<_> = (0..4).map(|n| both.password(n).unwrap()).collect();
        assert_eq!((offered, both.for_servers()), (vec!["new", "old", "new", "old"], 2));
        assert_eq!(both.md5(1), Some(&md5::Verifier::new("a", "old")));
        let none = Secrets::default();
        assert!(none.password(3).is_none() && none.md5(3).is_none() && none.is_empty());
    }
}
