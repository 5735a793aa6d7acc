//! A connection that delays acknowledgements of pings to send them with other data.
//!
//! A server written with grpc-go measures the connection with a ping for nearly every message that it gets. Sent alone, each acknowledgement would be
//! a packet of its own: as many system calls again as for the requests themselves, on both sides. A delayed acknowledgement goes in front of the next
//! write, or alone after [`LONGEST`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// Maximum delay of an acknowledgement. Servers close a connection only after seconds without one. The timer is set again only after it has fired: a
/// shorter one would wake the thread more often than a single caller sends requests.
const LONGEST: Duration = Duration::from_millis(100);
/// Frame header of an acknowledgement (RFC 9113, 6.7): length 8, type PING, flag ACK, stream 0.
const HEADER: [u8; 9] = [0, 0, 8, 6, 1, 0, 0, 0, 0];
const FRAME: usize = HEADER.len() + 8;
/// Maximum bytes of delayed acknowledgements; with more, all are written.
const MOST: usize = 8 * FRAME;

/// A stream that passes all bytes through in order, except for delayed acknowledgements.
pub(crate) struct LateAcks<S> {
    inner: S,
    /// Delayed bytes, to be written before anything else.
    kept: Vec<u8>,
    /// Timer while `running`; when it fires, the delayed bytes are written.
    timer: Pin<Box<Sleep>>,
    running: bool,
}

impl<S: AsyncWrite + Unpin> LateAcks<S> {
    /// Makes the stream; to be called within a runtime.
    pub(crate) fn new(inner: S) -> LateAcks<S> {
        LateAcks { inner, kept: Vec::new(), timer: Box::pin(sleep(LONGEST)), running: false }
    }

    /// Delays `bytes` if they are acknowledgements and there is room. Returns true if it did.
    fn keep(&mut self, bytes: &[u8], context: &mut Context<'_>) -> bool {
        let acks = bytes.len().is_multiple_of(FRAME) && bytes.chunks(FRAME).all(|frame| frame.starts_with(&HEADER));
        if !acks || self.kept.len() + bytes.len() > MOST {
            return false;
        }
        self.kept.extend_from_slice(bytes);
        if !self.running {
            self.timer.as_mut().reset(Instant::now() + LONGEST);
            self.running = true;
        }
        // Ready only if the time is already over; then the next read or write sees it.
        if self.timer.as_mut().poll(context).is_ready() {
            context.waker().wake_by_ref();
        }
        true
    }

    /// Writes the delayed bytes.
    fn write_kept(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.kept.is_empty() {
            match ready!(Pin::new(&mut self.inner).poll_write(context, &self.kept))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.kept.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for LateAcks<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The owner of a connection reads all the time: so the timer is polled here.
        if self.running && self.timer.as_mut().poll(context).is_ready() {
            self.running = false;
            if let Poll::Ready(Err(error)) = self.write_kept(context) {
                return Poll::Ready(Err(error));
            }
        }
        Pin::new(&mut self.inner).poll_read(context, into)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LateAcks<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !bytes.is_empty() && self.keep(bytes, context) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let kept = self.kept.len();
        if kept > 0 && kept + bytes.len() <= 1024 {
            // One write for both; `bytes` are taken over only if they were written.
            let mut both = std::mem::take(&mut self.kept);
            both.extend_from_slice(bytes);
            let written = Pin::new(&mut self.inner).poll_write(context, &both);
            let gone = if let Poll::Ready(Ok(gone)) = written { gone } else { 0 };
            both.truncate(kept);
            both.drain(..gone.min(kept));
            self.kept = both;
            match ready!(written)? {
                0 => return Poll::Ready(Ok(0)),
                gone if gone > kept => return Poll::Ready(Ok(gone - kept)),
                _ => {}
            }
        }
        ready!(self.write_kept(context))?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_kept(context))?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use futures_util::FutureExt as _;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    fn ack(number: u8) -> Vec<u8> {
        [HEADER.as_slice(), &[number; 8]].concat()
    }

    /// Returns the bytes that can be read now, if there are any.
    fn there(server: &mut DuplexStream) -> Option<Vec<u8>> {
        let mut bytes = [0; 4096];
        let read = server.read(&mut bytes).now_or_never()?.unwrap();
        Some(bytes[..read].to_vec())
    }

    #[tokio::test]
    async fn an_acknowledgement_goes_with_the_next_write_in_one_packet_and_in_order() {
        let (client, mut server) = duplex(4096);
        let mut connection = LateAcks::new(client);
        for number in 1..=2 {
            connection.write_all(&ack(number)).await.unwrap();
            connection.flush().await.unwrap();
        }
        assert_eq!(there(&mut server), None);
        connection.write_all(b"a question").await.unwrap();
        let expected = [ack(1), ack(2), b"a question".to_vec()].concat();
        assert_eq!(there(&mut server), Some(expected));
    }

    #[tokio::test]
    async fn an_acknowledgement_goes_alone_where_nothing_else_is_written() {
        let (client, mut server) = duplex(4096);
        let mut connection = LateAcks::new(client);
        for number in 1..=3 {
            connection.write_all(&ack(number)).await.unwrap();
            let (mut there, mut here) = ([0; FRAME], [0; 16]);
            tokio::select! {
                read = server.read_exact(&mut there) => assert_eq!(read.unwrap(), FRAME),
                _ = connection.read(&mut here) => panic!("the server has sent nothing"),
                () = sleep(Duration::from_secs(30)) => panic!("acknowledgement {number} does not come"),
            }
            assert_eq!(there.to_vec(), ack(number));
        }
        connection.write_all(&ack(9)).await.unwrap();
        connection.shutdown().await.unwrap();
        assert_eq!(there(&mut server), Some(ack(9)));
    }

    #[tokio::test]
    async fn only_so_many_are_kept() {
        let (client, mut server) = duplex(4096);
        let mut connection = LateAcks::new(client);
        for number in 1..=8 {
            connection.write_all(&ack(number)).await.unwrap();
        }
        assert_eq!(there(&mut server), None);
        connection.write_all(&ack(9)).await.unwrap();
        assert_eq!(there(&mut server), Some((1..=9).flat_map(ack).collect()));
    }

    proptest! {
        /// A pipe of any size delivers the written bytes in order.
        #[test]
        fn nothing_is_lost_and_nothing_changes_places(
            parts in proptest::collection::vec((any::<bool>(), 1..2000usize), 1..30), room in 1..64usize) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let written: Vec<Vec<u8>> = parts.iter().enumerate().map(|(at, (is_ack, length))| {
                if *is_ack { ack(at as u8) } else { vec![at as u8; *length] }
            }).collect();
            let read = runtime.block_on(async {
                let (client, mut server) = duplex(room);
                let mut connection = LateAcks::new(client);
                let reader = tokio::spawn(async move {
                    let mut all = Vec::new();
                    server.read_to_end(&mut all).await.unwrap();
                    all
                });
                for part in &written {
                    connection.write_all(part).await.unwrap();
                    connection.flush().await.unwrap();
                }
                connection.shutdown().await.unwrap();
                drop(connection);
                reader.await.unwrap()
            });
            prop_assert_eq!(read, written.concat());
        }
    }
}
