//! A socket to an upstream or a relay, in clear or with TLS. Blocking; one thread reads while another writes, each with its own handle.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tls::{Event, LONGEST_PART, Link};

use crate::error::Cause;
use crate::socket::Socket;

/// Ciphertext read at once, in bytes.
const READ: usize = 64 << 10;
/// Plaintext encrypted at once, in bytes.
const AT_ONCE: usize = 16 << 10;

/// A connection. [`Channel::another`] makes a second handle to it.
pub(crate) struct Channel {
    raw: Socket,
    secure: Option<Secure>,
}

#[derive(Clone)]
struct Secure(Arc<Mutex<Sealed>>);

/// The TLS link, and plaintext that nobody has taken yet.
struct Sealed {
    link: Link,
    plain: Vec<u8>,
    taken: usize,
    ended: bool,
    spare: Vec<u8>,
    /// Ciphertext read from the socket; empty between two reads of a handle.
    read: Vec<u8>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("raw", &self.raw).field("secure", &self.secure.is_some()).finish()
    }
}

impl Channel {
    /// Makes a connection in clear.
    pub(crate) fn plain(raw: Socket) -> Channel {
        Channel { raw, secure: None }
    }

    /// Asks the server for TLS, and begins it. `target` None: in clear. Also returns the hash of the server's certificate.
    pub(crate) fn begin(mut raw: Socket, target: Option<&tls::Target>) -> Result<(Channel, Option<Vec<u8>>), Cause> {
        let Some(target) = target else { return Ok((Channel::plain(raw), None)) };
        let mut request = Vec::new();
        wire::message::ssl_request(&mut request);
        raw.write_all(&request)?;
        let mut answer = [0];
        // Exactly one byte: clear text after it would otherwise be taken for encrypted data.
        raw.read_exact(&mut answer)?;
        match answer[0] {
            b'S' => {}
            b'N' if target.connector.is_optional() => return Ok((Channel::plain(raw), None)),
            b'N' => return Err(Cause::NoTls),
            other => return Err(Cause::Protocol(format!("the answer {:?} to SSLRequest", char::from(other)))),
        }
        Channel::secure(raw, target)
    }

    /// Begins TLS on a connection whose peer has agreed to it. Also returns the hash of the peer's certificate.
    pub(crate) fn secure(mut raw: Socket, target: &tls::Target) -> Result<(Channel, Option<Vec<u8>>), Cause> {
        let link = Link::connect(target).map_err(Cause::Tls)?;
        let sealed = Sealed {
            link,
            plain: Vec::new(),
            taken: 0,
            ended: false,
            spare: Vec::new(),
            read: vec![0; LONGEST_PART + READ],
        };
        let mut end_point = None;
        let mut buffer = vec![0; READ];
        let secure = Secure(Arc::new(Mutex::new(sealed)));
        secure.lock().flush(&mut raw)?;
        while !secure.lock().link.is_open() {
            let count = raw.read(&mut buffer)?;
            if count == 0 {
                return Err(Cause::Closed);
            }
            let mut sealed = secure.lock();
            let taken = sealed.take(&buffer[..count], &mut end_point);
            // Also after an error: the alert gives the server the reason.
            let flushed = sealed.flush(&mut raw);
            taken.map_err(Cause::Tls)?;
            flushed?;
        }
        Ok((Channel { raw, secure: Some(secure) }, end_point))
    }

    pub(crate) fn another(&self) -> io::Result<Channel> {
        Ok(Channel { raw: self.raw.try_clone()?, secure: self.secure.clone() })
    }

    /// Ends the connection for all handles.
    pub(crate) fn shutdown(&self) {
        self.raw.shutdown();
    }

    /// True if data can be read at once.
    pub(crate) fn is_readable(&self) -> bool {
        let has_plain = |sealed: &Sealed| sealed.taken < sealed.plain.len();
        self.secure.as_ref().is_some_and(|secure| has_plain(&secure.lock())) || self.raw.is_readable()
    }

    pub(crate) fn set_timeouts(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.raw.set_timeouts(read, write)
    }
}

impl Secure {
    fn lock(&self) -> MutexGuard<'_, Sealed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sealed {
    fn take(&mut self, bytes: &[u8], end_point: &mut Option<Vec<u8>>) -> Result<(), tls::LinkError> {
        if self.taken == self.plain.len() {
            self.plain.clear();
            self.taken = 0;
        }
        let kept = self.link.unfinished(&mut self.read);
        self.read[kept..kept + bytes.len()].copy_from_slice(bytes);
        let (plain, ended) = (&mut self.plain, &mut self.ended);
        self.link.received(&mut self.read[..kept + bytes.len()], &mut |event| match event {
            Event::Secured(identity) => *end_point = identity.end_point,
            Event::Data(data) => plain.extend_from_slice(data),
            Event::Closed => *ended = true,
        })
    }

    fn flush(&mut self, raw: &mut Socket) -> io::Result<()> {
        while !self.link.pending().is_empty() {
            let count = raw.write(self.link.pending())?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.link.wrote(count, &mut self.spare);
        }
        Ok(())
    }
}

impl Read for Channel {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(secure) = &self.secure else { return self.raw.read(buffer) };
        let mut ciphertext = [0; READ];
        loop {
            {
                let mut sealed = secure.lock();
                if sealed.taken < sealed.plain.len() {
                    let count = buffer.len().min(sealed.plain.len() - sealed.taken);
                    buffer[..count].copy_from_slice(&sealed.plain[sealed.taken..sealed.taken + count]);
                    sealed.taken += count;
                    return Ok(count);
                }
                if sealed.ended {
                    return Ok(0);
                }
            }
            // Not under the lock: a writer must not wait for a read.
            let count = self.raw.read(&mut ciphertext)?;
            if count == 0 {
                return Ok(0);
            }
            let mut sealed = secure.lock();
            let taken = sealed.take(&ciphertext[..count], &mut None);
            sealed.flush(&mut self.raw)?;
            taken.map_err(io::Error::other)?;
        }
    }
}

impl Write for Channel {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(secure) = &self.secure else { return self.raw.write(bytes) };
        let part = &bytes[..bytes.len().min(AT_ONCE)];
        // Until all is written: records of two handles must not mix. The socket's time-out bounds the wait.
        let mut sealed = secure.lock();
        let Sealed { link, spare, .. } = &mut *sealed;
        link.encrypt(part, spare).map_err(io::Error::other)?;
        sealed.flush(&mut self.raw)?;
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
