//! Buffers that connections borrow while they have bytes to keep, so that an idle one holds none.

use std::collections::VecDeque;
use std::time::Instant;

use super::gate::Gate;

/// Capacity of a fresh buffer, in bytes.
const FRESH: usize = 8 << 10;
/// A buffer that grew beyond this is freed instead of kept, in bytes.
const LARGEST_KEPT: usize = 128 << 10;
/// Most buffers kept by one worker.
const MOST_KEPT: usize = 1024;

/// Written bytes that are kept in front of others before these are moved up, in bytes.
const MOVED_UP: usize = 64 << 10;

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
/// written yet, nor those behind the first gate.
#[derive(Debug, Default)]
pub struct Output {
    bytes: Vec<u8>,
    head: usize,
    held: Option<usize>,
    /// Each with the number of bytes before it, in order. Kept once there was one.
    #[expect(clippy::box_collection, reason = "who never has one pays for a pointer, and not for a queue")]
    gates: Option<Box<VecDeque<(usize, Gate)>>>,
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
        let gate = self.gates.as_ref().and_then(|gates| gates.front()).map_or(self.bytes.len(), |gate| gate.0);
        &self.bytes[self.head..self.held.unwrap_or(self.bytes.len()).min(gate)]
    }

    /// `count` bytes of [`writable`](Output::writable) were written; an empty output gives its buffer back.
    pub fn wrote(&mut self, count: usize, buffers: &mut Buffers) {
        self.head += count;
        debug_assert!(self.head <= self.bytes.len());
        if self.head == self.bytes.len() {
            if self.held.is_some() {
                self.held = Some(0);
            }
            self.move_up(self.head);
            self.head = 0;
            buffers.give(std::mem::take(&mut self.bytes));
        } else if self.head >= MOVED_UP && self.head >= self.bytes.len() / 2 {
            // What is behind a gate, or held, may keep it from ever being empty.
            self.bytes.drain(..self.head);
            self.held = self.held.map(|held| held - self.head);
            self.move_up(self.head);
            self.head = 0;
        }
    }

    /// So many bytes are gone in front of the gates.
    fn move_up(&mut self, by: usize) {
        for gate in self.gates.iter_mut().flat_map(|gates| gates.iter_mut()) {
            gate.0 -= by;
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
            if let Some(gates) = &mut self.gates {
                gates.retain(|gate| gate.0 < from || !gate.1.is_open());
            }
            self.wrote(0, buffers);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        self.head = 0;
        self.held = None;
        self.gates = None;
        buffers.give(std::mem::take(&mut self.bytes));
    }
}

/// Gates: places behind which nothing is written until they are opened, the first one first.
impl Output {
    /// How many there are.
    pub(super) fn gates(&self) -> usize {
        self.gates.as_ref().map_or(0, |gates| gates.len())
    }

    /// Puts one at the end.
    pub(super) fn close_gate(&mut self, gate: Gate) {
        let at = self.bytes.len();
        self.gates.get_or_insert_default().push_back((at, gate));
    }

    /// Since when something is held back.
    pub(super) fn held_since(&self) -> Option<Instant> {
        self.first_gate().map(Gate::since)
    }

    pub(super) fn first_gate(&self) -> Option<&Gate> {
        self.gates.as_ref()?.front().map(|gate| &gate.1)
    }

    pub(super) fn first_gate_mut(&mut self) -> Option<&mut Gate> {
        self.gates.as_mut()?.front_mut().map(|gate| &mut gate.1)
    }

    pub(super) fn last_gate(&self) -> Option<&Gate> {
        self.gates.as_ref()?.back().map(|gate| &gate.1)
    }

    pub(super) fn last_gate_mut(&mut self) -> Option<&mut Gate> {
        self.gates.as_mut()?.back_mut().map(|gate| &mut gate.1)
    }

    /// Opens the first.
    pub(super) fn open_gate(&mut self) {
        self.gates.as_mut().and_then(|gates| gates.pop_front());
    }

    /// Takes the last one away: what is behind it goes with what is before it.
    pub(super) fn drop_last_gate(&mut self) {
        self.gates.as_mut().and_then(|gates| gates.pop_back());
    }

    /// The last but one becomes as the last, which goes.
    pub(super) fn merge_gates(&mut self, last: Gate) {
        self.drop_last_gate();
        if let Some(gate) = self.last_gate_mut() {
            *gate = last;
        }
    }

    /// Drops the gates, and everything behind the first.
    pub(super) fn cut(&mut self, buffers: &mut Buffers) {
        let Some((from, _)) = self.gates.take().and_then(|mut gates| gates.pop_front()) else { return };
        self.held = None;
        self.bytes.truncate(from);
        self.wrote(0, buffers);
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

    #[test]
    fn what_is_behind_a_gate_waits_for_it_and_those_before_it() {
        let mut buffers = Buffers::default();
        let mut out = Output::default();
        let gate = || Gate::open(std::time::Instant::now());
        out.append(&mut buffers).extend(b"one");
        out.close_gate(gate());
        out.append(&mut buffers).extend(b"two");
        out.close_gate(gate());
        out.append(&mut buffers).extend(b"three");
        assert_eq!((out.writable(), out.gates()), (&b"one"[..], 2));
        out.wrote(3, &mut buffers);
        assert_eq!(out.writable(), b"");
        out.open_gate();
        assert_eq!(out.writable(), b"two");
        out.wrote(3, &mut buffers);
        out.open_gate();
        assert_eq!(out.writable(), b"three");
        out.wrote(5, &mut buffers);
        // A gate at the end of what has been written outlives the buffer.
        out.append(&mut buffers).extend(b"four");
        out.close_gate(gate());
        out.wrote(4, &mut buffers);
        out.append(&mut buffers).extend(b"five");
        assert_eq!(out.writable(), b"");
        out.cut(&mut buffers);
        assert!(out.is_empty() && out.gates() == 0);
    }

    #[test]
    fn written_bytes_in_front_of_a_gate_are_let_go() {
        let mut buffers = Buffers::default();
        let mut out = Output::default();
        for _ in 0..100 {
            out.append(&mut buffers).extend([7; 4096]);
            out.close_gate(Gate::open(std::time::Instant::now()));
            out.append(&mut buffers).extend(b"gated");
            let count = out.writable().len();
            out.wrote(count, &mut buffers);
            out.open_gate();
        }
        assert_eq!((out.writable(), out.len()), (&b"gated"[..], 5));
        assert!(out.bytes.len() < 3 * MOVED_UP, "{} bytes are kept for 5", out.bytes.len());
    }
}
