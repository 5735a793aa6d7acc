//! `delay TARGET MICROSECONDS [ADDRESS]`: a TCP forwarder to a local port, or to a Unix socket, that delays every byte by this time and preserves the
//! order. Listens on 127.0.0.1 or ADDRESS, and prints the port. For a few connections: two threads for each direction.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum length of a read, and number of reads buffered in one direction.
const CHUNK: usize = 256 << 10;
const UNDER_WAY: usize = 4096;

/// One side of a connection.
enum Side {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Side {
    /// Connects to a port, or to a Unix socket by its path.
    fn connect(target: &str) -> std::io::Result<Side> {
        match target.parse::<u16>() {
            Ok(port) => TcpStream::connect(("127.0.0.1", port)).map(Side::Tcp),
            Err(_) => UnixStream::connect(target).map(Side::Unix),
        }
    }

    fn another(&self) -> std::io::Result<Side> {
        match self {
            Side::Tcp(stream) => stream.set_nodelay(true).and_then(|()| stream.try_clone()).map(Side::Tcp),
            Side::Unix(stream) => stream.try_clone().map(Side::Unix),
        }
    }

    fn read(&mut self, chunk: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Side::Tcp(stream) => stream.read(chunk),
            Side::Unix(stream) => stream.read(chunk),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Side::Tcp(stream) => stream.write_all(bytes),
            Side::Unix(stream) => stream.write_all(bytes),
        }
    }

    fn shutdown(&self) {
        let _ = match self {
            Side::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Side::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

fn main() -> std::io::Result<()> {
    let word = |at| std::env::args().nth(at);
    let usage = "delay TARGET MICROSECONDS [ADDRESS]";
    let target = word(1).expect(usage);
    let delay = Duration::from_micros(word(2).and_then(|word| word.parse().ok()).expect(usage));
    let listener = TcpListener::bind((word(3).unwrap_or_else(|| "127.0.0.1".into()), 0))?;
    println!("{}", listener.local_addr()?.port());
    for client in listener.incoming() {
        let client = Side::Tcp(client?);
        // No server: the client sees the end of its connection.
        let Ok(server) = Side::connect(&target) else { continue };
        for (from, to) in [(client.another()?, server.another()?), (server, client)] {
            let (sender, receiver) = sync_channel(UNDER_WAY);
            thread::spawn(move || receive(from, delay, &sender));
            thread::spawn(move || pass_on(to, &receiver));
        }
    }
    Ok(())
}

fn receive(mut from: Side, delay: Duration, under_way: &SyncSender<(Instant, Vec<u8>)>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count) = from.read(&mut chunk) {
        if count == 0 || under_way.send((Instant::now() + delay, chunk[..count].to_vec())).is_err() {
            return;
        }
    }
}

fn pass_on(mut to: Side, under_way: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in under_way {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left);
        }
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    to.shutdown();
}
