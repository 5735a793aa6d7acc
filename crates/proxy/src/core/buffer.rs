//! Buffers that connections borrow while they have bytes to keep, so that an idle one holds none.

/// Capacity of a fresh buffer, in bytes.
const FRESH: usize = 8 << 10;
/// A buffer that grew beyond this is freed instead of kept, in bytes.
const LARGEST_KEPT: usize = 128 << 10;
/// Most buffers kept by one worker.
const MOST_KEPT: usize = 1024;

/// A worker's spare buffers.
#[derive(Debug, Default)]
pub struct Buffers {
    spare: Vec<Vec<u8>>,
}

impl Buffers {
    /// An empty buffer with capacity.
    pub fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(FRESH))
    }

    /// Takes a buffer back.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if (1..=LARGEST_KEPT).contains(&buffer.capacity()) && self.spare.len() < MOST_KEPT {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Makes sure that `buffer` has capacity, from the spare ones if it has none.
    pub fn lend<'a>(&mut self, buffer: &'a mut Vec<u8>) -> &'a mut Vec<u8> {
        if buffer.capacity() == 0 {
            *buffer = self.take();
        }
        buffer
    }
}

/// Output that waits for its socket: `head` bytes of `bytes` are already written, those from `held` on must not be
/// written yet.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    head: usize,
    held: Option<usize>,
}

impl Output {
    /// Where to append.
    pub fn append(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        buffers.lend(&mut self.bytes)
    }

    /// Bytes not yet written, the held ones included.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// True if nothing waits, held or not.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What may be written now.
    pub fn writable(&self) -> &[u8] {
        &self.bytes[self.head..self.held.unwrap_or(self.bytes.len())]
    }

    /// `count` bytes of [`writable`](Output::writable) were written; an empty output gives its buffer back.
    pub fn wrote(&mut self, count: usize, buffers: &mut Buffers) {
        self.head += count;
        debug_assert!(self.head <= self.bytes.len());
        if self.head == self.bytes.len() {
            if self.held.is_some() {
                self.held = Some(0);
            }
            self.head = 0;
            buffers.give(std::mem::take(&mut self.bytes));
        }
    }

    /// From here on nothing is written until [`release`](Output::release).
    pub fn hold(&mut self) {
        self.held = Some(self.bytes.len());
    }

    /// Bytes held back; None if not holding.
    pub fn held(&self) -> Option<usize> {
        self.held.map(|from| self.bytes.len() - from)
    }

    /// Lets the held bytes go.
    pub fn release(&mut self) {
        self.held = None;
    }

    /// Takes back what was held, and stops holding.
    pub fn retract(&mut self, buffers: &mut Buffers) {
        if let Some(from) = self.held.take() {
            self.bytes.truncate(from);
            self.wrote(0, buffers);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        self.head = 0;
        self.held = None;
        buffers.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_bytes_wait_and_can_be_taken_back() {
        let mut buffers = Buffers::default();
        let mut out = Output::default();
        out.append(&mut buffers).extend(b"one");
        out.hold();
        out.append(&mut buffers).extend(b"two");
        assert_eq!((out.writable(), out.held()), (&b"one"[..], Some(3)));
        out.wrote(3, &mut buffers);
        assert_eq!((out.writable(), out.len()), (&b""[..], 3));
        out.retract(&mut buffers);
        assert!(out.is_empty() && out.held().is_none());
        out.append(&mut buffers).extend(b"three");
        assert_eq!(out.writable(), b"three");
    }

    #[test]
    fn holding_an_empty_output_survives_its_buffer() {
        let mut buffers = Buffers::default();
        let mut out = Output::default();
        out.append(&mut buffers).extend(b"one");
        out.hold();
        out.wrote(3, &mut buffers);
        out.append(&mut buffers).extend(b"two");
        assert_eq!(out.writable(), b"");
        out.release();
        assert_eq!(out.writable(), b"two");
        out.wrote(3, &mut buffers);
        assert_eq!(buffers.spare.len(), 1);
    }
}
