//! Certificates made for a test, and a driver's TLS that trusts them.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::task::{Context, Poll};

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;
use tokio_rustls::rustls::pki_types::ServerName;

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
    /// A new one, with a directory of its own.
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

    /// Its own certificate.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// A certificate with this common name, for these hosts (names or addresses).
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

    /// The same for a database server, which may run as another user: it owns the key.
    pub fn issue_server(&self, name: &str, hosts: &[&str]) -> Pair {
        let pair = self.issue(name, hosts);
        if let Some(user) = server_user() {
            run(Command::new("chown").arg(user).arg(&pair.key));
        }
        pair
    }

    /// A driver's TLS that trusts this authority alone, checks the host, and shows a certificate if it is given one.
    ///
    /// # Panics
    /// When a file cannot be used.
    pub fn client(&self, shows: Option<&Pair>) -> Tls {
        let config = tls::ConnectConfig {
            mode: tls::ConnectMode::VerifyFull,
            ca_file: Some(self.ca_file()),
            cert_file: shows.map(|pair| pair.cert.clone()),
            key_file: shows.map(|pair| pair.key.clone()),
            ..tls::ConnectConfig::default()
        };
        Tls::new(&config)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Authority::new()
    }
}

/// Puts files in the place of others, as somebody does who renews certificates.
///
/// # Panics
/// When that fails.
pub fn replace(pair: &Pair, by: &Pair) {
    for (from, to) in [(&by.cert, &pair.cert), (&by.key, &pair.key)] {
        std::fs::copy(from, to).expect("replace a file");
    }
}

// === A driver's TLS ===

/// TLS for tokio-postgres.
#[derive(Debug, Clone)]
pub struct Tls(Arc<tls::Connector>);

impl Tls {
    /// As the configuration says.
    ///
    /// # Panics
    /// When it cannot be used.
    pub fn new(config: &tls::ConnectConfig) -> Tls {
        Tls(Arc::new(tls::Connector::new(config).expect("files of TLS").expect("a mode with TLS")))
    }

    /// Begins TLS on any connection, at once.
    ///
    /// # Errors
    /// The handshake fails.
    pub async fn begin<S>(&self, stream: S, host: &str) -> io::Result<Stream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        TlsConnector::from(self.0.config().clone()).connect(name, stream).await.map(Stream)
    }
}

/// TLS with one host.
#[derive(Debug)]
pub struct Named(Tls, String);

/// A connection with TLS.
#[derive(Debug)]
pub struct Stream<S>(pub client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Stream<S>;
    type TlsConnect = Named;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<Named> {
        Ok(Named(self.clone(), domain.to_owned()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Named {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.0.begin(stream, &self.1).await })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        match certificates.and_then(<[_]>::first).and_then(|certificate| tls::end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
