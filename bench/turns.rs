//! `turns TARGET`: a TCP forwarder between a relay of MariaDB's binary log and its source, on a local port, which makes the relay receive like a
//! stock replica: it forwards a transaction that requires an acknowledgement, and the source's next bytes only after the relay has acknowledged. The
//! relay itself has no such mode, and needs none for the comparison. Listens on 127.0.0.1, and prints the port.
//!
//! A packet has 3 bytes of length, a number, and the payload. The payload of an event from a semi-synchronous source begins with `00 EF` and a byte
//! that is 1 if an acknowledgement is required.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

/// Maximum wait for an acknowledgement: after it, the relay already had the transaction.
const PATIENCE: Duration = Duration::from_secs(1);
const HEAD: usize = 4;
const WANTED: [u8; 3] = [0x00, 0xef, 0x01];

/// Number of times that the relay has sent something.
type Answers = Arc<(Mutex<u64>, Condvar)>;

fn main() -> std::io::Result<()> {
    let target: u16 = std::env::args().nth(1).and_then(|word| word.parse().ok()).expect("turns TARGET");
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    for relay in listener.incoming() {
        let relay = relay?;
        // No source: the relay sees the end of its connection.
        let Ok(source) = TcpStream::connect(("127.0.0.1", target)) else { continue };
        relay.set_nodelay(true)?;
        source.set_nodelay(true)?;
        let answers = Answers::default();
        let (from_relay, to_source, heard) = (relay.try_clone()?, source.try_clone()?, Arc::clone(&answers));
        thread::spawn(move || drop(pass_answers(from_relay, to_source, &heard)));
        thread::spawn(move || drop(pass_events(source, relay, &answers)));
    }
    Ok(())
}

fn pass_answers(mut from: TcpStream, mut to: TcpStream, answers: &Answers) -> std::io::Result<()> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return to.shutdown(Shutdown::Both);
        }
        to.write_all(&chunk[..count])?;
        *answers.0.lock().unwrap() += 1;
        answers.1.notify_all();
    }
}

fn pass_events(mut from: TcpStream, mut to: TcpStream, answers: &Answers) -> std::io::Result<()> {
    let (mut held, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return to.shutdown(Shutdown::Both);
        }
        held.extend_from_slice(&chunk[..count]);
        let mut passed = 0;
        // Complete packets; one write for all up to the next acknowledgement.
        while let Some((end, wanted)) = turn(&held[passed..]) {
            let before = *answers.0.lock().unwrap();
            to.write_all(&held[passed..passed + end])?;
            passed += end;
            if wanted {
                let heard = answers.0.lock().unwrap();
                drop(answers.1.wait_timeout_while(heard, PATIENCE, |heard| *heard == before));
            }
        }
        held.drain(..passed);
    }
}

/// Returns the end of the next turn: after the first complete packet that requires an acknowledgement, and true; or after the last complete one.
/// `None` if no packet is complete.
fn turn(held: &[u8]) -> Option<(usize, bool)> {
    let mut end = 0;
    while let Some([a, b, c, _]) = held.get(end..end + HEAD) {
        let length = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        let Some(payload) = held.get(end + HEAD..end + HEAD + length) else { break };
        end += HEAD + length;
        if payload.starts_with(&WANTED) {
            return Some((end, true));
        }
    }
    (end > 0).then_some((end, false))
}

#[cfg(test)]
mod tests {
    use super::turn;

    #[test]
    fn a_turn_ends_where_an_acknowledgement_is_wanted() {
        let packet = |payload: &[u8]| [&[payload.len() as u8, 0, 0, 9], payload].concat();
        let (plain, wanted) = (packet(&[0, 0xef, 0, 1, 2]), packet(&[0, 0xef, 1, 3]));
        let all = [plain.clone(), plain.clone(), wanted.clone(), plain.clone(), vec![7, 0]].concat();
        let first = 2 * plain.len() + wanted.len();
        assert_eq!(turn(&all), Some((first, true)));
        assert_eq!(turn(&all[first..]), Some((plain.len(), false)));
        assert_eq!(turn(&all[first + plain.len()..]), None);
        assert_eq!(turn(&wanted[..wanted.len() - 1]), None);
        assert_eq!(turn(&[]), None);
    }
}
