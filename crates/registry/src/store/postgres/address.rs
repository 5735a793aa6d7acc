//! What a store's address says of the database, and of TLS with it. `sslmode` and what belongs to it are read here: the driver knows
//! three of the modes and none of the files.

use std::path::PathBuf;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tls::postgres::Secure;
use tls::{ConnectConfig, ConnectMode, Connector};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;

use super::STORE;
use crate::error::StoreError;

/// How the database is reached: the driver's settings, and TLS to go with them. The two agree: a mode that wants TLS never has the
/// driver go on without. Cloning is cheap where files are concerned: they are read once.
#[derive(Clone)]
pub(super) struct Database {
    pub(super) config: Config,
    pub(super) secure: Secure,
}

impl Database {
    /// Reads `postgres://…` and the files that it names. No error holds a part of the address but the name of such a file.
    pub(super) fn parse(address: &str) -> Result<Database, StoreError> {
        let wrong = |reason| StoreError::Address { reason };
        let (rest, tls) = split(address)?;
        // The parser's message may hold a part of the address, and so of a password.
        let mut config: Config = rest.parse().map_err(|_| wrong("PostgreSQL's cannot be understood"))?;
        // By the host the driver tells what the certificate is to be for; an address alone will do.
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
        let connector = Connector::new(&tls).map_err(|error| {
            let doing = match error.setting() {
                "ca_file" => "reading sslrootcert",
                "cert_file" => "reading sslcert",
                "key_file" => "reading sslkey",
                _ => "preparing TLS",
            };
            StoreError::unavailable(STORE, doing, error)
        })?;
        Ok(Database { config, secure: Secure::new(connector.map(Arc::new)) })
    }
}

/// The address without what it says of TLS, and that.
fn split(address: &str) -> Result<(String, ConnectConfig), StoreError> {
    let wrong = |reason| StoreError::Address { reason };
    let mut tls = ConnectConfig { mode: ConnectMode::Prefer, ..ConnectConfig::default() };
    // A password may have a question mark in it: as in the driver, everything up to the first @ is not looked at.
    let host = address.find('@').map_or(0, |at| at + 1);
    let Some(query) = address[host..].find('?').map(|at| host + at) else { return Ok((address.to_owned(), tls)) };
    let mut system = false;
    let mut kept = Vec::new();
    for parameter in address[query + 1..].split('&') {
        let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let value = || percent_decode_str(value).decode_utf8().map_err(|_| wrong("a parameter of TLS is not UTF-8"));
        let file = || Ok::<_, StoreError>(Some(PathBuf::from(&*value()?)).filter(|path| !path.as_os_str().is_empty()));
        match key {
            "sslmode" => {
                tls.mode = match &*value()? {
                    "disable" => ConnectMode::Disable,
                    "prefer" => ConnectMode::Prefer,
                    "require" => ConnectMode::Require,
                    "verify-ca" => ConnectMode::VerifyCa,
                    "verify-full" => ConnectMode::VerifyFull,
                    _ => return Err(wrong("sslmode is none of disable, prefer, require, verify-ca and verify-full")),
                }
            }
            "sslrootcert" => {
                tls.ca_file = file()?;
                system = tls.ca_file.as_deref().is_some_and(|path| path.as_os_str() == "system");
            }
            "sslcert" => tls.cert_file = file()?,
            "sslkey" => tls.key_file = file()?,
            _ => kept.push(parameter),
        }
    }
    if system {
        // Of the CAs that everybody trusts, anybody has a certificate: for a name of their own.
        if tls.mode != ConnectMode::VerifyFull {
            return Err(wrong("sslrootcert=system needs sslmode=verify-full"));
        }
        tls.ca_file = Some(tls::system_authorities().to_owned());
    }
    match tls.mode {
        ConnectMode::VerifyCa | ConnectMode::VerifyFull if tls.ca_file.is_none() => {
            return Err(wrong("sslmode=verify-ca and verify-full need sslrootcert, a file of CAs in PEM"));
        }
        _ if tls.cert_file.is_some() != tls.key_file.is_some() => {
            return Err(wrong("sslcert and sslkey belong together"));
        }
        _ => {}
    }
    let mut rest = address[..query].to_owned();
    if !kept.is_empty() {
        rest.push('?');
        rest.push_str(&kept.join("&"));
    }
    Ok((rest, tls))
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
        let error = Database::parse("postgres://u:sesame@h/d?sslmode=verify-ca&sslrootcert=/not/there").err().unwrap();
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
