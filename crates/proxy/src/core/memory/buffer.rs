//! Buffers that connections borrow while they have bytes to keep, so that an idle one holds none.

use std::collections::VecDeque;
use std::time::Instant;

use crate::core::commit::Gate;

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
    #[expect(clippy::vec_box, reason = "it is the box that goes from one connection to the next")]
    queues: Vec<Box<Queue>>,
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

/// Output that waits for its socket. A pointer, and no more while there is nothing in it.
#[derive(Debug, Default)]
pub struct Output(Option<Box<Queue>>);

/// `head` bytes of `bytes` are already written, those from `held` on must not be written yet, nor those behind the first gate.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    head: usize,
    held: Option<usize>,
    /// Each with the number of bytes before it, in order.
    gates: VecDeque<(usize, Gate)>,
}

impl Output {
    /// Where to append.
    pub fn append(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        let queue = self.queue(buffers);
        buffers.lend(&mut queue.bytes)
    }

    /// Bytes not yet written, the held ones included.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.bytes.len() - queue.head)
    }

    /// Those of them that are not held: what the other side has not taken. (What is held may not grow beyond a bound of its own; who waits for
    /// it to shrink waits for ever.)
    pub fn unread(&self) -> usize {
        self.len() - self.held().unwrap_or(0)
    }

    /// True if nothing waits, held or not.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What may be written now.
    pub fn writable(&self) -> &[u8] {
        let Some(queue) = &self.0 else { return &[] };
        let gate = queue.gates.front().map_or(queue.bytes.len(), |gate| gate.0);
        &queue.bytes[queue.head..queue.held.unwrap_or(queue.bytes.len()).min(gate)]
    }

    /// `count` bytes of [`writable`](Output::writable) were written; an empty output gives back what it borrowed.
    pub fn wrote(&mut self, count: usize, buffers: &mut Buffers) {
        let Some(queue) = &mut self.0 else { return debug_assert_eq!(count, 0) };
        queue.head += count;
        debug_assert!(queue.head <= queue.bytes.len());
        if queue.head == queue.bytes.len() {
            if queue.held.is_some() {
                queue.held = Some(0);
            }
            queue.move_up(queue.head);
            queue.head = 0;
            buffers.give(std::mem::take(&mut queue.bytes));
            self.rest(buffers);
        } else if queue.head >= MOVED_UP && queue.head >= queue.bytes.len() / 2 {
            // What is behind a gate, or held, may keep it from ever being empty.
            queue.bytes.drain(..queue.head);
            queue.held = queue.held.map(|held| held - queue.head);
            queue.move_up(queue.head);
            queue.head = 0;
        }
    }

    /// From here on nothing is written until [`release`](Output::release).
    pub fn hold(&mut self, buffers: &mut Buffers) {
        let queue = self.queue(buffers);
        queue.held = Some(queue.bytes.len());
    }

    /// Bytes held back; None if not holding.
    pub fn held(&self) -> Option<usize> {
        let queue = self.0.as_ref()?;
        queue.held.map(|from| queue.bytes.len() - from)
    }

    /// Lets the held bytes go.
    pub fn release(&mut self) {
        if let Some(queue) = &mut self.0 {
            queue.held = None;
        }
    }

    /// Takes back what was held, and stops holding.
    pub fn retract(&mut self, buffers: &mut Buffers) {
        let Some(queue) = &mut self.0 else { return };
        if let Some(from) = queue.held.take() {
            queue.bytes.truncate(from);
            queue.gates.retain(|gate| gate.0 < from || !gate.1.is_open());
            self.wrote(0, buffers);
        }
    }

    /// Drops everything.
    pub fn clear(&mut self, buffers: &mut Buffers) {
        let Some(queue) = &mut self.0 else { return };
        buffers.give(std::mem::take(&mut queue.bytes));
        queue.head = 0;
        queue.held = None;
        queue.gates.clear();
        self.rest(buffers);
    }

    fn queue(&mut self, buffers: &mut Buffers) -> &mut Queue {
        self.0.get_or_insert_with(|| buffers.queues.pop().unwrap_or_default())
    }

    /// Gives the queue back if it says nothing.
    fn rest(&mut self, buffers: &mut Buffers) {
        let says_nothing =
            |queue: &mut Box<Queue>| queue.bytes.capacity() == 0 && queue.held.is_none() && queue.gates.is_empty();
        if let Some(queue) = self.0.take_if(says_nothing)
            && buffers.queues.len() < MOST_KEPT
        {
            buffers.queues.push(queue);
        }
    }
}

impl Queue {
    /// So many bytes are gone in front of the gates.
    fn move_up(&mut self, by: usize) {
        for gate in &mut self.gates {
            gate.0 -= by;
        }
    }
}

/// Gates: places behind which nothing is written until they are opened, the first one first.
impl Output {
    /// How many there are.
    pub(in crate::core) fn gates(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.gates.len())
    }

    /// Puts one at the end.
    pub(in crate::core) fn close_gate(&mut self, gate: Gate, buffers: &mut Buffers) {
        let queue = self.queue(buffers);
        queue.gates.push_back((queue.bytes.len(), gate));
    }

    /// Since when something is held back.
    pub(in crate::core) fn held_since(&self) -> Option<Instant> {
        self.first_gate().map(Gate::since)
    }

    pub(in crate::core) fn first_gate(&self) -> Option<&Gate> {
        self.0.as_ref()?.gates.front().map(|gate| &gate.1)
    }

    pub(in crate::core) fn first_gate_mut(&mut self) -> Option<&mut Gate> {
        self.0.as_mut()?.gates.front_mut().map(|gate| &mut gate.1)
    }

    pub(in crate::core) fn last_gate(&self) -> Option<&Gate> {
        self.0.as_ref()?.gates.back().map(|gate| &gate.1)
    }

    pub(in crate::core) fn last_gate_mut(&mut self) -> Option<&mut Gate> {
        self.0.as_mut()?.gates.back_mut().map(|gate| &mut gate.1)
    }

    /// Opens the first.
    pub(in crate::core) fn open_gate(&mut self, buffers: &mut Buffers) {
        if let Some(queue) = &mut self.0 {
            queue.gates.pop_front();
        }
        self.rest(buffers);
    }

    /// Takes the last one away: what is behind it goes with what is before it.
    pub(in crate::core) fn drop_last_gate(&mut self, buffers: &mut Buffers) {
        if let Some(queue) = &mut self.0 {
            queue.gates.pop_back();
        }
        self.rest(buffers);
    }

    /// The last but one becomes as the last, which goes.
    pub(in crate::core) fn merge_gates(&mut self, last: Gate) {
        let Some(queue) = &mut self.0 else { return };
        queue.gates.pop_back();
        if let Some(gate) = queue.gates.back_mut() {
            gate.1 = last;
        }
    }

    /// Drops the gates, and everything behind the first.
    pub(in crate::core) fn cut(&mut self, buffers: &mut Buffers) {
        let Some(queue) = &mut self.0 else { return };
        let Some((from, _)) = queue.gates.pop_front() else { return };
        queue.gates.clear();
        queue.held = None;
        queue.bytes.truncate(from);
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
        out.hold(&mut buffers);
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
        out.hold(&mut buffers);
        out.wrote(3, &mut buffers);
        out.append(&mut buffers).extend(b"two");
        assert_eq!(out.writable(), b"");
        out.release();
        assert_eq!(out.writable(), b"two");
        out.wrote(3, &mut buffers);
        assert_eq!((buffers.spare.len(), buffers.queues.len()), (1, 1), "nothing is kept by who has nothing to say");
    }

    #[test]
    fn what_is_behind_a_gate_waits_for_it_and_those_before_it() {
        let mut buffers = Buffers::default();
        let mut out = Output::default();
        let gate = || Gate::open(std::time::Instant::now());
        out.append(&mut buffers).extend(b"one");
        out.close_gate(gate(), &mut buffers);
        out.append(&mut buffers).extend(b"two");
        out.close_gate(gate(), &mut buffers);
        out.append(&mut buffers).extend(b"three");
        assert_eq!((out.writable(), out.gates()), (&b"one"[..], 2));
        out.wrote(3, &mut buffers);
        assert_eq!(out.writable(), b"");
        out.open_gate(&mut buffers);
        assert_eq!(out.writable(), b"two");
        out.wrote(3, &mut buffers);
        out.open_gate(&mut buffers);
        assert_eq!(out.writable(), b"three");
        out.wrote(5, &mut buffers);
        // A gate at the end of what has been written outlives the buffer.
        out.append(&mut buffers).extend(b"four");
        out.close_gate(gate(), &mut buffers);
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
            out.close_gate(Gate::open(std::time::Instant::now()), &mut buffers);
            out.append(&mut buffers).extend(b"gated");
            let count = out.writable().len();
            out.wrote(count, &mut buffers);
            out.open_gate(&mut buffers);
        }
        assert_eq!((out.writable(), out.len()), (&b"gated"[..], 5));
        let kept = out.0.as_ref().map_or(0, |queue| queue.bytes.len());
        assert!(kept < 3 * MOVED_UP, "{kept} bytes are kept for 5");
    }
}
