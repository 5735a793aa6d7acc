//! The configuration of an etcd, and its endpoints.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use process::address::{self, is_loopback};

::settings::settings! {
    /// `[failover.etcd]`: the etcd with the lock of `kingpost watch --etcd`.
    #[derive(Clone, PartialEq)]
    pub struct EtcdConfig: Default {
        /// Members of an etcd cluster: "https://host:port", or "http://host:port". All of them are the same etcd.
        pub endpoints: Vec<String> = Vec::new();
        /// User of etcd, where its access control is on; it needs a role with readwrite on the prefix /kingpost/failover/ and read on /service/. "":
        /// none.
        pub user: String = String::new();
        /// Password of the user: this, or a file. Over http only to this machine.
        pub password: Option<String> = None, secret(), example(r#""change-me-seven""#);
        /// File that holds the password in its first line.
        pub password_file: Option<PathBuf> = None, example(r#""/etc/kingpost/etcd.password""#);
        /// CAs that etcd's certificates are verified with; not given: those of the system.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/etcd-ca.crt""#);
        /// Certificate, where etcd asks for one. With a user it must not have a common name: etcd refuses that.
        pub cert_file: Option<PathBuf> = None, example(r#""/etc/kingpost/etcd-client.crt""#);
        /// Key of that certificate, without a passphrase.
        pub key_file: Option<PathBuf> = None, example(r#""/etc/kingpost/etcd-client.key""#);
    }
}

impl fmt::Debug for EtcdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConfig")
            .field("endpoints", &self.endpoints)
            .field("user", &self.user)
            .field("ca_file", &self.ca_file)
            .field("cert_file", &self.cert_file)
            .finish_non_exhaustive()
    }
}

/// An error of `[failover.etcd]`: the key, and the reason.
pub type Wrong = (&'static str, String);

impl EtcdConfig {
    /// Checks the settings, including the files for TLS.
    ///
    /// # Errors
    /// The first error.
    pub fn check(&self) -> Result<(), Wrong> {
        self.endpoints().map(drop)
    }

    /// Returns the endpoints, ready for requests. Reads the files for TLS, but no password.
    ///
    /// # Errors
    /// The first error.
    pub fn endpoints(&self) -> Result<Vec<Endpoint>, Wrong> {
        let read = |text: &String| Endpoint::read(text).map_err(|why| ("endpoints", why));
        let mut endpoints: Vec<Endpoint> = self.endpoints.iter().map(read).collect::<Result<_, _>>()?;
        if let Some(other) = endpoints.iter().find(|endpoint| endpoint.is_secure != endpoints[0].is_secure) {
            return Err(("endpoints", format!("found {other} among others: expected https for all, or http for all")));
        }
        let has_password = self.password.is_some() || self.password_file.is_some();
        if self.password.is_some() && self.password_file.is_some() {
            return Err(("password", "found password and password_file, expected at most one of them".into()));
        }
        match (self.user.is_empty(), has_password) {
            (false, false) => return Err(("user", "found no password: expected password or password_file".into())),
            (true, true) => return Err(("password", "found no user that it is of".into())),
            _ => {}
        }
        if let Some(open) = endpoints.iter().find(|endpoint| !endpoint.is_secure && !is_loopback(&endpoint.address))
            && has_password
        {
            return Err((
                "endpoints",
                format!("found {open} and a password, which anybody on the way could read: expected https"),
            ));
        }
        let has_files = self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some();
        if endpoints.iter().any(|endpoint| endpoint.is_secure) {
            let config = tls::ConnectConfig {
                mode: tls::ConnectMode::VerifyFull,
                ca_file: Some(self.ca_file.clone().unwrap_or_else(|| tls::system_authorities().to_owned())),
                cert_file: self.cert_file.clone(),
                key_file: self.key_file.clone(),
                ..tls::ConnectConfig::default()
            };
            let connector = tls::Connector::new(&config).map_err(|error| (error.setting(), error.to_string()))?;
            let connector = connector.map(Arc::new);
            for endpoint in &mut endpoints {
                endpoint.secure(connector.as_ref()).map_err(|why| ("endpoints", why))?;
            }
        } else if has_files && !endpoints.is_empty() {
            return Err(("endpoints", "found http and files for TLS: expected https".into()));
        }
        Ok(endpoints)
    }
}

/// A member of an etcd cluster.
#[derive(Clone)]
pub struct Endpoint {
    /// `host:port`.
    pub address: String,
    /// True for `https://`.
    pub is_secure: bool,
    /// Name that the certificate must have, and the way to check it; None without TLS.
    pub tls: Option<tls::Target>,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_secure { "https" } else { "http" }, self.address)
    }
}

impl Endpoint {
    /// Parses `host:port`, `http://host:port` or `https://host:port`. The last one is not ready before [`Endpoint::secure`].
    ///
    /// # Errors
    /// The text has none of these forms.
    fn read(text: &str) -> Result<Endpoint, String> {
        let Some((is_secure, address)) = address::of_url(text).filter(|(_, address)| !address.contains('@')) else {
            return Err("one is no endpoint of etcd: expected https://host:port or http://host:port".into());
        };
        Ok(Endpoint { address: address.to_owned(), is_secure, tls: None })
    }

    /// Sets up TLS for the endpoint.
    ///
    /// # Errors
    /// No certificate can be issued for its host.
    fn secure(&mut self, connector: Option<&Arc<tls::Connector>>) -> Result<(), String> {
        let host = address::host(&self.address);
        self.tls = connector.and_then(|connector| tls::Target::new(Arc::clone(connector), host));
        match &self.tls {
            Some(_) => Ok(()),
            None => Err(format!("{host:?} is no name that a certificate can be for")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(endpoints: &[&str]) -> EtcdConfig {
        EtcdConfig { endpoints: endpoints.iter().map(|text| (*text).to_owned()).collect(), ..EtcdConfig::default() }
    }

    #[test]
    fn what_is_configured() {
        let user = |config: EtcdConfig| EtcdConfig { user: "u".into(), password: Some("secret".into()), ..config };
        let missing = Some(PathBuf::from("/does/not/exist"));
        for (what, config, wrong) in [
            ("nothing", config(&[]), None),
            ("an address", config(&["127.0.0.1:2379"]), None),
            ("two", config(&["http://a:2379", "http://b:2379/"]), None),
            ("no port", config(&["http://a"]), Some("endpoints")),
            ("a path", config(&["a:1/x"]), Some("endpoints")),
            ("both kinds", config(&["http://a:1", "https://a:2"]), Some("endpoints")),
            ("a user, here", user(config(&["http://127.0.0.1:1"])), None),
            ("a user, elsewhere", user(config(&["http://a:1"])), Some("endpoints")),
            ("no password", EtcdConfig { user: "u".into(), ..config(&["http://127.0.0.1:1"]) }, Some("user")),
            ("no user", EtcdConfig { user: String::new(), ..user(config(&["http://127.0.0.1:1"])) }, Some("password")),
            (
                "two passwords",
                EtcdConfig { password_file: missing.clone(), ..user(config(&["http://127.0.0.1:1"])) },
                Some("password"),
            ),
            ("no such CA", EtcdConfig { ca_file: missing.clone(), ..config(&["https://a:1"]) }, Some("ca_file")),
            ("a CA for nothing", EtcdConfig { ca_file: missing, ..config(&["http://a:1"]) }, Some("endpoints")),
        ] {
            let found = config.endpoints().err();
            assert_eq!(found.as_ref().map(|(key, _)| *key), wrong, "{what}: {found:?}");
            assert!(!format!("{config:?} {found:?}").contains("secret"), "{what}");
        }
    }
}
