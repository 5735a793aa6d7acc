//! Take-over: a new process gets an old one's listening sockets, and the old one lets its clients finish.
//!
//! ```text
//!  new                                     old
//!   ── connect to proxy.upgrade_socket ──▶  whose user is it? its own, or root
//!   ── "kingpost take-over 1\n" ─────────▶
//!   ◀─ addresses, and the sockets ────────  goes on accepting
//!   watches the cluster until there is a primary
//!   ── "orders 1\n" ─────────────────────▶  from now on its operators change nothing
//!   ◀─ "LENGTH\n", and a list in JSON ────
//!   does what was ordered, starts to accept
//!   ── "ready\n" ────────────────────────▶  accepts no more, serves those it has until they leave or drain_timeout is over
//!   ◀─ "bye\n" ───────────────────────────  its operators have their say again: about the clients that are left
//! ```
//!
//! The orders are those of operators in the console, as far as they still hold ([`crate::orders`]). Versions up to 0.2 do not know them, and work
//! together with later ones: an old process that has orders announces it with its addresses, and a new process that wants none is ready at once.
//!
//! The sockets themselves are passed on, so they listen without interruption, and connections in their queues are served. A new process that fails
//! before it is ready leaves the old one as it was.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use proxy::Socket;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize};

use crate::orders::Ordered;
use process::Failure;

const HELLO: &[u8] = b"kingpost take-over 1\n";
const ORDERS: &[u8] = b"orders 1\n";
const READY: &[u8] = b"ready\n";
const BYE: &[u8] = b"bye\n";
/// Most sockets that are passed on.
const MOST_SOCKETS: usize = 64;
/// Longest list of addresses, in bytes.
const MOST_LIST: usize = 16 << 10;
/// Longest word of the new process after the sockets, in bytes.
const MOST_WORD: usize = 32;
/// Longest list of orders, in bytes, and the most digits that its length has.
const MOST_ORDERS: usize = 1 << 20;
const MOST_DIGITS: usize = 7;
/// Longest wait for the other's next word, except for `ready` and the orders.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for the orders: running commands end first.
const ORDERS_WITHIN: Duration = Duration::from_secs(30);
/// Longest time that a new process may take to be ready.
pub const READY_WITHIN: Duration = Duration::from_secs(60);

/// Content of the message with the sockets: their addresses, in the order of the sockets.
#[derive(Debug, Serialize, Deserialize)]
struct List {
    /// Addresses as in `proxy.listen`.
    proxy: Vec<String>,
    /// Addresses as in `metrics.listen` and `console.listen`; their sockets are the last.
    metrics: Option<String>,
    console: Option<String>,
    /// 1 if the process sends operators' orders. Missing, or another number: it does not, or in another form.
    #[serde(default)]
    orders: u32,
}

/// Listening sockets of a process.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Sockets for clients.
    pub proxy: Vec<Socket>,
    /// Socket of `metrics.listen`.
    pub metrics: Option<Socket>,
    /// Socket of `console.listen`.
    pub console: Option<Socket>,
}

/// The sockets of an old process, and the connection to it.
#[derive(Debug)]
pub struct TakenOver {
    stream: UnixStream,
    /// Listening sockets of the old process.
    pub sockets: Sockets,
    /// True if the old process sends operators' orders.
    tells_orders: bool,
}

/// The socket on which a process can be taken over.
pub struct SuccessorListener {
    listener: tokio::net::UnixListener,
    path: PathBuf,
}

fn unspoken() -> io::Error {
    other("it does not speak as a process does in a take-over")
}

fn other(text: impl Into<String>) -> io::Error {
    io::Error::other(text.into())
}

// === the new process ===

/// Asks the serving process for its sockets.
pub fn take_over(path: &Path) -> Result<TakenOver, Failure> {
    ask(path).map_err(|error| {
        Failure::environment(format!("cannot take over from the running process by {}: {error}", path.display()))
            .advise("start without --take-over if none runs; proxy.upgrade_socket must be the same for both")
    })
}

fn ask(path: &Path) -> io::Result<TakenOver> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(HELLO)?;
    let (list, fds) = receive(&stream)?;
    let list: List = serde_json::from_slice(&list).map_err(|error| other(format!("it sent no list: {error}")))?;
    let others = usize::from(list.metrics.is_some()) + usize::from(list.console.is_some());
    if fds.len() != list.proxy.len() + others {
        return Err(other(format!("it sent {} sockets, and a list of others", fds.len())));
    }
    let mut fds = fds.into_iter();
    let mut named = |address: Option<String>| Some(Socket { address: address?, fd: fds.next()?, of_manager: false });
    let sockets = Sockets {
        proxy: list.proxy.into_iter().map_while(|address| named(Some(address))).collect(),
        metrics: named(list.metrics),
        console: named(list.console),
    };
    Ok(TakenOver { stream, sockets, tells_orders: list.orders == 1 })
}

/// Receives a message that ends in a line feed, and the descriptors that came with it.
fn receive(stream: &UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut list, mut fds) = (Vec::new(), Vec::new());
    let mut buffer = vec![0; MOST_LIST];
    while !list.ends_with(b"\n") {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let message = rustix::net::recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        if message.bytes == 0 {
            return Err(other("it closed the connection: its log says why"));
        }
        list.extend_from_slice(&buffer[..message.bytes]);
        if list.len() > MOST_LIST || fds.len() > MOST_SOCKETS {
            return Err(other("it sent more than a list of sockets"));
        }
    }
    Ok((list, fds))
}

/// Reads a line, without its end, of at most so many bytes with it.
fn line(stream: &mut UnixStream, most: usize) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut byte = [0];
    while line.len() < most {
        stream.read_exact(&mut byte)?;
        match byte {
            [b'\n'] => return Ok(line),
            [byte] => line.push(byte),
        }
    }
    Err(unspoken())
}

/// Reads the bytes after a line with their number.
fn counted(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let digits = line(stream, MOST_DIGITS + 1)?;
    let digits = std::str::from_utf8(&digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length: usize = digits.and_then(|digits| digits.parse().ok()).ok_or_else(unspoken)?;
    if length > MOST_ORDERS {
        return Err(other(format!("it sent {length} bytes of operators' orders, more than {MOST_ORDERS}")));
    }
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl TakenOver {
    /// Gets the operators' orders of the old process, which accepts no more orders until this process is ready, or gone.
    ///
    /// # Errors
    /// The answer is malformed.
    pub fn orders(&mut self) -> Result<Ordered, Failure> {
        if !self.tells_orders {
            tracing::info!("the old process does not tell what operators have ordered of it: none of it holds here");
            return Ok(Ordered::default());
        }
        let ordered = self.ask_for_orders().and_then(|bytes| Ordered::read(&bytes).map_err(io::Error::other));
        let (ordered, skipped) = ordered.map_err(|error| {
            Failure::runtime(format!("the old process does not tell what operators have ordered of it: {error}"))
        })?;
        for order in skipped {
            tracing::warn!(order, "an order of the old process's console is dropped");
        }
        Ok(ordered)
    }

    fn ask_for_orders(&mut self) -> io::Result<Vec<u8>> {
        self.stream.set_read_timeout(Some(ORDERS_WITHIN))?;
        self.stream.write_all(ORDERS)?;
        let bytes = counted(&mut self.stream)?;
        self.stream.set_read_timeout(Some(PATIENCE))?;
        Ok(bytes)
    }

    /// Tells the old process that it is no longer needed.
    pub fn confirm(mut self) -> Result<(), Failure> {
        let mut word = [0; BYE.len()];
        let told = self.stream.write_all(READY).and_then(|()| self.stream.read_exact(&mut word));
        told.map_err(|error| Failure::runtime(format!("the old process does not let go: {error}")))
    }
}

// === the old process ===

impl SuccessorListener {
    /// Binds the socket; only this user, and root, may connect.
    pub fn listen(path: &Path) -> Result<SuccessorListener, Failure> {
        let bind = || -> io::Result<SuccessorListener> {
            // The earlier listener has handed over, or is gone.
            if path.exists() && UnixStream::connect(path).is_err() {
                std::fs::remove_file(path)?;
            }
            let listener = UnixListener::bind(path)?;
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(SuccessorListener { listener: tokio::net::UnixListener::from_std(listener)?, path: path.to_owned() })
        };
        bind().map_err(|error| {
            Failure::environment(format!("cannot listen on {} (proxy.upgrade_socket): {error}", path.display()))
                .advise("another process that runs there has to be taken over (--take-over) or stopped")
        })
    }

    /// Waits for the next process that wants to take over.
    pub async fn next(&self) -> UnixStream {
        loop {
            match self.listener.accept().await.and_then(|(stream, _)| stream.into_std()) {
                Ok(stream) => return stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept on proxy.upgrade_socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

impl Drop for SuccessorListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Sockets {
    fn list(&self) -> List {
        let address = |socket: &Option<Socket>| socket.as_ref().map(|socket| socket.address.clone());
        List {
            proxy: self.proxy.iter().map(|socket| socket.address.clone()).collect(),
            metrics: address(&self.metrics),
            console: address(&self.console),
            orders: 1,
        }
    }

    /// Returns the descriptors in the list's order.
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.proxy.iter().chain(&self.metrics).chain(&self.console).map(|socket| socket.fd.as_fd()).collect()
    }
}

/// Returns the descriptor that another process handed over, if it has this address.
pub fn inherited(socket: Option<Socket>, address: &str) -> Option<OwnedFd> {
    socket.filter(|socket| socket.address == address).map(|socket| socket.fd)
}

/// Hands over sockets, and `orders` on request; once this is Ok, the other process serves.
///
/// # Errors
/// The other process has no permission, or was not ready in time: this process serves on.
pub fn hand_over(
    stream: &mut UnixStream,
    sockets: &Sockets,
    orders: impl FnOnce() -> io::Result<Vec<u8>>,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
        return Err(other("a process of another user wants to take over"));
    }
    expect(stream, HELLO)?;
    let mut text = serde_json::to_vec(&sockets.list())?;
    text.push(b'\n');
    let fds = sockets.fds();
    if fds.len() > MOST_SOCKETS {
        return Err(other(format!("there are {} sockets, more than {MOST_SOCKETS}", fds.len())));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_SOCKETS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(other("the sockets do not fit into one message"));
    }
    let sent = rustix::net::sendmsg(&stream, &[IoSlice::new(&text)], &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&text[sent..])?;
    stream.set_read_timeout(Some(READY_WITHIN + PATIENCE))?;
    let mut word = line(stream, MOST_WORD)?;
    if is(&word, ORDERS) {
        let bytes = orders()?;
        if bytes.len() > MOST_ORDERS {
            return Err(other(format!(
                "operators' orders take {} bytes, more than {MOST_ORDERS}: end some (RESUME, ENABLE, LIFT)",
                bytes.len()
            )));
        }
        stream.write_all(format!("{}\n", bytes.len()).as_bytes())?;
        stream.write_all(&bytes)?;
        word = line(stream, MOST_WORD)?;
    } else if is(&word, READY) {
        tracing::info!("the new process does not ask what operators have ordered: none of it holds there");
    }
    if is(&word, READY) { Ok(()) } else { Err(unspoken()) }
}

/// True if a line without its end is this word.
fn is(line: &[u8], word: &[u8]) -> bool {
    word.strip_suffix(b"\n") == Some(line)
}

/// Tells the other process that this one has stopped accepting.
pub fn say_bye(stream: &mut UnixStream) {
    // If it is gone by now, there is nobody to tell.
    let _ = stream.write_all(BYE);
}

fn expect(stream: &mut UnixStream, word: &[u8]) -> io::Result<()> {
    let mut found = vec![0; word.len()];
    stream.read_exact(&mut found)?;
    if found == word { Ok(()) } else { Err(unspoken()) }
}

/// Starts the command of this process again, with `--take-over`.
pub fn start_successor() -> io::Result<u32> {
    let mut arguments = std::env::args_os();
    let program = arguments.next().ok_or_else(|| other("this process does not know how it was started"))?;
    let arguments: Vec<_> = arguments.filter(|argument| argument != "--take-over").collect();
    // Tokio waits for the child, so that it leaves no zombie.
    let child = tokio::process::Command::new(program).args(arguments).arg("--take-over").spawn()?;
    Ok(child.id().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn none() -> io::Result<Vec<u8>> {
        Ok(b"{\"orders\":[]}".to_vec())
    }

    #[test]
    fn sockets_change_hands() {
        let (one, two) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = [one.local_addr().unwrap(), two.local_addr().unwrap()];
        let sockets = Sockets {
            proxy: vec![Socket { address: "a".into(), fd: one.into(), of_manager: false }],
            metrics: None,
            console: Some(Socket { address: "b".into(), fd: two.into(), of_manager: false }),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("upgrade.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let new = std::thread::spawn(move || {
            let taken = ask(&path).unwrap();
            assert!(taken.sockets.metrics.is_none());
            let console = taken.sockets.console.as_ref().unwrap();
            let listener = TcpListener::from(console.fd.try_clone().unwrap());
            assert_eq!((console.address.as_str(), listener.local_addr().unwrap()), ("b", addresses[1]));
            assert_eq!(taken.sockets.proxy[0].address, "a");
            let listener = TcpListener::from(taken.sockets.proxy[0].fd.try_clone().unwrap());
            assert_eq!(listener.local_addr().unwrap(), addresses[0]);
            taken.confirm().unwrap();
            listener.accept().unwrap();
        });
        let (mut stream, _) = listener.accept().unwrap();
        // The client waits in the queue while the socket is passed on.
        let client = TcpStream::connect(addresses[0]).unwrap();
        hand_over(&mut stream, &sockets, || panic!("nobody has asked")).unwrap();
        drop(sockets);
        say_bye(&mut stream);
        new.join().unwrap();
        drop(client);
    }

    #[test]
    fn whoever_speaks_otherwise_gets_nothing() {
        for words in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], b"", b"kingpost take-over 2\n"] {
            let (mut old, mut new) = UnixStream::pair().unwrap();
            new.write_all(words).unwrap();
            new.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(hand_over(&mut old, &Sockets::default(), none).is_err());
            drop(old);
            let mut rest = Vec::new();
            let _ = new.read_to_end(&mut rest);
            assert!(rest.is_empty(), "{rest:?}");
        }
    }

    #[test]
    fn a_successor_that_is_never_ready_changes_nothing() {
        let (mut old, mut new) = UnixStream::pair().unwrap();
        new.write_all(HELLO).unwrap();
        new.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(hand_over(&mut old, &Sockets::default(), none).is_err());
    }

    /// Makes a new process that has the sockets of an old one.
    fn taken(stream: UnixStream, tells_orders: bool) -> TakenOver {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        TakenOver { stream, sockets: Sockets::default(), tells_orders }
    }

    #[test]
    fn orders_are_told_when_they_are_asked_for() {
        let (mut old, new) = UnixStream::pair().unwrap();
        let old = std::thread::spawn(move || {
            let orders = br#"{"orders":[{"order":"disable","cluster":"main","database":"shop"}]}"#;
            hand_over(&mut old, &Sockets::default(), || Ok(orders.to_vec())).unwrap();
            say_bye(&mut old);
        });
        (&new).write_all(HELLO).unwrap();
        let (list, _) = receive(&new).unwrap();
        let list: List = serde_json::from_slice(&list).unwrap();
        let mut taken = taken(new, list.orders == 1);
        let ordered = taken.orders().unwrap();
        assert!(ordered.clusters["main"].disabled.contains("shop"), "{ordered:?}");
        taken.confirm().unwrap();
        old.join().unwrap();
    }

    #[test]
    fn an_old_process_of_an_earlier_version_is_not_asked() {
        let list: List = serde_json::from_str(r#"{"proxy":["a"],"metrics":null,"console":null}"#).unwrap();
        assert_eq!(list.orders, 0);
        let (mut old, new) = UnixStream::pair().unwrap();
        let mut taken = taken(new, list.orders == 1);
        assert_eq!(taken.orders().unwrap(), Ordered::default());
        let new = std::thread::spawn(move || taken.confirm());
        expect(&mut old, READY).unwrap();
        say_bye(&mut old);
        new.join().unwrap().unwrap();
    }

    #[test]
    fn a_new_process_of_an_earlier_version_is_ready_at_once() {
        let (mut old, mut new) = UnixStream::pair().unwrap();
        new.write_all(&[HELLO, READY].concat()).unwrap();
        hand_over(&mut old, &Sockets::default(), || panic!("nobody has asked")).unwrap();
    }

    #[test]
    fn what_is_no_answer_ends_the_take_over() {
        let long = format!("{}\n", MOST_ORDERS + 1);
        for answer in [
            "",
            "\n",
            "x\n",
            "-1\n",
            "+1\n{",
            "1e3\n",
            "2",
            "5\n{}",
            "2\n{}",
            "00000000000000000000001\n",
            "99999999999999999999999999999999999\n",
            "14\n{\"orders\":[]} ",
            &long,
        ] {
            let (mut old, new) = UnixStream::pair().unwrap();
            old.write_all(answer.as_bytes()).unwrap();
            old.shutdown(std::net::Shutdown::Write).unwrap();
            let good = answer.starts_with("14");
            assert_eq!(taken(new, true).orders().is_ok(), good, "{answer:?}");
        }
    }

    #[test]
    fn who_says_something_else_behind_the_sockets_does_not_take_over() {
        for words in ["orders 2\n", "orders\n", "\n", "ready", "orders 1\norders 1\n", "orders 1\nbye\n"] {
            let (mut old, mut new) = UnixStream::pair().unwrap();
            new.write_all(&[HELLO, words.as_bytes()].concat()).unwrap();
            new.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(hand_over(&mut old, &Sockets::default(), none).is_err(), "{words:?}");
        }
        // Bytes without an end are not waited for.
        let (mut old, mut new) = UnixStream::pair().unwrap();
        new.write_all(&[HELLO, &[b'x'; MOST_WORD]].concat()).unwrap();
        assert!(hand_over(&mut old, &Sockets::default(), none).is_err());
    }

    #[test]
    fn orders_that_cannot_be_told_end_the_take_over() {
        let unknown = || Err(other("a console does not answer"));
        let many = || Ok(vec![b' '; MOST_ORDERS + 1]);
        for orders in [&unknown as &dyn Fn() -> io::Result<Vec<u8>>, &many] {
            let (mut old, mut new) = UnixStream::pair().unwrap();
            new.write_all(&[HELLO, ORDERS, READY].concat()).unwrap();
            assert!(hand_over(&mut old, &Sockets::default(), orders).is_err());
        }
    }
}
