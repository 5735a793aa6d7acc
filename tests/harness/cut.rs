//! A TCP forwarder between the proxy and a node, that can cut, black-hole or delay.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::process::children;

/// State of a network link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Bytes pass.
    Up,
    /// Bytes pass, each chunk this much later.
    Slow(Duration),
    /// No bytes pass; connections stay open and new ones are accepted: a network that drops packets.
    BlackHole,
    /// Connections are closed, new ones too: a host that answers with resets.
    Cut,
}

/// Links of a forwarder, by the process that connects.
#[derive(Debug)]
struct Links {
    /// Link of a process that `of` does not name.
    default: Link,
    /// Links by process id.
    of: BTreeMap<u32, Link>,
}

impl Links {
    fn of(&self, client: Option<u32>) -> Link {
        client.and_then(|pid| self.of.get(&pid)).copied().unwrap_or(self.default)
    }
}

/// A forwarder to one port, until it is dropped.
#[derive(Debug)]
pub struct Cut {
    port: u16,
    links: watch::Sender<Links>,
}

impl Cut {
    /// Forwards to 127.0.0.1:`target` from a port of its own. Runs in its own thread, so that fixtures shared by several tests can hold it.
    ///
    /// # Panics
    /// When there is no port or thread left.
    pub fn to(target: u16) -> Cut {
        Cut::start(target, false)
    }

    /// As [`Cut::to`], and identifies the child of this process that makes each connection, for [`Cut::set_from`].
    ///
    /// # Panics
    /// When there is no port or thread left.
    pub fn to_from_each(target: u16) -> Cut {
        Cut::start(target, true)
    }

    fn start(target: u16, tells_apart: bool) -> Cut {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind a port for a forwarder");
        listener.set_nonblocking(true).expect("make the forwarder's socket non-blocking");
        let port = listener.local_addr().expect("ask for the forwarder's port").port();
        let (links, state) = watch::channel(Links { default: Link::Up, of: BTreeMap::new() });
        std::thread::Builder::new()
            .name(format!("cut-{port}"))
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("make the forwarder's runtime").block_on(forward(listener, target, tells_apart, state));
            })
            .expect("start the forwarder's thread");
        Cut { port, links }
    }

    /// Returns the port to connect to instead of the target.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the link, of open connections too, and also of processes with a link of their own by [`Cut::set_from`].
    pub fn set(&self, link: Link) {
        self.links.send_replace(Links { default: link, of: BTreeMap::new() });
    }

    /// Sets the link of the connections that process `pid` makes, of open ones too: the path of one of several processes to the same port. Only for a
    /// forwarder made by [`Cut::to_from_each`].
    pub fn set_from(&self, pid: u32, link: Link) {
        self.links.send_modify(|links| {
            links.of.insert(pid, link);
        });
    }
}

/// Returns the child of this process that has the socket at the other end of a connection: from `client` to `port`, both on 127.0.0.1.
fn owner(client: u16, port: u16) -> Option<u32> {
    let (local, remote) = (format!("0100007F:{client:04X}"), format!("0100007F:{port:04X}"));
    let table = std::fs::read_to_string("/proc/self/net/tcp").expect("read the table of TCP sockets");
    let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let socket = sockets.find(|socket| socket.get(1) == Some(&&*local) && socket.get(2) == Some(&&*remote))?;
    let inode = format!("socket:[{}]", socket.get(9)?);
    let holds = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.flat_map(|file| std::fs::read_link(file.path())).any(|target| target.as_os_str() == &*inode)
    };
    children(std::process::id()).into_iter().find(holds)
}

async fn forward(listener: std::net::TcpListener, target: u16, tells_apart: bool, state: watch::Receiver<Links>) {
    let port = listener.local_addr().expect("ask for the forwarder's port").port();
    let listener = TcpListener::from_std(listener).expect("hand the forwarder's socket to its runtime");
    let mut ended = state.clone();
    let accept = async {
        loop {
            let Ok((client, from)) = listener.accept().await else { continue };
            let pid = if tells_apart { owner(from.port(), port) } else { None };
            tokio::spawn(connection(client, pid, target, state.clone()));
        }
    };
    tokio::select! {
        () = accept => {}
        // The sender is gone: the forwarder was dropped.
        () = async { while ended.changed().await.is_ok() {} } => {}
    }
}

async fn connection(client: TcpStream, pid: Option<u32>, target: u16, state: watch::Receiver<Links>) {
    let mut cut = state.clone();
    let pass = async {
        let mut open = state.clone();
        if open.wait_for(|links| links.of(pid) != Link::BlackHole).await.is_err() {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (client_in, client_out) = client.into_split();
        let (server_in, server_out) = server.into_split();
        tokio::join!(pump(client_in, server_out, pid, state.clone()), pump(server_in, client_out, pid, state.clone()));
    };
    tokio::select! {
        () = pass => {}
        _ = cut.wait_for(|links| links.of(pid) == Link::Cut) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, pid: Option<u32>, mut state: watch::Receiver<Links>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let link = match state.wait_for(|links| links.of(pid) != Link::BlackHole).await {
            Ok(links) => links.of(pid),
            Err(_) => return,
        };
        if let Link::Slow(delay) = link {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
