//! A TCP forwarder between the proxy and a node, that can cut, black-hole or delay.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What happens to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// They pass.
    Up,
    /// They pass, each chunk this much later.
    Slow(Duration),
    /// Nothing passes; connections stay open and new ones are accepted: a network that drops packets.
    BlackHole,
    /// Connections are closed, new ones too: a host that answers with resets.
    Cut,
}

/// A forwarder to one port. It ends when dropped.
#[derive(Debug)]
pub struct Cut {
    port: u16,
    link: watch::Sender<Link>,
}

impl Cut {
    /// Forwards to 127.0.0.1:`target` from a port of its own. Lives in a thread of its own, so that fixtures that several
    /// tests share can hold it.
    ///
    /// # Panics
    /// When there is no port or thread left.
    pub fn to(target: u16) -> Cut {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind a port for a forwarder");
        listener.set_nonblocking(true).expect("make the forwarder's socket non-blocking");
        let port = listener.local_addr().expect("ask for the forwarder's port").port();
        let (link, state) = watch::channel(Link::Up);
        std::thread::Builder::new()
            .name(format!("cut-{port}"))
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("make the forwarder's runtime").block_on(forward(listener, target, state));
            })
            .expect("start the forwarder's thread");
        Cut { port, link }
    }

    /// Where to connect instead of the target.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Changes what happens to bytes, on open connections too.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

async fn forward(listener: std::net::TcpListener, target: u16, state: watch::Receiver<Link>) {
    let listener = TcpListener::from_std(listener).expect("hand the forwarder's socket to its runtime");
    let mut ended = state.clone();
    let accept = async {
        loop {
            let Ok((client, _)) = listener.accept().await else { continue };
            tokio::spawn(connection(client, target, state.clone()));
        }
    };
    tokio::select! {
        () = accept => {}
        // The sender is gone: the forwarder was dropped.
        () = async { while ended.changed().await.is_ok() {} } => {}
    }
}

async fn connection(client: TcpStream, target: u16, state: watch::Receiver<Link>) {
    let mut cut = state.clone();
    let pass = async {
        let mut open = state.clone();
        if open.wait_for(|link| *link != Link::BlackHole).await.is_err() {
            return;
        }
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (client_in, client_out) = client.into_split();
        let (server_in, server_out) = server.into_split();
        tokio::join!(pump(client_in, server_out, state.clone()), pump(server_in, client_out, state.clone()));
    };
    tokio::select! {
        () = pass => {}
        _ = cut.wait_for(|link| *link == Link::Cut) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut state: watch::Receiver<Link>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        let link = match state.wait_for(|link| *link != Link::BlackHole).await {
            Ok(link) => *link,
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
