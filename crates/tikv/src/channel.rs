//! Connections to PD and TiKV: one to each address, opened at the first use, with or without TLS.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::ack::LateAcks;
use crate::error::Error;

const CONNECT: Duration = Duration::from_secs(2);
/// Idle time after which a keep-alive ping is sent, and time limit of its answer.
const ALIVE: Duration = Duration::from_secs(5);
/// Flow-control windows: bytes that a server may send before they are read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// TLS settings of the connections.
#[derive(Clone, Default)]
pub struct Security(Option<Arc<tls::Connector>>);

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Security").field(&self.0.as_ref().map(|_| "TLS")).finish()
    }
}

impl Security {
    /// Returns the settings without TLS.
    #[must_use]
    pub fn none() -> Security {
        Security(None)
    }

    /// Returns the settings for TLS: servers' certificates must be issued by a CA of `ca_file`, for the host that is connected to. `own` is a client
    /// certificate and its key. All files are PEM.
    ///
    /// # Errors
    /// A file is unusable; a key that other users may read is refused.
    pub fn tls(ca_file: PathBuf, own: Option<(PathBuf, PathBuf)>) -> Result<Security, Error> {
        let (cert_file, key_file) = own.unzip();
        let config = tls::ConnectConfig {
            mode: tls::ConnectMode::VerifyFull,
            ca_file: Some(ca_file),
            cert_file,
            key_file,
            ..tls::ConnectConfig::default()
        };
        let connector = tls::Connector::new(&config).map_err(|error| Error::Tls(Arc::new(error)))?;
        Ok(Security(connector.map(Arc::new)))
    }

    /// Returns the address to use among a server's `http://host:port` and `https://host:port`, without the scheme.
    pub(crate) fn address_of<'a>(&self, urls: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let scheme = if self.0.is_some() { "https://" } else { "http://" };
        urls.into_iter().find_map(|url| url.strip_prefix(scheme)).map(|address| address.trim_end_matches('/'))
    }
}

/// The connections. A look-up takes no lock.
#[derive(Debug)]
pub(crate) struct Channels {
    pub(crate) security: Security,
    open: ArcSwap<HashMap<String, Channel>>,
}

/// Maximum number of addresses, more than a cluster has; beyond it, all connections are forgotten, and opened again as needed.
const MOST: usize = 4096;

impl Channels {
    pub(crate) fn new(security: Security) -> Channels {
        Channels { security, open: ArcSwap::default() }
    }

    /// Returns the connection to `address`, `host:port`. It connects at its first call, and again after it was lost.
    ///
    /// # Errors
    /// The address is invalid.
    pub(crate) fn get(&self, address: &str) -> Result<Channel, Error> {
        if let Some(channel) = self.open.load().get(address) {
            return Ok(channel.clone());
        }
        let tls = self.security.0.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let tls = tls.clone();
            async move { tls::grpc(&uri, tls.as_ref()).await.map(TokioIo::new) }
        });
        let channel = endpoint(address)?.connect_with_connector_lazy(connector);
        self.open.rcu(|open| {
            let mut open = if open.len() < MOST { HashMap::clone(open) } else { HashMap::new() };
            open.insert(address.to_owned(), channel.clone());
            open
        });
        Ok(channel)
    }

    /// Returns a private connection for many small requests: pings are acknowledged together with the next request.
    ///
    /// # Errors
    /// The address is invalid.
    pub(crate) fn own(&self, address: &str) -> Result<Channel, Error> {
        let tls = self.security.0.clone();
        let connector = tower::service_fn(move |uri: Uri| {
            let tls = tls.clone();
            async move { tls::grpc(&uri, tls.as_ref()).await.map(|stream| TokioIo::new(LateAcks::new(stream))) }
        });
        Ok(endpoint(address)?.connect_with_connector_lazy(connector))
    }
}

fn endpoint(address: &str) -> Result<Endpoint, Error> {
    let wrong = |_| Error::refused("connecting", "this is no host:port");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(wrong)?;
    Ok(endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(ALIVE)
        .keep_alive_timeout(ALIVE)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_as_the_settings_say_and_never_otherwise() {
        let urls = ["http://a:1", "https://a:2/"];
        assert_eq!(Security::none().address_of(urls), Some("a:1"));
        assert_eq!(Security::none().address_of(["https://a:2"]), None);
        let unverified = tls::ConnectConfig { mode: tls::ConnectMode::Require, ..tls::ConnectConfig::default() };
        let tls = Security(tls::Connector::new(&unverified).expect("needs no file").map(Arc::new));
        assert!(tls.0.is_some());
        assert_eq!(tls.address_of(urls), Some("a:2"));
        assert_eq!(tls.address_of(["http://a:1"]), None);
    }
}
