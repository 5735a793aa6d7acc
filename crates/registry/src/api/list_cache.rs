//! Responses about all services of a namespace, or about a large service: made on other threads than those that answer heartbeats. Responses about
//! all services are made once for all clients.
//!
//! ```text
//!  piece of a service's instances ─▶ its part, encoded once ─┐
//!  piece that no change has touched ─▶ its part, as before ──┴─▶ ListBuilder ─▶ Pieces: handles of the parts, no copy ─▶ every client
//! ```
//!
//! A body is made once per revision and shared. The encoding of a piece of a service's instances (up to 128, shared between snapshots) is cached with
//! the piece, and that of a whole service with its snapshot: after a change, only the changed pieces are encoded again. Large parts are not copied
//! into a body, so they are in memory once for any number of clients.
//! A compressed body is one gzip stream of parts that were compressed separately: blocks of DEFLATE may follow each other (RFC 1951, 3.2), and the
//! parts' checksums are combined.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::ApiError;
use crate::cache::Encodings;
use crate::{Encoding, Instance, Revision, ServiceSnapshot};

/// Maximum number of cached bodies; beyond it, the least recently requested one is dropped.
const REMEMBERED: usize = 64;
/// Parts shorter than this are copied: a handle, a write and a block for each would cost more.
const SHORT: usize = 4096;
/// Maximum pause before a body is made again. A body may take long because nothing of it is cached, or because the machine is busy.
const LONGEST_REST: Duration = Duration::from_millis(250);
/// Bytes of short parts gathered into one piece.
const GATHERED: usize = 64 << 10;
/// Texts of at most this many bytes, such as the comma between two parts, are stored in a compressed body without compression: a compressor for each
/// would take longer than the rest of the body. At most 65535.
const STORED: usize = 512;
/// Header of a gzip stream: no name, no time, unknown system (RFC 1952).
const GZIP: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// End of a DEFLATE stream: an empty last block.
const LAST_BLOCK: [u8; 2] = [3, 0];

/// Number of instances above which a service is searched, or encoded, on another thread.
pub(super) const MOST_AT_ONCE: usize = 256;

/// Version of a body's content. A different value means different content.
pub(super) type Stamp = (Revision, Revision);

/// Key of a cached body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// Kind of the body: `consul.nodes`.
    pub(super) what: &'static str,
    /// The namespace; empty for all.
    pub(super) namespace: String,
    /// Further arguments of the request: the name of a node, a state.
    pub(super) more: String,
    /// True if the body is gzip.
    pub(super) packed: bool,
}

/// Cache of bodies.
#[derive(Debug)]
pub(super) struct ListCache {
    /// Bodies in the order of their last request, the latest last.
    made: Mutex<Vec<(Key, Arc<Slot>)>>,
    /// Permit to walk through the whole registry: one task at a time, so that any number of requests uses one processor, and takes the memory once.
    turn: Arc<Semaphore>,
}

/// A cached body. Callers that wait for the lock get the body that its holder makes.
type Slot = tokio::sync::Mutex<Option<Made>>;

#[derive(Debug)]
struct Made {
    stamp: Stamp,
    body: Pieces,
    /// Time before which the body is not made again: unless it takes longer than [`LONGEST_REST`], making a body uses at most half of one processor.
    rests: Instant,
}

/// A body in pieces. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Pieces {
    pieces: Arc<[Bytes]>,
    bytes: u64,
}

/// Builder of a body.
#[derive(Debug)]
pub(super) struct ListBuilder {
    packed: bool,
    pieces: Vec<Bytes>,
    /// Text that is not yet a piece.
    gathered: BytesMut,
    /// Checksum of everything before `gathered`.
    sum: CheckSum,
    /// Number of bytes before compression.
    length: u64,
}

// === impl ListCache ===

impl ListCache {
    pub(super) fn new() -> ListCache {
        ListCache { made: Mutex::default(), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Returns the body for `key`, no older than this call. `stamp` returns the current version of the content; `make` is called if the cached body
    /// has another one.
    ///
    /// # Errors
    /// The server is stopping.
    pub(super) async fn get(
        &self,
        key: Key,
        stamp: impl Fn() -> Stamp,
        make: impl FnOnce(&mut ListBuilder) + Send + 'static,
    ) -> Result<Pieces, ApiError> {
        let packed = key.packed;
        let mut made = self.slot(key).lock_owned().await;
        if let Some(made) = made.as_ref() {
            if made.stamp == stamp() {
                return Ok(made.body.clone());
            }
            tokio::time::sleep_until(made.rests).await;
        }
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| stopping())?;
        // Read first: a change during `make` is in the body, and the body is made again.
        let stamp = stamp();
        // If the client disconnects meanwhile, the body remains for the next one.
        let making = tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let body = composed(packed, make);
            *made = Some(Made { stamp, body: body.clone(), rests: Instant::now() + began.elapsed().min(LONGEST_REST) });
            drop(turn);
            body
        });
        making.await.map_err(|_| stopping())
    }

    /// Makes a body that is not cached.
    ///
    /// # Errors
    /// The server is stopping.
    pub(super) async fn once(
        &self,
        packed: bool,
        make: impl FnOnce(&mut ListBuilder) + Send + 'static,
    ) -> Result<Pieces, ApiError> {
        self.apart(move || composed(packed, make)).await
    }

    /// Makes a body of one service, of the encodings under `encoding` of the pieces of its instances. If many instances are not yet encoded, another
    /// thread makes it.
    ///
    /// # Errors
    /// The server is stopping.
    pub(super) async fn of_service(
        &self,
        service: Arc<ServiceSnapshot>,
        encoding: Encoding,
        packed: bool,
        make: impl FnOnce(&ServiceSnapshot, &mut ListBuilder) + Send + 'static,
    ) -> Result<Pieces, ApiError> {
        let lacking = service.instances.pieces().filter(|piece| !piece.encodings().made(encoding, packed));
        let lacking: usize = lacking.map(|piece| piece.len()).sum();
        let make = move |out: &mut ListBuilder| make(&service, out);
        if lacking <= MOST_AT_ONCE { Ok(composed(packed, make)) } else { self.once(packed, make).await }
    }

    /// Runs `work`, which walks through the whole registry, on a blocking thread, one at a time.
    ///
    /// # Errors
    /// The server is stopping.
    pub(super) async fn apart<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.turn).acquire_owned().await.map_err(|_| stopping())?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(turn);
            done
        });
        working.await.map_err(|_| stopping())
    }

    fn slot(&self, key: Key) -> Arc<Slot> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let found = made.iter().position(|(known, _)| *known == key);
        let entry = match found {
            Some(at) => made.remove(at),
            None => (key, Arc::default()),
        };
        let slot = Arc::clone(&entry.1);
        if made.len() >= REMEMBERED {
            made.remove(0);
        }
        made.push(entry);
        slot
    }
}

/// Encodes entries as JSON with commas between: a list without its brackets.
pub(super) fn entries<T: Serialize>(entries: impl Iterator<Item = T>) -> Bytes {
    let mut list = Vec::new();
    for entry in entries {
        if !list.is_empty() {
            list.push(b',');
        }
        let before = list.len();
        // None of our own types has a Serialize that fails.
        if serde_json::to_writer(&mut list, &entry).is_err() {
            list.truncate(before);
        }
    }
    list.into()
}

fn stopping() -> ApiError {
    ApiError::Unavailable("the registry is stopping".into())
}

fn composed(packed: bool, make: impl FnOnce(&mut ListBuilder)) -> Pieces {
    let mut builder = ListBuilder::new(packed);
    make(&mut builder);
    builder.finish()
}

// === impl ListBuilder ===

impl ListBuilder {
    fn new(packed: bool) -> ListBuilder {
        ListBuilder { packed, pieces: Vec::new(), gathered: BytesMut::new(), sum: CheckSum::default(), length: 0 }
    }

    /// Adds text.
    pub(super) fn text(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        self.length += text.len() as u64;
        self.gathered.extend_from_slice(text);
        if self.gathered.len() >= GATHERED {
            self.end_piece();
        }
    }

    /// Adds the encoding of a service, preceded by `before`; returns false if it is empty. `make` must depend on the snapshot only; its result is
    /// cached with the snapshot under `encoding`.
    pub(super) fn part(
        &mut self,
        before: &str,
        service: &ServiceSnapshot,
        encoding: Encoding,
        make: impl Fn(&ServiceSnapshot) -> Bytes,
    ) -> bool {
        self.kept(before, service.encodings(), encoding, || make(service))
    }

    /// Adds the encodings of a service's instances, piece by piece: `first` before the first piece that is not empty, `between` before each other
    /// one. Returns false if all are empty. `make` must depend on the instances only; its result is cached with the piece, so a change causes only
    /// the pieces with changed instances to be encoded again.
    pub(super) fn list(
        &mut self,
        service: &ServiceSnapshot,
        encoding: Encoding,
        first: &str,
        between: &str,
        make: impl Fn(&[Arc<Instance>]) -> Bytes,
    ) -> bool {
        let mut some = false;
        for piece in service.instances.pieces() {
            let before = if some { between } else { first };
            some |= self.kept(before, piece.encodings(), encoding, || make(piece));
        }
        some
    }

    fn kept(&mut self, before: &str, kept: &Encodings, encoding: Encoding, make: impl Fn() -> Bytes) -> bool {
        if self.packed {
            // The compressed form alone does not cause the plain form to be cached.
            let part = kept.get_packed(encoding, || packed_part(&kept.known(encoding).unwrap_or_else(&make)));
            let Some((kind, rest)) = part.split_first() else { return false };
            self.text(before);
            match (kind, rest.split_first_chunk::<12>()) {
                (1, Some((head, _))) => {
                    let [a, b, c, d, e, f, g, h, i, j, k, l] = *head;
                    self.end_piece();
                    self.sum.join(u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
                    self.length += u64::from(u32::from_le_bytes([i, j, k, l]));
                    self.pieces.push(part.slice(13..));
                }
                _ => self.text(rest),
            }
            return true;
        }
        let part = kept.get(encoding, make);
        if part.is_empty() {
            return false;
        }
        self.text(before);
        if part.len() < SHORT {
            self.text(&part);
        } else {
            self.end_piece();
            self.length += part.len() as u64;
            self.pieces.push(part);
        }
        true
    }

    fn end_piece(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let text = self.gathered.split().freeze();
        if self.packed {
            self.sum.update(&text);
            self.pieces.push(if text.len() <= STORED { stored(&text) } else { deflate(&text).into() });
        } else {
            self.pieces.push(text);
        }
    }

    fn finish(mut self) -> Pieces {
        self.end_piece();
        if self.packed && self.length > 0 {
            let mut end = BytesMut::with_capacity(10);
            end.extend_from_slice(&LAST_BLOCK);
            end.put_u32_le(self.sum.0);
            // RFC 1952: the length modulo 2^32.
            end.put_u32_le(self.length as u32);
            self.pieces.insert(0, Bytes::from_static(&GZIP));
            self.pieces.push(end.freeze());
        }
        let bytes = self.pieces.iter().map(|piece| piece.len() as u64).sum();
        Pieces { pieces: self.pieces.into(), bytes }
    }
}

/// Returns a part in the form for compressed bodies: empty; `0` and the text, if short; else `1`, checksum, [`CheckSum::shift`], length, and DEFLATE
/// blocks.
fn packed_part(plain: &Bytes) -> Bytes {
    if plain.is_empty() {
        return Bytes::new();
    }
    let mut part = BytesMut::new();
    match u32::try_from(plain.len()) {
        Ok(length) if plain.len() >= SHORT => {
            let blocks = deflate(plain);
            part.reserve(13 + blocks.len());
            part.put_u8(1);
            part.put_u32_le(crc32fast::hash(plain));
            part.put_u32_le(CheckSum::shift(u64::from(length)));
            part.put_u32_le(length);
            part.extend_from_slice(&blocks);
        }
        _ => {
            part.put_u8(0);
            part.extend_from_slice(plain);
        }
    }
    part.freeze()
}

/// Returns an uncompressed DEFLATE block that is not the last one of a stream (RFC 1951, 3.2.4). It starts, like all of ours, at a byte boundary.
/// `bytes` has at most 65535 bytes.
fn stored(bytes: &[u8]) -> Bytes {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let mut block = BytesMut::with_capacity(5 + bytes.len());
    block.put_u8(0);
    block.put_u16_le(length);
    block.put_u16_le(!length);
    block.extend_from_slice(bytes);
    block.freeze()
}

/// Returns DEFLATE blocks that end at a byte boundary and are not the last ones of a stream.
fn deflate(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(bytes.len() / 8 + 64), Compression::fast());
    // Writing into memory does not fail.
    let _ = encoder.write_all(bytes).and_then(|()| encoder.flush());
    let mut blocks = std::mem::take(encoder.get_mut());
    blocks.shrink_to_fit();
    blocks
}

// === impl CheckSum ===

/// The CRC-32 of a text, to which other texts are appended by their checksums alone. A checksum is a polynomial over GF(2) modulo
/// [`CheckSum::POLYNOMIAL`]; its highest bit is the coefficient of x^0 (RFC 1952, 8). Appending n bytes multiplies the text's checksum by x^(8n) and
/// adds theirs. That factor costs some forty multiplications and is stored with the part; then appending costs one.
#[derive(Debug, Clone, Copy, Default)]
struct CheckSum(u32);

impl CheckSum {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    /// The polynomials x^0 and x^8.
    const ONE: u32 = 1 << 31;
    const BYTE: u32 = 1 << 23;

    /// Appends `text`.
    fn update(&mut self, text: &[u8]) {
        let mut hasher = crc32fast::Hasher::new_with_initial(self.0);
        hasher.update(text);
        self.0 = hasher.finalize();
    }

    /// Appends a text with the checksum `sum`; `shift` is the factor of its length.
    fn join(&mut self, sum: u32, shift: u32) {
        self.0 = CheckSum::product(shift, self.0) ^ sum;
    }

    /// Returns x^(8 times `length`).
    fn shift(mut length: u64) -> u32 {
        let (mut shift, mut power) = (CheckSum::ONE, CheckSum::BYTE);
        while length > 0 {
            if length & 1 == 1 {
                shift = CheckSum::product(shift, power);
            }
            power = CheckSum::product(power, power);
            length >>= 1;
        }
        shift
    }

    fn product(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        for bit in (0..32).rev() {
            product ^= if a >> bit & 1 == 1 { b } else { 0 };
            // Multiplies b by x.
            b = if b & 1 == 1 { b >> 1 ^ CheckSum::POLYNOMIAL } else { b >> 1 };
        }
        product
    }
}

// === impl Pieces ===

impl Pieces {
    /// Returns the piece at an index.
    pub(super) fn piece(&self, at: usize) -> Option<Bytes> {
        self.pieces.get(at).cloned()
    }

    /// Returns the number of bytes of all pieces.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// True if the body is empty.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read as _;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{InstanceId, Registration, ServiceKey};

    fn service(name: &str) -> ServiceSnapshot {
        let key = ServiceKey::parse(&format!("default/{name}")).unwrap();
        let id = InstanceId::parse(&format!("default/{name}")).unwrap();
        let instance = crate::Instance::registered(Registration::new(id, key.clone(), "h", 1), None);
        ServiceSnapshot::new(key, Revision(1), None, &[Arc::new(instance)])
    }

    fn text(body: &Pieces) -> Vec<u8> {
        let text: Vec<u8> = body.pieces.iter().flat_map(|piece| piece.iter().copied()).collect();
        assert_eq!(text.len() as u64, body.len());
        text
    }

    /// Returns the output of `make`, after a check that the compressed one is the same.
    fn both(make: impl Fn(&mut ListBuilder)) -> (Vec<u8>, Pieces) {
        let plain = text(&composed(false, &make));
        let packed = composed(true, &make);
        let mut unpacked = Vec::new();
        let packed_text = text(&packed);
        // A decoder of a single stream suffices. An empty body has no stream.
        if !packed_text.is_empty() {
            flate2::read::GzDecoder::new(&packed_text[..]).read_to_end(&mut unpacked).unwrap();
        }
        assert_eq!(unpacked.len(), plain.len());
        assert!(unpacked == plain, "the compressed body is another one");
        (plain, packed)
    }

    #[test]
    fn compressed_parts_are_one_stream() {
        let services: Vec<_> = (0..50).map(|n| service(&format!("s{n}"))).collect();
        // Short parts, long parts, and empty ones.
        let part = |snapshot: &ServiceSnapshot| {
            let number: usize = snapshot.key.name()[1..].parse().unwrap();
            Bytes::from(format!("{} ", snapshot.key).repeat((number % 5) * number * 30))
        };
        let (plain, packed) = both(|out| {
            out.text("[");
            let mut some = false;
            for service in &services {
                some |= out.part(if some { "," } else { "" }, service, Encoding::ConsulChecks, part);
            }
            out.text("]");
        });
        let parts: Vec<_> = services.iter().map(part).filter(|part| !part.is_empty()).collect();
        assert_eq!(plain, [&b"["[..], &parts.join(&b","[..]), b"]"].concat());
        assert!(packed.len() < plain.len() as u64 / 4);
        let (empty, nothing) = both(|_| {});
        assert!(empty.is_empty() && nothing.is_empty());
    }

    /// Texts between parts of any length: stored, compressed, and on both sides of the limit.
    #[test]
    fn text_between_compressed_parts_arrives_whatever_its_length() {
        let long = service("long");
        let part = |_: &ServiceSnapshot| Bytes::from("0123456789abcdef".repeat(1000));
        for length in [1, 2, STORED - 1, STORED, STORED + 1, GATHERED - 1, GATHERED, 70_000, 200_000] {
            let text: String = (0..length).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
            let (plain, _) = both(|out| {
                out.text(&text);
                out.part(&text, &long, Encoding::ConsulChecks, part);
                out.part(",", &long, Encoding::ConsulChecks, part);
                out.text(&text);
            });
            assert_eq!(plain.len(), 3 * length + 1 + 2 * 16_000, "{length}");
        }
    }

    #[test]
    fn check_sums_are_joined() {
        let text: Vec<u8> = (0..200_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
        for (first, second) in
            [(0, 0), (0, 1), (1, 0), (1, 1), (3, 70_000), (70_000, 3), (100_000, 100_000), (5, 65_536)]
        {
            let (a, b) = (&text[..first], &text[first..first + second]);
            let mut sum = CheckSum::default();
            sum.update(a);
            sum.join(crc32fast::hash(b), CheckSum::shift(second as u64));
            assert_eq!(sum.0, crc32fast::hash(&text[..first + second]), "{first} {second}");
        }
    }

    #[test]
    fn long_parts_are_shared_and_not_copied() {
        let long = service("long");
        let make = |_: &ServiceSnapshot| Bytes::from(vec![b'x'; 1 << 20]);
        let body = || {
            composed(false, |out| {
                out.part("", &long, Encoding::EurekaXml, make);
            })
        };
        let bodies = [body(), body(), body()];
        let at: Vec<_> = bodies.iter().map(|body| body.pieces[0].as_ptr()).collect();
        assert!(at.iter().all(|place| *place == at[0]), "one place in memory");
    }

    #[tokio::test]
    async fn a_body_is_made_once_a_stamp_however_many_ask() {
        let lists = Arc::new(ListCache::new());
        let (made, at) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(1)));
        let ask = |more: &str| {
            let (lists, made, at) = (Arc::clone(&lists), Arc::clone(&made), Arc::clone(&at));
            let key = Key { what: "t", namespace: "n".into(), more: more.into(), packed: false };
            let stamp = move || (Revision(at.load(Ordering::SeqCst) as u64), Revision(0));
            tokio::spawn(async move {
                let make = move |out: &mut ListBuilder| {
                    made.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(5));
                    out.text("x");
                };
                lists.get(key, stamp, make).await.unwrap()
            })
        };
        let many: Vec<_> = (0..20).map(|_| ask("")).collect();
        for one in many {
            assert_eq!(text(&one.await.unwrap()), b"x");
        }
        assert_eq!(made.load(Ordering::SeqCst), 1);
        at.fetch_add(1, Ordering::SeqCst);
        ask("").await.unwrap();
        assert_eq!(made.load(Ordering::SeqCst), 2, "another revision");
        // An aborted caller does not undo the work begun.
        at.fetch_add(1, Ordering::SeqCst);
        ask("").abort();
        ask("").await.unwrap();
        for n in 0..2 * REMEMBERED {
            ask(&n.to_string()).await.unwrap();
        }
        assert_eq!(lists.made.lock().unwrap().len(), REMEMBERED, "there is a bound");
    }
}
