//! A light HTTP/1.1 client, and the report of a generator's timings.

use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Size of the buffer for bodies that are discarded: a generator that keeps 40 MB measures its own memory.
const READ: usize = 256 * 1024;
/// Number of services that the instances are spread over.
pub(crate) const SERVICES: usize = 100;

pub(crate) struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    /// The last `X-Consul-Index`.
    pub(crate) index: u64,
}

impl Connection {
    pub(crate) async fn open(address: &str) -> Connection {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream, buffer: BytesMut::with_capacity(16 * 1024), index: 0 }
    }

    /// Sends a request and reads its answer: the status, and the body if it is `wanted`.
    pub(crate) async fn ask(&mut self, request: &[u8], wanted: bool) -> (u16, String) {
        self.stream.write_all(request).await.unwrap();
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the server closed a connection");
        };
        let head = self.buffer.split_to(end);
        let head = std::str::from_utf8(&head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut length = None;
        for line in head.lines() {
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse::<usize>().ok();
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("x-consul-index")
            {
                self.index = value.trim().parse().unwrap();
            }
        }
        let length = if status == 204 { 0 } else { length.unwrap_or_else(|| panic!("no length: {head}")) };
        if !wanted {
            self.skip(length).await;
            return (status, String::new());
        }
        while self.buffer.len() < length {
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the server closed a connection");
        }
        (status, String::from_utf8_lossy(&self.buffer.split_to(length)).into_owned())
    }

    async fn skip(&mut self, mut length: usize) {
        loop {
            let here = self.buffer.len().min(length);
            self.buffer.advance(here);
            length -= here;
            if length == 0 {
                return;
            }
            self.buffer.reserve(READ);
            assert!(self.stream.read_buf(&mut self.buffer).await.unwrap() > 0, "the server closed a connection");
        }
    }
}

pub(crate) fn request(method: &str, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into_bytes()
}

pub(crate) fn get(path: &str, header: Option<&str>) -> Vec<u8> {
    let header = header.map(|header| format!("{header}\r\n")).unwrap_or_default();
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n").into_bytes()
}

/// Prints a report; each of `times` is that of `each` operations.
pub(crate) fn report(mut times: Vec<Duration>, elapsed: Duration, cpu: f64, each: usize) {
    let cpu = (super::cpu() - cpu) / 1e3;
    times.sort_unstable();
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)].as_secs_f64() * 1e3;
    let count = times.len() * each;
    let seconds = elapsed.as_secs_f64();
    println!(
        "{{\"operations\":{count},\"seconds\":{seconds:.3},\"rate\":{:.1},\"p50\":{:.3},\"p99\":{:.3},\
         \"cpu\":{cpu:.1}}}",
        count as f64 / seconds,
        at(0.5),
        at(0.99)
    );
}
