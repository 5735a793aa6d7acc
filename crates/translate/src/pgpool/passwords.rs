//! pool_passwd: a line `user:secret` for each user.

use wire::md5;
use wire::scram::Verifier;

/// Secret of a user in pool_passwd.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Secret {
    Plain(String),
    /// An MD5 hash or a SCRAM verifier.
    Verifier(String),
    /// A secret that allows no login here, with the reason.
    Useless(&'static str),
}

/// Reads the users of a file; the first line of a name counts, as in pgpool-II.
pub(super) fn read(text: &str) -> Vec<(String, Secret)> {
    let mut users: Vec<(String, Secret)> = Vec::new();
    for line in text.lines() {
        let mut fields = fields(line).into_iter();
        let (Some(name), Some(secret)) = (fields.next(), fields.next()) else { continue };
        if name.is_empty() || secret.is_empty() || users.iter().any(|(other, _)| *other == name) {
            continue;
        }
        // A user and a password for the servers may follow.
        let secret = match fields.next() {
            Some(_) => Secret::Useless(
                "it is another user on the servers: Kingpost has that for databases (proxy.databases.server_user)",
            ),
            None => secret_of(&secret),
        };
        users.push((name, secret));
    }
    users
}

/// Recognises a secret by its form.
pub(super) fn secret_of(secret: &str) -> Secret {
    if let Some(password) = secret.strip_prefix("TEXT") {
        return Secret::Plain(password.to_owned());
    }
    if secret.starts_with("AES") {
        return Secret::Useless(
            "it is encrypted with pgpool-II's key: write TEXT and the password, or the verifier that the servers have",
        );
    }
    if md5::Verifier::parse(secret).is_some() {
        return Secret::Verifier(secret.to_owned());
    }
    if secret.starts_with("SCRAM-SHA-256$") {
        return match Verifier::parse(secret) {
            Ok(_) => Secret::Verifier(secret.to_owned()),
            Err(_) => Secret::Useless("its SCRAM verifier is malformed"),
        };
    }
    Secret::Plain(secret.to_owned())
}

/// Splits a line into fields; a backslash escapes the next character.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (c, fields.last_mut()) {
            (':', _) => fields.push(String::new()),
            ('\\', Some(field)) => field.extend(characters.next()),
            (c, Some(field)) => field.push(c),
            (_, None) => {}
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_by_their_form() {
        let text = "ann:TEXTann's\nann:TEXTlater\nbob:md5aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nold:AESxyz==\nplain:se\\:cret\nmapped:TEXTa:other:TEXTb\nnone:\n\nodd\n";
        let users = read(text);
        let names: Vec<_> = users.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["ann", "bob", "old", "plain", "mapped"]);
        let plain = |secret: &Secret, expected: &str| matches!(secret, Secret::Plain(of) if of == expected);
        assert!(plain(&users[0].1, "ann's") && plain(&users[3].1, "se:cret"));
        assert!(matches!(users[1].1, Secret::Verifier(_)));
        assert!(matches!(users[2].1, Secret::Useless(why) if why.contains("key")));
        assert!(matches!(users[4].1, Secret::Useless(why) if why.contains("another user")));
    }
}
