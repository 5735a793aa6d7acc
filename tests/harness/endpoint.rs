//! An address that speaks PostgreSQL, and connections to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, Config, Error, NoTls};

use crate::wait::{SOON, tails};

/// User of the tests' clients. Probes, replication and the harness connect as others, so its connections on a server are those of the pool. It owns
/// the database [`DATABASE`]. Servers trust it.
pub const USER: &str = "alice";
/// Database of the tests' clients.
pub const DATABASE: &str = "app";
/// A user whom the servers ask for a password by SCRAM-SHA-256.
pub const SCRAM_USER: &str = "sam";
/// Password of [`SCRAM_USER`].
pub const SCRAM_PASSWORD: &str = "correct horse";

/// A server or a proxy on the loopback.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Port on 127.0.0.1.
    pub port: u16,
    /// Directory of the logs shown at a failure.
    pub logs: PathBuf,
}

impl Endpoint {
    /// Makes an endpoint for `port`, with logs in `logs`.
    pub fn new(port: u16, logs: &Path) -> Endpoint {
        Endpoint { port, logs: logs.into() }
    }

    /// Returns the default configuration of the tests' clients.
    pub fn config(&self) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user(USER).dbname(DATABASE).connect_timeout(Duration::from_secs(20));
        config
    }

    /// Returns the address as a URL for libpq and its relatives.
    pub fn url(&self) -> String {
        format!("postgresql://{USER}@127.0.0.1:{}/{DATABASE}", self.port)
    }

    /// Connects with [`Endpoint::config`].
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn connect(&self) -> Client {
        self.connect_as(&self.config()).await
    }

    /// Connects with `config`.
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn connect_as(&self, config: &Config) -> Client {
        let connected = self.try_connect(config).await;
        connected.unwrap_or_else(|e| panic!("connect to port {}: {e:?}\n{}", self.port, tails(&self.logs)))
    }

    /// Connects with `config`, or returns the error.
    ///
    /// # Errors
    /// The error of the server or the system.
    ///
    /// # Panics
    /// When there is no answer in time.
    pub async fn try_connect(&self, config: &Config) -> Result<Client, Error> {
        let attempt = tokio::time::timeout(SOON, config.connect(NoTls)).await;
        let (client, connection) = match attempt {
            Ok(outcome) => outcome?,
            Err(_) => panic!("no answer to a login on port {} in {SOON:?}\n{}", self.port, tails(&self.logs)),
        };
        tokio::spawn(connection);
        Ok(client)
    }

    /// Connects; also returns all messages outside of answers: notices, notifications.
    ///
    /// # Panics
    /// When it cannot be made.
    pub async fn connect_with_messages(&self, config: &Config) -> (Client, UnboundedReceiver<AsyncMessage>) {
        let (client, mut connection) = config.connect(NoTls).await.expect("connect");
        let (messages, inbox) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                let _ = messages.send(message);
            }
        });
        (client, inbox)
    }
}

/// Returns the SQLSTATE of an error, or the empty string if it did not come from a server.
pub fn sqlstate(error: &Error) -> &str {
    error.code().map_or("", |code| code.code())
}
