//! An io_uring instance and its receive buffers, wrapped so that other modules need no `unsafe`.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode, squeue};

/// Size of the submission queue. If it is full, entries are submitted before the end of the turn.
const ENTRIES: u32 = 256;
/// Size of the completion queue; the kernel keeps completions that do not fit.
const COMPLETIONS: u32 = 1024;
/// Number of receive buffers; a power of two.
const BUFFERS: u16 = 64;
/// Size of a receive buffer, in bytes.
const LENGTH: usize = 16 << 10;
/// Maximum number of attempts to submit entries that the kernel does not take.
const TRIES: usize = 1000;
/// The only buffer group.
const GROUP: u16 = 0;

/// Number of completions that ends the time in which they gather: their buffers should not lie idle.
const GATHERED: u32 = BUFFERS as u32 / 2;

/// Maximum wait in the probe.
const PATIENCE: Wait = Wait { limit: Duration::from_secs(1), gather: Duration::ZERO };

/// Wait of a turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    /// Longest wait for a completion.
    pub(super) limit: Duration,
    /// Time in which completions gather, however early the first one is.
    pub(super) gather: Duration,
}

impl Wait {
    /// No wait at all.
    pub(super) const NONE: Wait = Wait { limit: Duration::ZERO, gather: Duration::ZERO };
}

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 8;

/// C structure `struct io_uring_getevents_arg`.
#[repr(C)]
struct GetEventsArg {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_usec: u32,
    timespec: u64,
}

/// C structure `struct __kernel_timespec`.
#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

/// The completion of a submission.
#[derive(Clone, Copy)]
pub(super) struct Completion {
    pub(super) data: u64,
    pub(super) result: i32,
    flags: u32,
}

impl Completion {
    /// True if the same submission will complete again.
    pub(super) fn more(self) -> bool {
        cqueue::more(self.flags)
    }
}

/// The receive buffers, and the ring that passes them to the kernel. Both live until the ring is unregistered.
struct Pool {
    entries: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    tail: u16,
}

impl Pool {
    fn layouts() -> (Layout, Layout) {
        let page = 4096;
        let entries = Layout::from_size_align(usize::from(BUFFERS) * size_of::<BufRingEntry>(), page);
        let bytes = Layout::from_size_align(usize::from(BUFFERS) * LENGTH, page);
        match (entries, bytes) {
            (Ok(entries), Ok(bytes)) => (entries, bytes),
            _ => unreachable!("constants that are a layout"),
        }
    }

    fn new() -> Pool {
        let (entries, bytes) = Pool::layouts();
        // SAFETY: neither layout is empty.
        let (a, b) = unsafe { (alloc_zeroed(entries), alloc_zeroed(bytes)) };
        let Some(a) = NonNull::new(a) else { handle_alloc_error(entries) };
        let Some(b) = NonNull::new(b) else { handle_alloc_error(bytes) };
        let mut pool = Pool { entries: a.cast(), bytes: b, tail: 0 };
        for id in 0..BUFFERS {
            pool.give(id);
        }
        pool.publish();
        pool
    }

    /// Adds a buffer to the ring. The kernel may fill it after the next `publish`.
    fn give(&mut self, id: u16) {
        let at = usize::from(self.tail & (BUFFERS - 1));
        // SAFETY: `at` is within the ring's entries, and the kernel reads an entry only once the tail is past it.
        let entry = unsafe { &mut *self.entries.as_ptr().add(at) };
        entry.set_addr(self.bytes.as_ptr() as u64 + u64::from(id) * LENGTH as u64);
        entry.set_len(LENGTH as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
    }

    fn publish(&self) {
        // SAFETY: the first entry is there, and its tail is only touched as an atomic: the kernel reads it at any time.
        let tail = unsafe { &*BufRingEntry::tail(self.entries.as_ptr()).cast::<AtomicU16>() };
        tail.store(self.tail, Ordering::Release);
    }

    /// Returns the bytes that the kernel has put into a buffer; the buffer must not have been given back.
    fn bytes(&self, id: u16, count: usize) -> &[u8] {
        debug_assert!(id < BUFFERS && count <= LENGTH);
        let (id, count) = (usize::from(id % BUFFERS), count.min(LENGTH));
        // SAFETY: within the allocation; the kernel writes to it only after it was given back, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr().add(id * LENGTH), count) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let (entries, bytes) = Pool::layouts();
        // SAFETY: allocated with these layouts; [`Ring`]'s drop has taken them from the kernel.
        unsafe {
            dealloc(self.entries.as_ptr().cast(), entries);
            dealloc(self.bytes.as_ptr(), bytes);
        }
    }
}

/// A worker's io_uring. It belongs to the thread that created it.
pub(super) struct Ring {
    ring: IoUring,
    pool: Pool,
    /// True if the kernel has a least wait (6.12).
    gathers: bool,
}

impl Ring {
    pub(super) fn new() -> io::Result<Ring> {
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_submit_all()
            .setup_cqsize(COMPLETIONS)
            .dontfork()
            .build(ENTRIES)?;
        let params = ring.params();
        if !(params.is_feature_ext_arg() && params.is_feature_nodrop() && params.is_feature_skip_cqe_on_success()) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old"));
        }
        let pool = Pool::new();
        let address = pool.entries.as_ptr() as u64;
        // SAFETY: the pool lives as long as the ring, and is taken from the kernel before it is freed.
        unsafe { ring.submitter().register_buf_ring_with_flags(address, BUFFERS, GROUP, 0)? };
        let gathers = ring.params().is_feature_min_timeout();
        Ok(Ring { ring, pool, gathers })
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        for _ in 0..2 {
            // SAFETY: the caller ensures that the memory which the entry points to lives until the entry has completed.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.enter(None)?;
        }
        Err(io::Error::other("io_uring's queue is full"))
    }

    /// Receives from a socket repeatedly, until the submission is cancelled or fails.
    pub(super) fn receive(&mut self, fd: BorrowedFd<'_>, data: u64) -> io::Result<()> {
        self.push(&opcode::RecvMulti::new(Fd(fd.as_raw_fd()), GROUP).build().user_data(data))
    }

    /// Reports when a descriptor is ready: once, or (`multi`) every time.
    pub(super) fn poll(&mut self, fd: BorrowedFd<'_>, events: i16, multi: bool, data: u64) -> io::Result<()> {
        let poll = opcode::PollAdd::new(Fd(fd.as_raw_fd()), events as u32).multi(multi);
        self.push(&poll.build().user_data(data))
    }

    /// Cancels a submission, which then completes for the last time.
    pub(super) fn cancel(&mut self, of: u64, data: u64) -> io::Result<()> {
        self.push(&opcode::AsyncCancel::new(of).build().user_data(data))
    }

    /// Submits all queued entries and these sends, waits for a completion, and moves completions into `done`. Each send is complete on return; it is
    /// in `done` only if it was partial or failed.
    pub(super) fn turn<'a>(
        &mut self,
        sends: impl Iterator<Item = (BorrowedFd<'a>, &'a [u8], u64)>,
        wait: Wait,
        done: &mut Vec<Completion>,
    ) -> io::Result<()> {
        // MSG_DONTWAIT completes the send during its submission. MSG_WAITALL makes a partial send count as failed, so that it has a completion.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        for (fd, bytes, data) in sends {
            let length = bytes.len().min(1 << 30) as u32;
            let send = opcode::Send::new(Fd(fd.as_raw_fd()), bytes.as_ptr(), length).flags(flags);
            self.push(&send.build().flags(squeue::Flags::SKIP_SUCCESS).user_data(data))?;
        }
        let mut wait = Some(wait);
        loop {
            self.enter(wait)?;
            let completed = self.ring.completion().map(|entry| Completion {
                data: entry.user_data(),
                result: entry.result(),
                flags: entry.flags(),
            });
            done.extend(completed);
            // Completions that did not fit in the queue are still in the kernel.
            if !self.ring.submission().cq_overflow() {
                return Ok(());
            }
            wait = Some(Wait::NONE);
        }
    }

    /// Submits all entries. With a time to wait, returns after a completion, or when the time is over.
    fn enter(&mut self, wait: Option<Wait>) -> io::Result<()> {
        let Wait { limit: time, gather } = wait.unwrap_or(Wait::NONE);
        // The kernel waits for so many completions for the least time, and then for one.
        let min_wait_usec = if self.gathers { gather.min(time).as_micros() as u32 } else { 0 };
        let want = match min_wait_usec {
            0 => u32::from(!time.is_zero()),
            _ => GATHERED,
        };
        let events = if wait.is_some() { ENTER_GETEVENTS } else { 0 };
        let timespec = Timespec { seconds: time.as_secs() as i64, nanos: i64::from(time.subsec_nanos()) };
        let pointer = std::ptr::from_ref(&timespec) as u64;
        let arg = GetEventsArg { sigmask: 0, sigmask_size: 0, min_wait_usec, timespec: pointer };
        for _ in 0..TRIES {
            let count = self.ring.submission().len() as u32;
            // SAFETY: `arg` is the structure that EXT_ARG requires, and lives for the call, like the memory that it points to.
            let entered = unsafe { self.ring.submitter().enter(count, want, events | ENTER_EXT_ARG, Some(&arg)) };
            if let Err(error) = entered {
                match error.raw_os_error() {
                    Some(libc::ETIME | libc::EINTR) => {}
                    // The kernel is short of memory.
                    Some(libc::EBUSY | libc::EAGAIN) => std::thread::sleep(Duration::from_millis(1)),
                    _ => return Err(error),
                }
            }
            if self.ring.submission().is_empty() {
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::OutOfMemory, "io_uring takes no more submissions"))
    }

    /// True if completions can gather in a wait.
    pub(super) fn gathers(&self) -> bool {
        self.gathers
    }

    /// Returns the received bytes; empty if there are none.
    pub(super) fn bytes(&self, of: Completion) -> &[u8] {
        match cqueue::buffer_select(of.flags) {
            Some(id) => self.pool.bytes(id, usize::try_from(of.result).unwrap_or(0)),
            None => &[],
        }
    }

    /// Releases the received bytes.
    pub(super) fn done(&mut self, of: Completion) {
        if let Some(id) = cqueue::buffer_select(of.flags) {
            self.pool.give(id);
        }
    }

    /// Returns the released buffers to the kernel.
    pub(super) fn publish(&self) {
        self.pool.publish();
    }
}

/// Checks that the kernel has all features needed by [`Ring`], and permits its use, by trying those that workers rely on. Returns true if it also lets
/// completions gather.
pub(crate) fn probe() -> io::Result<bool> {
    let mut ring = Ring::new()?;
    let (here, there) = UnixStream::pair()?;
    let unfit = |what: &str| Err(io::Error::new(io::ErrorKind::Unsupported, format!("the kernel's io_uring {what}")));
    let mut done = Vec::new();
    ring.receive(here.as_fd(), 1)?;
    // A complete send has no completion; a partial one completes with its number of bytes.
    let long = vec![0; 8 << 20];
    ring.turn([(there.as_fd(), &b"ping"[..], 2)].into_iter(), PATIENCE, &mut done)?;
    let Some(&first) = done.first() else { return unfit("does not receive") };
    if done.len() != 1 || first.data != 1 || ring.bytes(first) != b"ping" || !first.more() {
        return unfit("does not receive again and again");
    }
    ring.done(first);
    ring.publish();
    done.clear();
    ring.turn([(here.as_fd(), &long[..], 3)].into_iter(), PATIENCE, &mut done)?;
    match done.first() {
        Some(of) if of.data == 3 && (1..long.len() as i32).contains(&of.result) && !of.more() => Ok(ring.gathers),
        _ => unfit("does not say what it has sent"),
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // After this the kernel writes to no buffer.
        if self.ring.submitter().unregister_buf_ring(GROUP).is_err() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::io::{Read, Write};

    const NONE: std::iter::Empty<(BorrowedFd<'static>, &[u8], u64)> = std::iter::empty();

    /// Returns a ring; None if the system has no usable io_uring, and there is nothing to test.
    fn ring() -> Option<Ring> {
        probe().ok()?;
        Some(Ring::new().unwrap())
    }

    #[test]
    fn what_is_sent_whole_says_nothing_and_what_is_not_says_how_much() {
        let Some(mut ring) = ring() else { return };
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut done = Vec::new();
        ring.turn([(there.as_fd(), &b"abc"[..], 1)].into_iter(), Wait::NONE, &mut done).unwrap();
        assert!(done.is_empty());
        let mut three = [0; 3];
        here.read_exact(&mut three).unwrap();
        assert_eq!(&three, b"abc");
        let long = vec![7; 8 << 20];
        ring.turn([(there.as_fd(), &long[..], 2)].into_iter(), Wait::NONE, &mut done).unwrap();
        assert_eq!((done.len(), done[0].data), (1, 2));
        let count = usize::try_from(done[0].result).unwrap();
        let mut read = vec![0; count];
        here.read_exact(&mut read).unwrap();
        assert_eq!(read, long[..count]);
        here.set_nonblocking(true).unwrap();
        assert_eq!(here.read(&mut three).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn more_sends_than_fit_in_the_queue_are_all_sent_and_all_told_of() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..400).map(|_| UnixStream::pair().unwrap()).collect();
        let long = vec![7; 4 << 20];
        let mut done = Vec::new();
        let sends = pairs.iter().enumerate().map(|(i, (a, _))| (a.as_fd(), &long[..], i as u64));
        ring.turn(sends, Wait::NONE, &mut done).unwrap();
        let mut told: Vec<u64> = done.iter().filter(|of| of.result > 0).map(|of| of.data).collect();
        told.sort_unstable();
        assert_eq!(told, (0..400).collect::<Vec<_>>());
    }

    #[test]
    fn without_buffers_receiving_ends_and_goes_on_where_it_was() {
        let Some(mut ring) = ring() else { return };
        let (mut here, there) = UnixStream::pair().unwrap();
        here.set_nonblocking(true).unwrap();
        let total = (usize::from(BUFFERS) + 8) * LENGTH;
        let text: Vec<u8> = (0..total).map(|i| (i / 251) as u8).collect();
        let (mut written, mut got, mut done) = (0, Vec::new(), Vec::new());
        let (mut armed, mut ended) = (false, 0);
        for _ in 0..10_000 {
            if got.len() == total {
                break;
            }
            written += here.write(&text[written..]).unwrap_or(0);
            if !std::mem::replace(&mut armed, true) {
                ring.receive(there.as_fd(), 1).unwrap();
            }
            ring.turn(NONE, Wait::NONE, &mut done).unwrap();
            // Buffers are returned only after they have run out.
            if armed && done.iter().any(|of| !of.more()) || written == total {
                for of in done.drain(..) {
                    got.extend_from_slice(ring.bytes(of));
                    ring.done(of);
                    if !of.more() {
                        assert_eq!(-of.result, libc::ENOBUFS);
                        (armed, ended) = (false, ended + 1);
                    }
                }
                ring.publish();
            }
        }
        assert!(got == text, "{} of {total} bytes", got.len());
        assert!(ended > 0);
    }

    #[test]
    fn a_cancelled_submission_has_a_last_completion() {
        let Some(mut ring) = ring() else { return };
        let (_here, there) = UnixStream::pair().unwrap();
        let mut done = Vec::new();
        ring.receive(there.as_fd(), 1).unwrap();
        ring.turn(NONE, Wait::NONE, &mut done).unwrap();
        ring.cancel(1, 2).unwrap();
        ring.turn(NONE, PATIENCE, &mut done).unwrap();
        assert!(done.iter().any(|of| of.data == 1 && of.result == -libc::ECANCELED && !of.more()));
    }

    #[test]
    fn completions_gather_until_they_are_many_or_the_time_is_over() {
        let Some(mut ring) = ring() else { return };
        let pairs: Vec<_> = (0..GATHERED).map(|_| UnixStream::pair().unwrap()).collect();
        for (number, (here, _)) in (1..).zip(&pairs) {
            ring.receive(here.as_fd(), number).unwrap();
        }
        let mut done = Vec::new();
        // One is not enough to end the time, and the time ends with it.
        (&pairs[0].1).write_all(b"x").unwrap();
        let soon = Wait { gather: Duration::from_micros(100), ..PATIENCE };
        ring.turn(NONE, soon, &mut done).unwrap();
        assert_eq!(done.len(), 1);
        // Many end a time that is longer than any test may take.
        let long = Duration::from_secs(3600);
        done.drain(..).for_each(|of| ring.done(of));
        ring.publish();
        for (_, there) in &pairs {
            (&mut &*there).write_all(b"x").unwrap();
        }
        ring.turn(NONE, Wait { limit: long, gather: if ring.gathers() { long } else { Duration::ZERO } }, &mut done)
            .unwrap();
        assert!(!ring.gathers() || done.len() >= pairs.len(), "{}", done.len());
    }
}
