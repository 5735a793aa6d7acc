//! What a store's address says of TLS. The drivers know some of the modes, and of the files nothing or too little: what is said of TLS is taken
//! out of the address, and becomes a configuration as everywhere else.

use std::path::PathBuf;

use percent_encoding::percent_decode_str;
use tls::{ConnectConfig, Connector};

use crate::error::StoreError;

/// What a database's users call the parameters.
pub(super) struct Names {
    pub(super) mode: &'static str,
    pub(super) ca: &'static str,
    pub(super) cert: &'static str,
    pub(super) key: &'static str,
    /// What is said where only one of certificate and key is given.
    pub(super) both: &'static str,
    /// What is being done with the file of CAs, the certificate and the key when that fails.
    pub(super) reading: [&'static str; 3],
}

/// The parameters of TLS, as they were given. An empty file is none.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) mode: Option<String>,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Names {
    /// The address without its parameters of TLS, and these. `query`: where its question mark is, if it has one.
    ///
    /// # Errors
    /// A value is not UTF-8; only one of certificate and key is given.
    pub(super) fn take(&self, address: &str, query: Option<usize>) -> Result<(String, Said), StoreError> {
        let mut said = Said::default();
        let Some(query) = query else { return Ok((address.to_owned(), said)) };
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
                key if key == self.mode => said.mode = Some(text()?.into_owned()),
                key if key == self.ca => said.ca = file()?,
                key if key == self.cert => said.cert = file()?,
                key if key == self.key => said.key = file()?,
                _ => kept.push(parameter),
            }
        }
        if said.cert.is_some() != said.key.is_some() {
            return Err(StoreError::Address { reason: self.both });
        }
        let mut rest = address[..query].to_owned();
        if !kept.is_empty() {
            rest.push('?');
            rest.push_str(&kept.join("&"));
        }
        Ok((rest, said))
    }

    /// Reads the files. For each connection anew, so that one which begins after certificates were renewed has these.
    ///
    /// # Errors
    /// The first thing that is wrong.
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
