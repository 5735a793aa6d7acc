//! Certificates made for a test, and a driver's TLS that trusts them.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use tls::postgres::Secure;

use crate::process::server_user;
use crate::run::{new_dir, unique};
use crate::template::run;

/// A certificate authority of one test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
}

/// A certificate and its key, in PEM files.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// The key; its file is its owner's alone.
    pub key: PathBuf,
}

impl Authority {
    /// Makes an authority, with a directory of its own.
    ///
    /// # Panics
    /// When that cannot be made.
    pub fn new() -> Authority {
        let dir = new_dir("certificates");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, format!("authority {}", unique()));
        let key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("a certificate");
        std::fs::write(dir.join("ca.crt"), cert.pem()).expect("write a certificate");
        Authority { issuer: Issuer::new(params, key), dir }
    }

    /// Returns the file of the authority's certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Issues a certificate with this common name, for these hosts (names or addresses).
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn issue(&self, name: &str, hosts: &[&str]) -> Pair {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("hosts");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        let stem = format!("{name}-{}", unique());
        let pair = Pair { cert: self.dir.join(format!("{stem}.crt")), key: self.dir.join(format!("{stem}.key")) };
        std::fs::write(&pair.cert, cert.pem()).expect("write a certificate");
        std::fs::write(&pair.key, key.serialize_pem()).expect("write a key");
        std::fs::set_permissions(&pair.key, Permissions::from_mode(0o600)).expect("close a key's file");
        pair
    }

    /// Issues a certificate for a database server, which may run as another user: that user owns the key.
    pub fn issue_server(&self, name: &str, hosts: &[&str]) -> Pair {
        let pair = self.issue(name, hosts);
        if let Some(user) = server_user() {
            run(Command::new("chown").arg(user).arg(&pair.key));
        }
        pair
    }

    /// Makes a driver's TLS that trusts this authority alone, verifies the host, and shows a certificate if one is given.
    ///
    /// # Panics
    /// When a file cannot be used.
    pub fn client(&self, shows: Option<&Pair>) -> Secure {
        let config = tls::ConnectConfig {
            mode: tls::ConnectMode::VerifyFull,
            ca_file: Some(self.ca_file()),
            cert_file: shows.map(|pair| pair.cert.clone()),
            key_file: shows.map(|pair| pair.key.clone()),
            ..tls::ConnectConfig::default()
        };
        driver(&config)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Authority::new()
    }
}

/// Replaces files by others, as in a renewal of certificates.
///
/// # Panics
/// When that fails.
pub fn replace(pair: &Pair, by: &Pair) {
    for (from, to) in [(&by.cert, &pair.cert), (&by.key, &pair.key)] {
        std::fs::copy(from, to).expect("replace a file");
    }
}

/// Makes a driver's TLS from the configuration.
///
/// # Panics
/// When it cannot be used.
pub fn driver(config: &tls::ConnectConfig) -> Secure {
    Secure::new(Some(Arc::new(tls::Connector::new(config).expect("files of TLS").expect("a mode with TLS"))))
}
