//! The operator of the proxy, whose actions during the clients' work no client may notice.

use std::time::Instant;

use kingpost_tests::{Kingpost, SOON};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Error, SimpleQueryMessage, SimpleQueryRow};

use crate::session::Order;
use crate::world::{POLL, World};

/// An operator at the console.
pub(crate) struct Operator<'a> {
    proxy: &'a Kingpost,
    console: Option<Client>,
    /// A `PAUSE` without a `RESUME`; it completes when all server connections are closed.
    pause: Option<JoinHandle<()>>,
    /// Actions so far.
    pub(crate) did: Operated,
}

/// Actions of an operator.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Operated {
    /// Orders that were carried out.
    pub(crate) orders: u64,
    /// Server connections that `cut` has ended.
    pub(crate) cut: u64,
    /// Packets that were sent while the proxy was paused.
    pub(crate) sent_paused: u64,
}

impl Operated {
    /// Sums the actions of both.
    pub(crate) fn and(self, other: Operated) -> Operated {
        Operated {
            orders: self.orders + other.orders,
            cut: self.cut + other.cut,
            sent_paused: self.sent_paused + other.sent_paused,
        }
    }
}

impl<'a> Operator<'a> {
    pub(crate) fn of(proxy: &'a Kingpost) -> Operator<'a> {
        Operator { proxy, console: None, pause: None, did: Operated::default() }
    }

    /// Carries an order out. A paused proxy is resumed first.
    ///
    /// # Errors
    /// Refused by the console or a server.
    pub(crate) async fn order(&mut self, order: Order, world: &World) -> Result<(), Error> {
        self.resume().await?;
        self.did.orders += 1;
        match order {
            Order::Reconnect => self.run("RECONNECT").await.map(drop),
            Order::Reload => self.run("RELOAD").await.map(drop),
            Order::Pause => self.pause().await,
            Order::Cut => self.cut(world).await,
        }
    }

    /// True if clients that begin a statement wait.
    pub(crate) fn has_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Resumes the proxy, if it was paused.
    ///
    /// # Errors
    /// Refused by the console.
    pub(crate) async fn resume(&mut self) -> Result<(), Error> {
        let Some(pause) = self.pause.take() else { return Ok(()) };
        self.run("RESUME").await?;
        // RESUME ends an incomplete PAUSE.
        tokio::time::timeout(SOON, pause).await.expect("PAUSE is over when RESUME is").expect("PAUSE");
        Ok(())
    }

    async fn pause(&mut self) -> Result<(), Error> {
        let console = connect(self.proxy).await;
        self.pause = Some(tokio::spawn(async move {
            let _ = console.simple_query("PAUSE").await;
        }));
        let end = Instant::now() + SOON;
        let paused = |row: &SimpleQueryRow| row.get("key") == Some("paused") && row.get("value") == Some("yes");
        while !self.run("SHOW STATE").await?.iter().any(paused) {
            assert!(Instant::now() < end, "the proxy is not paused");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Makes the servers end the idle connections, and waits until the proxy has noticed.
    async fn cut(&mut self, world: &World) -> Result<(), Error> {
        let number = |row: &SimpleQueryRow, key: &str| row.get(key).and_then(|value| value.parse::<u32>().ok());
        let backend = |row: &SimpleQueryRow| Some((number(row, "port")?, number(row, "remote_pid")?));
        let servers = self.run("SHOW SERVERS").await?;
        let idle: Vec<(u32, u32)> =
            servers.iter().filter(|row| row.get("state") == Some("idle")).filter_map(backend).collect();
        world.end_backends(&idle).await?;
        self.did.cut += idle.len() as u64;
        let end = Instant::now() + SOON;
        while self.run("SHOW SERVERS").await?.iter().filter_map(backend).any(|one| idle.contains(&one)) {
            assert!(Instant::now() < end, "the proxy keeps server connections that have ended");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    async fn run(&mut self, command: &str) -> Result<Vec<SimpleQueryRow>, Error> {
        let console = match &mut self.console {
            Some(console) => console,
            none => none.insert(connect(self.proxy).await),
        };
        let messages = console.simple_query(command).await?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        Ok(rows.collect())
    }
}

async fn connect(proxy: &Kingpost) -> Client {
    let mut config = proxy.endpoint().config();
    proxy.endpoint().connect_as(config.dbname("kingpost")).await
}
