//! `delay TARGET-PORT MICROSECONDS`: a TCP forwarder to a port of this machine, each byte of which arrives so much later, in its order.
//! It prints the port that it listens on. For a few connections: two threads for each direction.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of one read, and reads on their way in one direction.
const CHUNK: usize = 256 << 10;
const UNDER_WAY: usize = 4096;

fn main() -> std::io::Result<()> {
    let number = |at| std::env::args().nth(at).and_then(|word| word.parse().ok()).expect("delay TARGET-PORT MICROSECONDS");
    let (target, delay) = (number(1) as u16, Duration::from_micros(number(2)));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?.port());
    for client in listener.incoming() {
        let client = client?;
        // Nobody there: the client hears of it by the end of its connection.
        let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { continue };
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            to.set_nodelay(true)?;
            let (sender, receiver) = sync_channel(UNDER_WAY);
            thread::spawn(move || receive(from, delay, &sender));
            thread::spawn(move || pass_on(to, &receiver));
        }
    }
    Ok(())
}

fn receive(mut from: TcpStream, delay: Duration, under_way: &SyncSender<(Instant, Vec<u8>)>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count) = from.read(&mut chunk) {
        if count == 0 || under_way.send((Instant::now() + delay, chunk[..count].to_vec())).is_err() {
            return;
        }
    }
}

fn pass_on(mut to: TcpStream, under_way: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in under_way {
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            thread::sleep(left);
        }
        if to.write_all(&bytes).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
