//! A downstream's socket, in clear or with TLS. Ciphertext not yet sent is bounded by one piece.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::SendFlags;
use tls::{Acceptor, Event, Identity, LONGEST_PART, Link};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, Ready};
use tokio::net::TcpStream;

/// Ciphertext read at once, in bytes.
const READ: usize = 16 << 10;
/// Plaintext encrypted at once, in bytes.
const AT_ONCE: usize = 32 << 10;

/// A socket.
pub(crate) struct Transport {
    stream: TcpStream,
    secure: Option<Box<Secure>>,
}

struct Secure {
    link: Link,
    buffer: Vec<u8>,
    spare: Vec<u8>,
    ended: bool,
}

impl Transport {
    pub(crate) fn new(stream: TcpStream) -> Transport {
        Transport { stream, secure: None }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.secure.is_some()
    }

    /// Begins TLS after the client has asked for it, confirmed by `answer`. Data that the client sent behind the handshake goes to `input`. The
    /// caller bounds the time.
    pub(crate) async fn accept(
        &mut self,
        acceptor: &Acceptor,
        answer: &[u8],
        input: &mut Vec<u8>,
    ) -> io::Result<Identity> {
        let mut link = Link::accept(acceptor, false).map_err(io::Error::other)?;
        link.prime(answer);
        let buffer = vec![0; LONGEST_PART + READ];
        let mut secure = Box::new(Secure { link, buffer, spare: Vec::new(), ended: false });
        let mut identity = None;
        loop {
            secure.write_all(&mut self.stream).await?;
            if let Some(identity) = identity.take() {
                self.secure = Some(secure);
                return Ok(identity);
            }
            let kept = secure.link.unfinished(&mut secure.buffer);
            let count = self.stream.read(&mut secure.buffer[kept..]).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let taken = secure.received(kept + count, input, &mut identity);
            if let Err(error) = taken {
                // The alert gives the client the reason.
                let _ = secure.write_all(&mut self.stream).await;
                return Err(error);
            }
        }
    }

    /// Waits for data and reads it once, appending to `input`. 0: the end.
    pub(crate) async fn read(&mut self, input: &mut Vec<u8>) -> io::Result<usize> {
        let Some(secure) = &mut self.secure else { return self.stream.read_buf(input).await };
        let before = input.len();
        while input.len() == before {
            if secure.ended {
                return Ok(0);
            }
            self.stream.readable().await?;
            match secure.try_read(&self.stream, input) {
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            secure.write_all(&mut self.stream).await?;
        }
        Ok(input.len() - before)
    }

    /// As [`Transport::read`], without waiting; with TLS a count above 0 may come without new data in `input`.
    pub(crate) fn try_read(&mut self, input: &mut Vec<u8>) -> io::Result<usize> {
        match &mut self.secure {
            None => self.stream.try_read_buf(input),
            Some(secure) => secure.try_read(&self.stream, input),
        }
    }

    /// Writes all of it.
    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(secure) = &mut self.secure else { return self.stream.write_all(bytes).await };
        for part in bytes.chunks(AT_ONCE) {
            secure.write_all(&mut self.stream).await?;
            secure.encrypt(part)?;
        }
        secure.write_all(&mut self.stream).await
    }

    /// Writes as much as the socket takes or can be buffered; [`Transport::flush`] sends the buffered part.
    pub(crate) fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(secure) = &mut self.secure else { return self.stream.try_write(bytes) };
        secure.flush(&self.stream)?;
        let part = &bytes[..bytes.len().min(AT_ONCE)];
        secure.encrypt(part)?;
        match secure.flush(&self.stream) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(part.len()),
        }
    }

    /// As [`Transport::try_write`], and the kernel may wait for more data.
    pub(crate) fn try_write_more(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.secure.is_some() {
            return self.try_write(bytes);
        }
        let stream = &self.stream;
        stream.try_io(Interest::WRITABLE, || {
            Ok(rustix::net::send(stream.as_fd(), bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?)
        })
    }

    /// Sends a part of a file: from the page cache to the socket, or through the record layer.
    pub(crate) fn try_send_file(&mut self, file: &std::fs::File, offset: u64, length: usize) -> io::Result<usize> {
        use std::os::unix::fs::FileExt;
        if self.secure.is_some() {
            let mut part = [0; AT_ONCE];
            let part = &mut part[..length.min(AT_ONCE)];
            let count = file.read_at(part, offset)?;
            // Takes over all of it, or nothing.
            return if count == 0 { Ok(0) } else { self.try_write(&part[..count]) };
        }
        let (stream, mut offset) = (&self.stream, offset);
        stream.try_io(Interest::WRITABLE, || Ok(rustix::fs::sendfile(stream.as_fd(), file, Some(&mut offset), length)?))
    }

    /// Sends the buffered data.
    ///
    /// # Errors
    /// `WouldBlock`: the socket takes no more now.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        match &mut self.secure {
            None => Ok(()),
            Some(secure) => secure.flush(&self.stream),
        }
    }

    pub(crate) async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        self.stream.ready(interest).await
    }

    /// Ends the sending direction.
    pub(crate) async fn shutdown(&mut self) -> io::Result<()> {
        if let Some(secure) = &mut self.secure {
            secure.link.close();
            secure.write_all(&mut self.stream).await?;
        }
        self.stream.shutdown().await
    }
}

impl Secure {
    fn received(&mut self, count: usize, input: &mut Vec<u8>, identity: &mut Option<Identity>) -> io::Result<()> {
        let ended = &mut self.ended;
        self.link
            .received(&mut self.buffer[..count], &mut |event| match event {
                Event::Secured(who) => *identity = Some(who),
                Event::Data(data) => input.extend_from_slice(data),
                Event::Closed => *ended = true,
            })
            .map_err(io::Error::other)
    }

    fn try_read(&mut self, stream: &TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
        if self.ended {
            return Ok(0);
        }
        let kept = self.link.unfinished(&mut self.buffer);
        let count = match stream.try_read(&mut self.buffer[kept..]) {
            Ok(count) => count,
            Err(error) => {
                let Secure { link, buffer, .. } = self;
                link.keep(&buffer[..kept]);
                return Err(error);
            }
        };
        if count > 0 {
            self.received(kept + count, input, &mut None)?;
        }
        Ok(count)
    }

    fn encrypt(&mut self, plain: &[u8]) -> io::Result<()> {
        self.link.encrypt(plain, &mut self.spare).map_err(io::Error::other)
    }

    fn flush(&mut self, stream: &TcpStream) -> io::Result<()> {
        while !self.link.pending().is_empty() {
            let count = stream.try_write(self.link.pending())?;
            self.link.wrote(count, &mut self.spare);
        }
        Ok(())
    }

    async fn write_all(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while !self.link.pending().is_empty() {
            let count = stream.write(self.link.pending()).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.link.wrote(count, &mut self.spare);
        }
        Ok(())
    }
}
