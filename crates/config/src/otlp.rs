//! The configuration of an OTLP collector, and connections to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use proxy::config::TracingConfig;
use tls::{ConnectConfig, ConnectMode, Connector, Target};
use tonic::metadata::{Ascii, MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint, Uri};

/// Longest wait for the collector's answer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Longest time to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// Interval of HTTP/2 keep-alive pings on a connection, and longest wait for their answer.
const ALIVE: Duration = Duration::from_secs(20);
/// Expected form of an endpoint, for messages.
pub const EXPECTED: &str = "expected http://host:port or https://host:port of a collector that takes OTLP over gRPC";
/// Most headers.
const MOST_HEADERS: usize = 32;

::settings::settings! {
    /// `[metrics.otlp]`: a collector that the metrics are sent to.
    #[derive(Clone, PartialEq)]
    pub struct OtlpConfig: Default {
        /// Collector, http:// or https://; not set: nothing is sent.
        pub endpoint: Option<String> = None, example(r#""http://127.0.0.1:4317""#);
        /// Time from one request to the next.
        pub interval: Duration = Duration::from_secs(30);
        /// Service name of the figures.
        pub service_name: String = "kingpost".into();
        /// CAs of the collector's certificate, PEM, for https://; not set: the system's.
        pub ca_file: Option<PathBuf> = None, example(r#""/etc/kingpost/collector-ca.pem""#);
        /// Certificate that is shown to the collector, PEM.
        pub cert_file: Option<PathBuf> = None, example(r#""/etc/kingpost/collector.crt""#);
        /// Key of that certificate, PEM.
        pub key_file: Option<PathBuf> = None, example(r#""/etc/kingpost/collector.key""#);
        /// Headers of each request, a token for example. To another machine only with https://.
        pub headers: Vec<String> = Vec::new(), secret(), example(r#"["authorization: Bearer a-token"]"#);
    }
}

impl std::fmt::Debug for OtlpConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtlpConfig")
            .field("endpoint", &self.endpoint)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}

/// The configuration of a collector. `Debug` shows no header: headers are usually tokens.
pub struct Collector<'a> {
    /// `http://host:port` or `https://host:port`.
    pub endpoint: &'a str,
    ca_file: Option<&'a Path>,
    cert_file: Option<&'a Path>,
    key_file: Option<&'a Path>,
    headers: &'a [String],
}

/// An error of the configuration: the key, below that of the collector, and the values found and expected. Never a header's value.
#[derive(Debug)]
pub struct Wrong {
    /// Name of the setting.
    pub key: &'static str,
    /// Reason, without the value of a header.
    pub why: String,
}

impl<'a> Collector<'a> {
    /// Returns the collector for spans, if there is one.
    pub fn of_traces(config: &'a TracingConfig) -> Option<Collector<'a>> {
        Some(Collector {
            endpoint: config.endpoint.as_deref()?,
            ca_file: config.ca_file.as_deref(),
            cert_file: config.cert_file.as_deref(),
            key_file: config.key_file.as_deref(),
            headers: &config.headers,
        })
    }

    /// Returns the collector for metrics, if there is one.
    pub fn of_metrics(config: &'a OtlpConfig) -> Option<Collector<'a>> {
        Some(Collector {
            endpoint: config.endpoint.as_deref()?,
            ca_file: config.ca_file.as_deref(),
            cert_file: config.cert_file.as_deref(),
            key_file: config.key_file.as_deref(),
            headers: &config.headers,
        })
    }

    /// Returns `host:port`, and true if the connection uses TLS; `None` if the endpoint has another scheme.
    pub fn address(&self) -> Option<(&'a str, bool)> {
        let (rest, secure) = match self.endpoint.strip_prefix("https://") {
            Some(rest) => (rest, true),
            None => (self.endpoint.strip_prefix("http://")?, false),
        };
        Some((rest.strip_suffix('/').unwrap_or(rest), secure))
    }

    /// True if a file is configured that only TLS uses.
    pub fn has_tls_files(&self) -> bool {
        self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some()
    }

    /// True if there are headers: they may be tokens.
    pub fn has_headers(&self) -> bool {
        !self.headers.is_empty()
    }

    /// Makes a channel that connects with the first request, and again after a lost connection. Needs a runtime.
    ///
    /// # Errors
    /// The endpoint is malformed, or a TLS file cannot be used.
    pub fn channel(&self) -> Result<Channel, Wrong> {
        let (endpoint, target) = self.way()?;
        let connector = target.map(|target| target.connector);
        let connector = tower::service_fn(move |uri: Uri| {
            let connector = connector.clone();
            async move { tls::grpc(&uri, connector.as_ref()).await.map(TokioIo::new) }
        });
        let endpoint = endpoint.connect_timeout(CONNECT).timeout(PATIENCE).tcp_nodelay(true);
        let endpoint = endpoint.http2_keep_alive_interval(ALIVE).keep_alive_timeout(ALIVE);
        Ok(endpoint.connect_with_connector_lazy(connector))
    }

    /// Returns the endpoint, and the name that its certificate must have if the connection uses TLS.
    ///
    /// # Errors
    /// The endpoint is malformed, or a TLS file cannot be used.
    pub fn way(&self) -> Result<(Endpoint, Option<Target>), Wrong> {
        let no_endpoint = || Wrong { key: "endpoint", why: format!("found {:?}, {EXPECTED}", self.endpoint) };
        let (address, secure) = self.address().ok_or_else(no_endpoint)?;
        let scheme = if secure { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|_| no_endpoint())?;
        let target = if secure { Some(self.target(address)?.ok_or_else(no_endpoint)?) } else { None };
        Ok((endpoint, target))
    }

    /// Returns the connector and the name that the certificate must have; `None` if the host is no valid name.
    fn target(&self, address: &str) -> Result<Option<Target>, Wrong> {
        let config = ConnectConfig {
            mode: ConnectMode::VerifyFull,
            ca_file: Some(PathBuf::from(self.ca_file.unwrap_or_else(|| tls::system_authorities()))),
            cert_file: self.cert_file.map(PathBuf::from),
            key_file: self.key_file.map(PathBuf::from),
            ..ConnectConfig::default()
        };
        let connector =
            Connector::new(&config).map_err(|error| Wrong { key: error.setting(), why: error.to_string() })?;
        let host = process::address::host(address);
        Ok(connector.and_then(|connector| Target::new(Arc::new(connector), host)))
    }

    /// Makes the headers of each request. An entry is `name: value`, as in HTTP.
    ///
    /// # Errors
    /// An entry is no header. The error shows its name, never its value.
    pub fn metadata(&self) -> Result<MetadataMap, Wrong> {
        let wrong = |why: String| Wrong { key: "headers", why };
        if self.headers.len() > MOST_HEADERS {
            return Err(wrong(format!("found {} headers, expected at most {MOST_HEADERS}", self.headers.len())));
        }
        let mut metadata = MetadataMap::new();
        for (index, header) in self.headers.iter().enumerate() {
            let Some((name, value)) = header.split_once(':') else {
                return Err(wrong(format!("found no colon in entry {index}, expected \"name: value\"")));
            };
            let name = name.trim().to_ascii_lowercase();
            let key = MetadataKey::<Ascii>::from_bytes(name.as_bytes()).map_err(|_| {
                wrong(format!("found {name:?} as the name in entry {index}, expected that of a header"))
            })?;
            let mut value = MetadataValue::<Ascii>::try_from(value.trim()).map_err(|_| {
                wrong(format!(
                    "found characters in the value of {name:?} that a header may not have, expected visible ASCII"
                ))
            })?;
            value.set_sensitive(true);
            metadata.append(key, value);
        }
        Ok(metadata)
    }
}

impl std::fmt::Debug for Collector<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Collector").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn collector<'a>(endpoint: &'a str, headers: &'a [String]) -> Collector<'a> {
        Collector { endpoint, ca_file: None, cert_file: None, key_file: None, headers }
    }

    #[test]
    fn an_endpoint_has_a_scheme_that_says_whether_there_is_tls() {
        for (endpoint, expected) in [
            ("http://127.0.0.1:4317", Some(("127.0.0.1:4317", false))),
            ("https://c.example:4317/", Some(("c.example:4317", true))),
            ("https://[::1]:4317", Some(("[::1]:4317", true))),
            ("grpc://c:4317", None),
            ("c:4317", None),
        ] {
            assert_eq!(collector(endpoint, &[]).address(), expected, "{endpoint}");
        }
    }

    #[test]
    fn headers_are_sent_as_they_are_and_never_shown() {
        let headers = ["X-Scope-OrgID: shop".to_owned(), "authorization:Bearer s3cret".to_owned()];
        let metadata = collector("http://c:4317", &headers).metadata().unwrap_or_else(|wrong| panic!("{}", wrong.why));
        assert_eq!(metadata.get("x-scope-orgid").unwrap(), "shop");
        assert_eq!(metadata.get("authorization").unwrap(), "Bearer s3cret");
        assert!(!format!("{metadata:?}").contains("s3cret"));
        assert!(!format!("{:?}", collector("http://c:4317", &headers)).contains("s3cret"));
        for (header, expected) in [
            ("s3cret", "found no colon in entry 0, expected \"name: value\""),
            ("a b: s3cret", "found \"a b\" as the name in entry 0, expected that of a header"),
            ("a: s3cret\n", "found characters in the value"),
            ("a-bin: s3cret", "found \"a-bin\" as the name in entry 0"),
        ] {
            let headers = [format!("{header}{}", if header.ends_with('\n') { "x" } else { "" })];
            let why = collector("http://c:4317", &headers).metadata().unwrap_err().why;
            assert!(why.starts_with(expected) && !why.contains("s3cret"), "{why}");
        }
    }
}
