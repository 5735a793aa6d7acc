//! MySQL parameters of a store's address, including TLS, with the names and meanings of MySQL's own clients. The driver has parameters of its own for
//! some of them; these are refused, so that there is one way to set each.

use std::error::Error as _;
use std::path::PathBuf;

use mysql_async::{ClientIdentity, Conn, DriverError, Error, Opts, OptsBuilder, SslOpts};
use tls::rustls;
use tls::{ConnectConfig, ConnectMode, LinkError};

use super::super::address::{Names, TlsParameters};
use super::{STORE, failed, within};
use crate::error::StoreError;

const NAMES: Names = Names {
    mode: "ssl-mode",
    ca: "ssl-ca",
    cert: "ssl-cert",
    key: "ssl-key",
    both: "ssl-cert and ssl-key belong together",
    reading: ["reading ssl-ca", "reading ssl-cert", "reading ssl-key"],
};

/// Parameters of the driver, and of clients of other databases, for the same settings.
const OTHERS: [&str; 9] = [
    "require_ssl",
    "verify_ca",
    "verify_identity",
    "built_in_roots",
    "sslmode",
    "ssl_mode",
    "sslrootcert",
    "sslcert",
    "sslkey",
];

/// Server name used when a certificate for any name is accepted. The driver accepts such a certificate only if rustls' error contains this word, and
/// rustls' error contains the expected name. A test checks that both still hold; otherwise certificates would be refused.
const ANYBODY: &str = "NotValidForName.invalid";

/// The driver's settings of a database, and its TLS configuration.
#[derive(Clone)]
pub(super) struct Database {
    /// Settings without TLS.
    options: Opts,
    tls: ConnectConfig,
}

impl Database {
    /// Parses `mysql://…`. No error contains a part of the address. `setup`: the first statements on each connection.
    pub(super) fn parse(address: &str, setup: Vec<String>) -> Result<Database, StoreError> {
        let (rest, parameters) = NAMES.take(address, address.find('?'))?;
        let (given, tls) = (parameters.mode.is_some(), config(parameters)?);
        let query = rest.split_once('?').map_or("", |(_, query)| query);
        if query.split('&').any(|parameter| OTHERS.contains(&parameter.split('=').next().unwrap_or_default())) {
            return Err(wrong("TLS to MySQL is asked for by ssl-mode, ssl-ca, ssl-cert and ssl-key"));
        }
        // The parser's message may contain a part of the address, and so of a password.
        let options = Opts::from_url(&rest).map_err(|_| wrong("MySQL's cannot be understood"))?;
        let tls = match (options.socket(), tls.mode) {
            (None, _) | (_, ConnectMode::Disable) => tls,
            // Nobody can eavesdrop on a socket.
            (Some(_), ConnectMode::Prefer) => ConnectConfig::default(),
            (Some(_), _) if given => return Err(wrong("there is no TLS on a Unix socket: ssl-mode asks for it")),
            (Some(_), _) => return Err(wrong("there is no TLS on a Unix socket: ssl-ca or ssl-cert asks for it")),
        };
        Ok(Database { options: OptsBuilder::from_opts(options).setup(setup).stmt_cache_size(64).into(), tls })
    }

    /// Opens a connection; with TLS if configured, and with the current files.
    pub(super) async fn connect(&self) -> Result<Conn, StoreError> {
        let doing = "connecting";
        let error = |e| failed(doing, &e);
        if within(doing, NAMES.connector(STORE, &self.tls)).await??.is_none() {
            return within(doing, Conn::new(self.options.clone())).await?.map_err(error);
        }
        match within(doing, Conn::new(self.secured())).await? {
            // The server announces this before anything is sent; a failed handshake is another error.
            Err(Error::Driver(DriverError::NoClientSslFlagFromServer)) if self.tls.mode == ConnectMode::Prefer => {
                within(doing, Conn::new(self.options.clone())).await?.map_err(error)
            }
            connected => connected.map_err(error),
        }
    }

    /// Returns the settings with TLS. The driver reads the files again for each of these.
    fn secured(&self) -> Opts {
        let tls = &self.tls;
        // An IPv6 address has brackets in the address, but not in a certificate.
        let mut name = self.options.ip_or_hostname().trim_matches(['[', ']']);
        let mut ssl = SslOpts::default();
        match &tls.ca_file {
            Some(file) => {
                ssl = ssl.with_root_certs(vec![file.clone().into()]).with_disable_built_in_roots(true);
                if tls.mode != ConnectMode::VerifyFull {
                    ssl = ssl.with_danger_skip_domain_validation(true);
                    name = ANYBODY;
                }
            }
            // The server's possession of the certificate's key is verified all the same.
            None => ssl = ssl.with_danger_accept_invalid_certs(true),
        }
        if let (Some(cert), Some(key)) = (&tls.cert_file, &tls.key_file) {
            let (cert, key) = (PathBuf::clone(cert), PathBuf::clone(key));
            ssl = ssl.with_client_identity(Some(ClientIdentity::new(cert.into(), key.into())));
        }
        let ssl = ssl.with_danger_tls_hostname_override(Some(name.to_owned()));
        // For a server on this machine, the driver would switch from the connection to its Unix socket.
        OptsBuilder::from_opts(self.options.clone()).ssl_opts(ssl).prefer_socket(false).into()
    }
}

fn wrong(reason: &'static str) -> StoreError {
    StoreError::Address { reason }
}

/// Makes the common configuration from the parameters. As with MySQL's own clients, CAs without a mode imply their verification, and a certificate
/// without a mode implies TLS.
fn config(parameters: TlsParameters) -> Result<ConnectConfig, StoreError> {
    let mode = match parameters.mode.map(|mode| mode.to_ascii_uppercase()).as_deref() {
        None if parameters.ca.is_some() => ConnectMode::VerifyCa,
        None if parameters.cert.is_some() => ConnectMode::Require,
        None | Some("PREFERRED") => ConnectMode::Prefer,
        Some("DISABLED") => ConnectMode::Disable,
        Some("REQUIRED") => ConnectMode::Require,
        Some("VERIFY_CA") => ConnectMode::VerifyCa,
        Some("VERIFY_IDENTITY") => ConnectMode::VerifyFull,
        Some(_) => {
            return Err(wrong("ssl-mode is none of DISABLED, PREFERRED, REQUIRED, VERIFY_CA and VERIFY_IDENTITY"));
        }
    };
    if matches!(mode, ConnectMode::VerifyCa | ConnectMode::VerifyFull) && parameters.ca.is_none() {
        return Err(wrong("ssl-mode=VERIFY_CA and VERIFY_IDENTITY need ssl-ca, a file of CAs in PEM"));
    }
    let (ca_file, cert_file, key_file) = (parameters.ca, parameters.cert, parameters.key);
    Ok(ConnectConfig { mode, ca_file, cert_file, key_file, ..ConnectConfig::default() })
}

/// Describes an error; TLS errors in the words used on other connections.
pub(super) fn describe(error: &Error) -> String {
    if let Error::Driver(DriverError::NoClientSslFlagFromServer) = error {
        return "TLS is wanted, and the server does not support TLS".into();
    }
    let mut cause = error.source();
    while let Some(known) = cause {
        let inner = known.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(of_tls) = known.downcast_ref::<rustls::Error>().or(inner) {
            return format!("TLS: {}", LinkError::from(of_tls.clone()));
        }
        cause = known.source();
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(query: &str) -> Result<Database, StoreError> {
        Database::parse(&format!("mysql://u:sesame@h/d?{query}"), Vec::new())
    }

    #[test]
    fn modes_are_mysqls() {
        for (query, mode) in [
            ("", ConnectMode::Prefer),
            ("ssl-mode=PREFERRED", ConnectMode::Prefer),
            ("ssl-mode=DISABLED", ConnectMode::Disable),
            ("ssl-mode=required", ConnectMode::Require),
            ("ssl-mode=VERIFY_CA&ssl-ca=/ca", ConnectMode::VerifyCa),
            ("ssl-mode=Verify_Identity&ssl-ca=/ca", ConnectMode::VerifyFull),
            ("ssl-ca=/ca", ConnectMode::VerifyCa),
            ("ssl-cert=/c&ssl-key=/k", ConnectMode::Require),
            ("ssl-mode=DISABLED&ssl-ca=/ca", ConnectMode::Disable),
            // Nobody can eavesdrop on a Unix socket.
            ("socket=/s", ConnectMode::Disable),
            ("socket=/s&ssl-mode=PREFERRED", ConnectMode::Disable),
        ] {
            assert_eq!(parse(query).unwrap().tls.mode, mode, "{query}");
        }
        let all = parse("ssl-ca=/a%20b&ssl-cert=/c&stmt_cache_size=3&ssl-key=/k").unwrap();
        let files = [all.tls.ca_file, all.tls.cert_file, all.tls.key_file];
        assert_eq!(files, ["/a b", "/c", "/k"].map(|path| Some(PathBuf::from(path))));
    }

    #[test]
    fn nothing_half_said_is_taken_for_less_than_tls() {
        for query in [
            "ssl-mode=",
            "ssl-mode",
            "ssl-mode=verify-full",
            "ssl-mode=VERIFY_CA",
            "ssl-mode=VERIFY_IDENTITY&ssl-ca=",
            "ssl-cert=/c",
            "ssl-key=/k",
            "ssl-mode=%ff",
            "ssl-mode=REQUIRED&ssl-foo=1",
            "ssl-mode=REQUIRED&socket=/s",
            "ssl-ca=/ca&socket=/s",
            "require_ssl=true",
            "ssl-mode=REQUIRED&verify_ca=false",
            "sslmode=require",
        ] {
            let error = parse(query).err().unwrap_or_else(|| panic!("taken: {query}"));
            assert!(matches!(error, StoreError::Address { .. }), "{query}: {error}");
            assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
        }
    }

    #[test]
    fn the_driver_is_told_what_to_verify() {
        let of = |query: &str| parse(query).unwrap().secured();
        let said = |options: &Opts| {
            let ssl = options.ssl_opts().unwrap();
            let name = ssl.tls_hostname_override().unwrap().to_owned();
            (ssl.accept_invalid_certs(), ssl.skip_domain_validation(), ssl.disable_built_in_roots(), name)
        };
        let host = || "h".to_owned();
        assert_eq!(said(&of("ssl-mode=REQUIRED")), (true, false, false, host()));
        for mode in ["PREFERRED", "REQUIRED", "VERIFY_CA"] {
            assert_eq!(said(&of(&format!("ssl-mode={mode}&ssl-ca=/ca"))), (false, true, true, ANYBODY.into()));
        }
        let full = of("ssl-mode=VERIFY_IDENTITY&ssl-ca=/ca");
        assert_eq!(said(&full), (false, false, true, host()));
        assert!(!full.prefer_socket());
        let sixth = Database::parse("mysql://u@[::1]/d?ssl-mode=VERIFY_IDENTITY&ssl-ca=/ca", Vec::new()).unwrap();
        assert_eq!(said(&sixth.secured()).3, "::1");
    }
}
