//! TLS parameters of a store's address. The drivers know some of the modes, and little or nothing of the files: so these parameters are taken out of
//! the address, and become a configuration as everywhere else.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use tls::{ConnectConfig, Connector};

use crate::error::StoreError;

/// Names of the TLS parameters, as users of the database know them.
pub(super) struct Names {
    pub(super) mode: &'static str,
    pub(super) ca: &'static str,
    pub(super) cert: &'static str,
    pub(super) key: &'static str,
    /// Error message if only one of certificate and key is given.
    pub(super) both: &'static str,
    /// Descriptions of reading the file of CAs, the certificate and the key, for errors.
    pub(super) reading: [&'static str; 3],
}

/// The TLS parameters as given. An empty file name counts as absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TlsParameters {
    pub(super) mode: Option<String>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Names {
    /// Splits an address into the part without TLS parameters, and these parameters. `query` is the position of the question mark, if there is one.
    ///
    /// # Errors
    /// A value is not UTF-8; only one of certificate and key is given.
    pub(super) fn take(&self, address: &str, query: Option<usize>) -> Result<(String, TlsParameters), StoreError> {
        let mut parameters = TlsParameters::default();
        let Some(query) = query else { return Ok((address.to_owned(), parameters)) };
        let mut kept = Vec::new();
        for parameter in address[query + 1..].split('&') {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let text = || {
                let text = percent_decode_str(value).decode_utf8();
                text.map_err(|_| StoreError::Address { reason: "a parameter of TLS is not UTF-8" })
            };
            let file =
                || Ok::<_, StoreError>(Some(PathBuf::from(&*text()?)).filter(|path| !path.as_os_str().is_empty()));
            match key {
                key if key == self.mode => parameters.mode = Some(text()?.into_owned()),
                key if key == self.ca => parameters.ca = file()?,
                key if key == self.cert => parameters.cert = file()?,
                key if key == self.key => parameters.key = file()?,
                _ => kept.push(parameter),
            }
        }
        if parameters.cert.is_some() != parameters.key.is_some() {
            return Err(StoreError::Address { reason: self.both });
        }
        let mut rest = address[..query].to_owned();
        if !kept.is_empty() {
            rest.push('?');
            rest.push_str(&kept.join("&"));
        }
        Ok((rest, parameters))
    }

    /// Reads the files, again for each connection, so that a new connection uses renewed certificates.
    ///
    /// # Errors
    /// The first fault found.
    pub(super) async fn connector(
        &self,
        store: &'static str,
        config: &ConnectConfig,
    ) -> Result<Option<Connector>, StoreError> {
        let config = config.clone();
        let made = tokio::task::spawn_blocking(move || Connector::new(&config)).await;
        let made = made.map_err(|error| StoreError::unavailable(store, "preparing TLS", error))?;
        made.map_err(|error| {
            let doing = match error.setting() {
                "ca_file" => self.reading[0],
                "cert_file" => self.reading[1],
                "key_file" => self.reading[2],
                _ => "preparing TLS",
            };
            StoreError::unavailable(store, doing, error)
        })
    }
}
