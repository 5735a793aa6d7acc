//! `model TARGET MICROSECONDS`: a model of a PostgreSQL server with a core for each connection, in front of a real one on a local port. Each statement
//! takes so long, one after the other on a connection, and no core. Listens on 127.0.0.1, and prints the port.
//!
//! It passes on what a client sends up to a Query or a Sync, and after that time the answer up to its ReadyForQuery. A Query that begins with FIXED
//! is sent to the server once only: its answer is always the same. For logins without a password, and for no COPY.

use std::collections::HashMap;
use std::io::{BufReader, Read, Result, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

const FIXED: &[u8] = b"SELECT 'fixed'";
/// Longest message that is passed on.
const LONGEST: usize = 1 << 20;
/// Requests in place of a startup message that are not answered with an R: TLS, GSSAPI, cancel.
const OTHER: [u32; 3] = [80_877_103, 80_877_104, 80_877_102];

/// Answers to the statements that are fixed.
type Answers = Arc<Mutex<HashMap<Vec<u8>, Arc<Vec<u8>>>>>;

fn main() -> Result<()> {
    let number = |at| std::env::args().nth(at).and_then(|word| word.parse::<u64>().ok());
    let (Some(target), Some(micros)) = (number(1), number(2)) else { panic!("model TARGET MICROSECONDS") };
    // A sleep ends up to 50 us late otherwise. The threads inherit it.
    let _ = std::fs::write("/proc/self/timerslack_ns", "1");
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?.port());
    let answers = Answers::default();
    for client in listener.incoming() {
        let (client, answers) = (client?, Arc::clone(&answers));
        let Ok(server) = TcpStream::connect(("127.0.0.1", target as u16)) else { continue };
        thread::spawn(move || drop(serve(client, server, Duration::from_micros(micros), &answers)));
    }
    Ok(())
}

fn serve(mut client: TcpStream, mut server: TcpStream, time: Duration, answers: &Answers) -> Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut from_server) = (BufReader::new(client.try_clone()?), BufReader::new(server.try_clone()?));
    let (mut unit, mut answer) = (Vec::new(), Vec::new());
    loop {
        unit.clear();
        take(&mut from_client, &mut unit)?;
        server.write_all(&unit)?;
        let code = unit.get(4..8).map(|code| u32::from_be_bytes(code.try_into().unwrap()));
        if !code.is_some_and(|code| OTHER.contains(&code)) {
            break;
        }
        let mut word = [0];
        from_server.read_exact(&mut word)?;
        client.write_all(&word)?;
    }
    ready(&mut from_server, &mut answer)?;
    client.write_all(&answer)?;
    loop {
        unit.clear();
        while !matches!(message(&mut from_client, &mut unit)?, b'Q' | b'S' | b'F') {}
        let begun = Instant::now();
        let fixed = unit.get(5..).is_some_and(|text| text.starts_with(FIXED));
        let known = if fixed { answers.lock().unwrap().get(&unit).cloned() } else { None };
        let known = match known {
            Some(known) => known,
            None => {
                server.write_all(&unit)?;
                answer.clear();
                ready(&mut from_server, &mut answer)?;
                let answer = Arc::new(answer.clone());
                if fixed {
                    answers.lock().unwrap().insert(unit.clone(), Arc::clone(&answer));
                }
                answer
            }
        };
        thread::sleep((begun + time).saturating_duration_since(Instant::now()));
        client.write_all(&known)?;
    }
}

/// Reads up to and with ReadyForQuery.
fn ready(from: &mut impl Read, to: &mut Vec<u8>) -> Result<()> {
    while message(from, to)? != b'Z' {}
    Ok(())
}

/// Reads a message, and returns its type.
fn message(from: &mut impl Read, to: &mut Vec<u8>) -> Result<u8> {
    let mut kind = [0];
    from.read_exact(&mut kind)?;
    to.push(kind[0]);
    take(from, to)?;
    Ok(kind[0])
}

/// Reads a length, and what it counts.
fn take(from: &mut impl Read, to: &mut Vec<u8>) -> Result<()> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    to.extend_from_slice(&length);
    let rest = (u32::from_be_bytes(length) as usize).saturating_sub(4);
    if rest > LONGEST {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let begun = to.len();
    to.resize(begun + rest, 0);
    from.read_exact(&mut to[begun..])
}
