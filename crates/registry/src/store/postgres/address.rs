//! PostgreSQL parameters of a store's address, including TLS. `sslmode` and the parameters that belong to it are read here: the driver knows three of
//! the modes and none of the files.

use std::sync::Arc;

use tls::postgres::Secure;
use tls::{ConnectConfig, ConnectMode};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::super::address::Names;
use super::STORE;
use crate::error::StoreError;

const NAMES: Names = Names {
    mode: "sslmode",
    ca: "sslrootcert",
    cert: "sslcert",
    key: "sslkey",
    both: "sslcert and sslkey belong together",
    reading: ["reading sslrootcert", "reading sslcert", "reading sslkey"],
};

/// The driver's settings of a database, and its TLS configuration. The two agree: with a mode that requires TLS the driver never goes on without it.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) config: Config,
    tls: ConnectConfig,
}

impl Database {
    /// Parses `postgres://…`. No error contains a part of the address.
    pub(super) fn parse(address: &str) -> Result<Database, StoreError> {
        let (rest, tls) = split(address)?;
        // The parser's message may contain a part of the address, and so of a password.
        let mut config: Config = rest.parse().map_err(|_| wrong("PostgreSQL's cannot be understood"))?;
        // The driver takes the name for the certificate from the host; an address alone will do.
        if config.get_hosts().is_empty() {
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        config.ssl_mode(match tls.mode {
            ConnectMode::Disable => SslMode::Disable,
            ConnectMode::Prefer => SslMode::Prefer,
            ConnectMode::Require | ConnectMode::VerifyCa | ConnectMode::VerifyFull => SslMode::Require,
        });
        Ok(Database { config, tls })
    }

    /// Returns TLS for one connection, with the current files.
    pub(super) async fn secure(&self) -> Result<Secure, StoreError> {
        Ok(Secure::new(NAMES.connector(STORE, &self.tls).await?.map(Arc::new)))
    }
}

fn wrong(reason: &'static str) -> StoreError {
    StoreError::Address { reason }
}

/// Splits an address into the part without TLS parameters, and the TLS configuration.
fn split(address: &str) -> Result<(String, ConnectConfig), StoreError> {
    // A password may contain a question mark: as in the driver, everything up to the first @ is skipped.
    let host = address.find('@').map_or(0, |at| at + 1);
    let (rest, parameters) = NAMES.take(address, address[host..].find('?').map(|at| host + at))?;
    let mode = match parameters.mode.as_deref() {
        None | Some("prefer") => ConnectMode::Prefer,
        Some("disable") => ConnectMode::Disable,
        Some("require") => ConnectMode::Require,
        Some("verify-ca") => ConnectMode::VerifyCa,
        Some("verify-full") => ConnectMode::VerifyFull,
        Some(_) => return Err(wrong("sslmode is none of disable, prefer, require, verify-ca and verify-full")),
    };
    let ca_file = match parameters.ca {
        Some(path) if path.as_os_str() == "system" => {
            // Anybody can get a certificate of a public CA, for a name of their own.
            if mode != ConnectMode::VerifyFull {
                return Err(wrong("sslrootcert=system needs sslmode=verify-full"));
            }
            Some(tls::system_authorities().to_owned())
        }
        given => given,
    };
    if matches!(mode, ConnectMode::VerifyCa | ConnectMode::VerifyFull) && ca_file.is_none() {
        return Err(wrong("sslmode=verify-ca and verify-full need sslrootcert, a file of CAs in PEM"));
    }
    let (cert_file, key_file) = (parameters.cert, parameters.key);
    Ok((rest, ConnectConfig { mode, ca_file, cert_file, key_file, ..ConnectConfig::default() }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_said_of_tls_is_taken_out() {
        let (rest, tls) = split("postgres://u:p@h/d").unwrap();
        assert_eq!((rest.as_str(), tls.mode), ("postgres://u:p@h/d", ConnectMode::Prefer));
        let (rest, tls) =
            split("postgres://u:p?sslmode=disable@h/d?sslmode=verify-full&options=-cx%3Dy&sslrootcert=/a%20b").unwrap();
        assert_eq!(rest, "postgres://u:p?sslmode=disable@h/d?options=-cx%3Dy");
        assert_eq!(tls.mode, ConnectMode::VerifyFull);
        assert_eq!(tls.ca_file, Some("/a b".into()));
        let (rest, tls) = split("postgres://h/d?sslcert=/c&sslkey=/k&sslmode=require").unwrap();
        assert_eq!((rest.as_str(), tls.mode), ("postgres://h/d", ConnectMode::Require));
        assert_eq!((tls.cert_file, tls.key_file), (Some("/c".into()), Some("/k".into())));
        let (_, tls) = split("postgres://h/d?sslmode=verify-full&sslrootcert=system").unwrap();
        assert_eq!(tls.ca_file.as_deref(), Some(tls::system_authorities()));
    }

    #[test]
    fn nothing_half_said_is_taken_for_less_than_tls() {
        for query in [
            "sslmode=",
            "sslmode",
            "sslmode=allow",
            "sslmode=Require",
            "sslmode=verify-ca",
            "sslmode=verify-full&sslrootcert=",
            "sslmode=require&sslrootcert=system",
            "sslrootcert=system",
            "sslcert=/c",
            "sslkey=/k",
            "sslmode=%ff",
            "sslmode=require&sslfoo=1",
        ] {
            let error = Database::parse(&format!("postgres://u:sesame@h/d?{query}")).err().unwrap();
            assert!(matches!(error, StoreError::Address { .. }), "{query}: {error}");
            assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_file_that_is_not_there_is_named() {
        let database = Database::parse("postgres://u:sesame@h/d?sslmode=verify-ca&sslrootcert=/not/there").unwrap();
        let error = database.secure().await.err().unwrap();
        let said = error.to_string();
        assert!(said.contains("reading sslrootcert") && said.contains("/not/there"), "{said}");
        assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    }

    #[test]
    fn the_driver_goes_on_without_tls_only_where_it_may() {
        for (mode, expected) in
            [("disable", SslMode::Disable), ("prefer", SslMode::Prefer), ("require", SslMode::Require)]
        {
            let database = Database::parse(&format!("postgres://u@h/d?sslmode={mode}")).unwrap();
            assert_eq!(database.config.get_ssl_mode(), expected);
        }
        assert_eq!(Database::parse("postgres://u@h/d").unwrap().config.get_ssl_mode(), SslMode::Prefer);
    }
}
