//! Buffers that connections borrow while they hold bytes: an idle connection has none.

use std::collections::VecDeque;
use std::time::Instant;

use crate::core::commit::Gate;

/// Capacity of a new buffer, in bytes.
const FRESH: usize = 8 << 10;
/// Size in bytes beyond which a returned buffer is freed.
const LARGEST_KEPT: usize = 128 << 10;
/// Maximum number of spare buffers of one worker.
const MOST_KEPT: usize = 1024;

/// Number of written bytes at the front after which the bytes behind them are moved to the front.
const MOVED_UP: usize = 64 << 10;

/// Spare buffers of a worker.
#[derive(Debug, Default)]
pub struct Buffers {
    spare: Vec<Vec<u8>>,
    #[expect(clippy::vec_box, reason = "it is the box that goes from one connection to the next")]
    queues: Vec<Box<Queue>>,
}

impl Buffers {
    /// Size of a new buffer, in bytes.
    pub const SIZE: usize = FRESH;

    /// Returns the number of buffers that are not lent.
    pub fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Returns an empty buffer with capacity.
    pub fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_else(|| Vec::with_capacity(FRESH))
    }

    /// Takes a buffer back, to be lent again.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if (1..=LARGEST_KEPT).contains(&buffer.capacity()) && self.spare.len() < MOST_KEPT {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Ensures that `buffer` has capacity: replaces one without by a spare buffer.
    pub fn lend<'a>(&mut self, buffer: &'a mut Vec<u8>) -> &'a mut Vec<u8> {
        if buffer.capacity() == 0 {
            *buffer = self.take();
        }
        buffer
    }
}

/// Bytes to be written to a socket. Takes the room of one pointer while empty.
#[derive(Debug, Default)]
pub struct Output(Option<Box<Queue>>);

/// Bytes of an output. The first `head` bytes are written. Bytes from `held` on, and bytes behind the first gate, must not be written yet.
#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    head: usize,
    held: Option<usize>,
    /// The gates in order, each with the number of bytes before it.
    gates: VecDeque<(usize, Gate)>,
}

impl Output {
    /// Returns the buffer to append to.
    pub fn append(&mut self, buffers: &mut Buffers) -> &mut Vec<u8> {
        let queue = self.queue(buffers);
        buffers.lend(&mut queue.bytes)
    }

    /// Returns the number of unwritten bytes, including held ones.
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.bytes.len() - queue.head)
    }

    /// Returns the number of unwritten bytes, without held ones. (Held bytes have a limit of their own, and waiting for them to shrink would never
    /// end.)
    pub fn unread(&self) -> usize {
        self.len() - self.held().unwrap_or(0)
    }

    /// True if there are no bytes, held or not.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that may be written now.
    pub fn writable(&self) -> &[u8] {
        let Some(queue) = &self.0 else { return &[] };
        let gate = queue.gates.front().map_or(queue.bytes.len(), |gate| gate.0);
        &queue.bytes[queue.head..queue.held.unwrap_or(queue.bytes.len()).min(gate)]
    }

    /// Removes the first `count` bytes of [`writable`](Output::writable), which were written. An empty output gives its buffer back.
    pub fn written(&mut self, count: usize, buffers: &mut Buffers) {
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
            // Bytes that are held or behind a gate may keep the buffer from ever being empty.
            queue.bytes.drain(..queue.head);
            queue.held = queue.held.map(|held| held - queue.head);
            queue.move_up(queue.head);
            queue.head = 0;
        }
    }

    /// Holds back all bytes appended from here on, until [`release`](Output::release).
    pub fn hold(&mut self, buffers: &mut Buffers) {
        let queue = self.queue(buffers);
        queue.held = Some(queue.bytes.len());
    }

    /// Returns the number of bytes held back; `None` if the output is not holding.
    pub fn held(&self) -> Option<usize> {
        let queue = self.0.as_ref()?;
        queue.held.map(|from| queue.bytes.len() - from)
    }

    /// Releases the held bytes.
    pub fn release(&mut self) {
        if let Some(queue) = &mut self.0 {
            queue.held = None;
        }
    }

    /// Drops the held bytes, and stops holding.
    pub fn retract(&mut self, buffers: &mut Buffers) {
        let Some(queue) = &mut self.0 else { return };
        if let Some(from) = queue.held.take() {
            queue.bytes.truncate(from);
            queue.gates.retain(|gate| gate.0 < from || !gate.1.is_unsealed());
            self.written(0, buffers);
        }
    }

    /// Drops all bytes.
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

    /// Gives the queue back if it is empty.
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
    /// Adjusts the gates after `by` bytes before them were removed.
    fn move_up(&mut self, by: usize) {
        for gate in &mut self.gates {
            gate.0 -= by;
        }
    }
}

/// Gates. Nothing behind a gate is written until the gate is opened; they open in order.
impl Output {
    /// Returns the number of gates.
    pub(in crate::core) fn gates(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.gates.len())
    }

    /// Adds a gate at the end.
    pub(in crate::core) fn close_gate(&mut self, gate: Gate, buffers: &mut Buffers) {
        let queue = self.queue(buffers);
        queue.gates.push_back((queue.bytes.len(), gate));
    }

    /// Returns the time at which the first gate was sealed, or added if it is not sealed yet.
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

    /// Opens the first gate.
    pub(in crate::core) fn open_gate(&mut self, buffers: &mut Buffers) {
        if let Some(queue) = &mut self.0 {
            queue.gates.pop_front();
        }
        self.rest(buffers);
    }

    /// Removes the last gate: the bytes behind it belong to the previous gate.
    pub(in crate::core) fn drop_last_gate(&mut self, buffers: &mut Buffers) {
        if let Some(queue) = &mut self.0 {
            queue.gates.pop_back();
        }
        self.rest(buffers);
    }

    /// Replaces the last two gates by `last`, in the position of the earlier one.
    pub(in crate::core) fn merge_gates(&mut self, last: Gate) {
        let Some(queue) = &mut self.0 else { return };
        queue.gates.pop_back();
        if let Some(gate) = queue.gates.back_mut() {
            gate.1 = last;
        }
    }

    /// Drops all gates, and all bytes behind the first.
    pub(in crate::core) fn cut(&mut self, buffers: &mut Buffers) {
        let Some(queue) = &mut self.0 else { return };
        let Some((from, _)) = queue.gates.pop_front() else { return };
        queue.gates.clear();
        queue.held = None;
        queue.bytes.truncate(from);
        self.written(0, buffers);
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
        out.written(3, &mut buffers);
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
        out.written(3, &mut buffers);
        out.append(&mut buffers).extend(b"two");
        assert_eq!(out.writable(), b"");
        out.release();
        assert_eq!(out.writable(), b"two");
        out.written(3, &mut buffers);
        assert_eq!((buffers.spare.len(), buffers.queues.len()), (1, 1), "nothing is kept by who has nothing to say");
    }

    #[test]
    fn what_is_behind_a_gate_waits_for_it_and_those_before_it() {
        let mut buffers = Buffers::default();
        let mut out = Output::default();
        let gate = || Gate::unsealed(std::time::Instant::now());
        out.append(&mut buffers).extend(b"one");
        out.close_gate(gate(), &mut buffers);
        out.append(&mut buffers).extend(b"two");
        out.close_gate(gate(), &mut buffers);
        out.append(&mut buffers).extend(b"three");
        assert_eq!((out.writable(), out.gates()), (&b"one"[..], 2));
        out.written(3, &mut buffers);
        assert_eq!(out.writable(), b"");
        out.open_gate(&mut buffers);
        assert_eq!(out.writable(), b"two");
        out.written(3, &mut buffers);
        out.open_gate(&mut buffers);
        assert_eq!(out.writable(), b"three");
        out.written(5, &mut buffers);
        // A gate at the end of the written bytes survives the buffer.
        out.append(&mut buffers).extend(b"four");
        out.close_gate(gate(), &mut buffers);
        out.written(4, &mut buffers);
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
            out.close_gate(Gate::unsealed(std::time::Instant::now()), &mut buffers);
            out.append(&mut buffers).extend(b"gated");
            let count = out.writable().len();
            out.written(count, &mut buffers);
            out.open_gate(&mut buffers);
        }
        assert_eq!((out.writable(), out.len()), (&b"gated"[..], 5));
        let kept = out.0.as_ref().map_or(0, |queue| queue.bytes.len());
        assert!(kept < 3 * MOVED_UP, "{kept} bytes are kept for 5");
    }
}
