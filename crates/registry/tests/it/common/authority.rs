//! Certificates for the servers of stores.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};

/// A certificate authority, and the directory of its files.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) directory: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let directory = tempfile::Builder::new().prefix("kp-registry-ca-").tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // A distinct name: with the same name, another authority would fail by its signature instead.
        params.distinguished_name.push(DnType::CommonName, directory.path().display().to_string());
        let key = KeyPair::generate().unwrap();
        std::fs::write(directory.path().join("ca.crt"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: Issuer::new(params, key), directory }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn ca(&self) -> String {
        self.file("ca.crt").display().to_string()
    }

    /// Issues a certificate for a client of this name; returns the paths of the certificate and its key.
    pub(crate) fn client(&self, name: &str) -> [String; 2] {
        self.issue(name, &[], self.directory.path());
        ["crt", "key"].map(|kind| self.file(&format!("{name}.{kind}")).display().to_string())
    }

    /// Issues `NAME.crt` and `NAME.key` into this directory.
    pub(crate) fn issue(&self, name: &str, hosts: &[&str], into: &Path) {
        let mut params =
            CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(into.join(format!("{name}.crt")), certificate.pem()).unwrap();
        let file = into.join(format!("{name}.key"));
        std::fs::write(&file, key.serialize_pem()).unwrap();
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}
