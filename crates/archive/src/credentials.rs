//! Credentials of a storage service: their forms, which the text itself tells apart. Pure.

use std::fmt;

use crate::location::Service;

/// Credentials of a service.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// S3: a key, and the token of a session.
    Key { id: String, secret: String, session: Option<String> },
    /// GCS: the key of a service account, in JSON.
    ServiceAccount(String),
    /// A bearer token of OAuth 2.
    Token(String),
    /// Azure: the key of the storage account, in base 64.
    AccountKey(String),
    /// Azure: a shared access signature.
    SharedAccess(String),
    /// Azure: a registered application.
    Application { tenant: String, client: String, secret: String },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credentials::Key { .. } => "Key",
            Credentials::ServiceAccount(_) => "ServiceAccount",
            Credentials::Token(_) => "Token",
            Credentials::AccountKey(_) => "AccountKey",
            Credentials::SharedAccess(_) => "SharedAccess",
            Credentials::Application { .. } => "Application",
        })
    }
}

/// Returns the forms of a service's credentials, for messages. Not even a key's identifier is repeated there: the text may be the secret.
pub(crate) fn forms(service: Service) -> &'static str {
    match service {
        Service::S3 => "the credentials are not of the form KEY_ID:SECRET or KEY_ID:SECRET:TOKEN",
        Service::Gcs => "the credentials are neither a service account's key (JSON) nor an access token",
        Service::Azure => {
            "the credentials are neither an account key (base 64), nor a shared access signature (sv=…&sig=…), nor TENANT:CLIENT_ID:SECRET, nor an \
             access token"
        }
    }
}

/// Checks the form of credentials.
///
/// # Errors
/// The expected forms, without a part of the text.
pub fn check_credentials(service: Service, text: &str) -> Result<(), &'static str> {
    Credentials::parse(service, text).map(|_| ())
}

impl Credentials {
    /// Parses credentials: the first line, or all of a text in JSON.
    ///
    /// # Errors
    /// The expected forms.
    pub(crate) fn parse(service: Service, text: &str) -> Result<Credentials, &'static str> {
        let line = text.lines().next().unwrap_or_default().trim();
        let parsed = match service {
            Service::S3 => key(line),
            Service::Gcs => google(text.trim(), line),
            Service::Azure => azure(line),
        };
        parsed.ok_or_else(|| forms(service))
    }
}

fn key(line: &str) -> Option<Credentials> {
    let mut parts = line.splitn(3, ':').map(str::to_owned);
    let (id, secret) = (parts.next()?, parts.next()?);
    (!id.is_empty() && !secret.is_empty()).then(|| Credentials::Key { id, secret, session: parts.next() })
}

/// Returns a word that a header can carry.
fn word(line: &str) -> Option<String> {
    (!line.is_empty() && line.bytes().all(|byte| byte.is_ascii_graphic())).then(|| line.to_owned())
}

fn google(text: &str, line: &str) -> Option<Credentials> {
    if text.starts_with('{') {
        // The rest of the form is the crate's to check.
        let has = |key: &str| text.contains(&format!("\"{key}\""));
        return (has("private_key") && has("client_email")).then(|| Credentials::ServiceAccount(text.to_owned()));
    }
    word(line).filter(|word| !word.contains([':', '"'])).map(Credentials::Token)
}

fn azure(line: &str) -> Option<Credentials> {
    let line = word(line)?;
    if line.contains("sig=") && line.contains('&') {
        return Some(Credentials::SharedAccess(line));
    }
    if line.contains(':') {
        let mut parts = line.splitn(3, ':').map(str::to_owned);
        let (tenant, client, secret) = (parts.next()?, parts.next()?, parts.next()?);
        // The tenant becomes part of an address.
        let is_tenant =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'));
        let good = ![&tenant, &client, &secret].into_iter().any(String::is_empty) && is_tenant(&tenant);
        return good.then_some(Credentials::Application { tenant, client, secret });
    }
    if line.starts_with("ey") && line.split('.').count() == 3 {
        return Some(Credentials::Token(line));
    }
    let is_base64 = line.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
    (is_base64 && line.len().is_multiple_of(4)).then_some(Credentials::AccountKey(line))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_are_told_apart() {
        const JSON: &str =
            "{\n \"type\": \"service_account\",\n \"private_key\": \"hush\",\n \"client_email\": \"r@p.example\"\n}";
        for (service, text, expected) in [
            (Service::S3, "AKIA:hush", Some("Key")),
            (Service::S3, "AKIA:hush:token:with:colons\nanother line", Some("Key")),
            (Service::S3, "AKIA:", None),
            (Service::S3, ":hush", None),
            (Service::S3, "hush", None),
            (Service::Gcs, JSON, Some("ServiceAccount")),
            (Service::Gcs, "ya29.hush\n", Some("Token")),
            (Service::Gcs, "{\"type\": \"authorized_user\", \"refresh_token\": \"hush\"}", None),
            (Service::Gcs, "AKIA:hush", None),
            (Service::Gcs, "two words", None),
            (Service::Gcs, "", None),
            (Service::Azure, "aHVzaA==", Some("AccountKey")),
            (Service::Azure, "?sv=2023-11-03&sp=rwdl&sig=aHVzaA%3D%3D", Some("SharedAccess")),
            (Service::Azure, "11111111-2222-3333-4444-555555555555:client:hu:sh~", Some("Application")),
            (Service::Azure, "evil.example/x?:client:hush", None),
            (Service::Azure, "tenant:client", None),
            (Service::Azure, "eyJhbGciOiJ.eyJhdWQi.hush", Some("Token")),
            (Service::Azure, "hush!", None),
        ] {
            let parsed = Credentials::parse(service, text);
            assert_eq!(parsed.as_ref().ok().map(|parsed| format!("{parsed:?}")).as_deref(), expected, "{text}");
            assert!(parsed.is_ok() || !parsed.unwrap_err().contains("hush"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics_and_never_shows_a_secret(text: String) {
            for service in [Service::S3, Service::Gcs, Service::Azure] {
                let shown = format!("{:?}", Credentials::parse(service, &format!("AKIA:x{text}hush")));
                prop_assert!(!shown.contains("hush"));
            }
        }
    }
}
