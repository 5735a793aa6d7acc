//! Protocol between nodes: frames, without I/O.
//!
//! ```text
//!  asked ─▶ asking   magic 4, version 2, nonce 16
//!  asking ─▶ asked   magic 4, version 2, nonce 16, own id 8, proof 32
//!  asked ─▶ asking   own id 8, proof 32
//!  then, both ways   length of the body 4, body, tag 16
//! ```
//!
//! The node that is asked has accepted the connection, the asking one has opened it; figures are lengths in bytes. Both know the store's secret, and
//! prove it over both nonces; each frame carries a tag over its number in its direction, so that no frame can be changed, repeated or left out in
//! between. This does not encrypt; TLS below it does (`super::secure`), if enabled: then the keying material of that connection is part of every
//! proof and tag. Numbers are big-endian.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use crate::error::StoreError;
use crate::model::{InstanceId, Revision};
use crate::store::{Columns, InstanceRow, Interner, NodeId, Record, Secret, ServiceRow};

/// Maximum length of a frame's body: enough for a batch of 512 rows with 16 KiB of metadata each.
pub(crate) const LONGEST: usize = 16 << 20;
/// Maximum number of ids in one question.
pub(crate) const QUESTION_IDS: usize = 8192;

const MAGIC: &[u8; 4] = b"kprn";
const VERSION: u16 = 1;
const NONCE: usize = 16;
const PROOF: usize = 32;
const TAG: usize = 16;

/// Length of the greeting, sent by the node that is asked.
pub(crate) const GREETING: usize = 4 + 2 + NONCE;
/// Length of the introduction, which answers the greeting.
pub(crate) const INTRODUCTION: usize = GREETING + 8 + PROOF;
/// Length of the welcome, which answers the introduction.
pub(crate) const WELCOME: usize = 8 + PROOF;

/// Reason why a connection to a peer ends.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The peer does not speak this protocol.
    #[error("it does not speak the protocol of registry nodes")]
    Stranger,
    /// The peer speaks another version of the protocol.
    #[error("it speaks version {found} of the protocol, this node version {known}: the store alone has to do")]
    Version {
        /// The peer's version.
        found: u16,
        /// The version of this node.
        known: u16,
    },
    /// The peer does not know the store's secret, or the messages are changed in between.
    #[error("it did not prove that it belongs to the same store")]
    Proof,
    /// The address belongs to another node now.
    #[error("another node answers there")]
    Another,
    /// A length beyond its limit.
    #[error("{what}: {found} is more than the limit of {limit}")]
    TooLong {
        /// The value.
        what: &'static str,
        /// Size found.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A body that does not match its length.
    #[error("a message is cut off, or not in the protocol")]
    Malformed,
    /// A row that no registry can have written.
    #[error("{0}")]
    Row(Box<str>),
}

/// A message after the handshake.
#[derive(Debug)]
pub enum Message {
    /// A request for the time since the receiver itself last heard of each instance or session.
    Question {
        /// Number of the question, for its answer.
        number: u64,
        /// The instances or sessions.
        ids: Vec<InstanceId>,
    },
    /// Milliseconds since each was heard; `None`: never.
    Answer {
        /// Number of the question.
        number: u64,
        /// Silences, in the order of the question.
        silence: Vec<Option<Silence>>,
    },
    /// A commit.
    Committed {
        /// The store's history.
        epoch: i64,
        /// The revision of the batch.
        revision: Revision,
        /// Rows of the batch, complete.
        records: Vec<Record>,
    },
    /// The sender's latest revision; also a sign of life.
    News {
        /// The store's history.
        epoch: i64,
        /// The sender's latest revision.
        revision: Revision,
    },
}

/// A key for proofs and tags.
#[derive(Clone)]
struct Key(Hmac<Sha256>);

impl Key {
    fn new(key: &[u8]) -> Option<Key> {
        Hmac::new_from_slice(key).ok().map(Key)
    }

    fn over(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

/// A handshake under way, on either side.
pub(crate) struct Handshake {
    key: Key,
    own: NodeId,
    nonce: [u8; NONCE],
}

/// Frames of one direction: their key and their number.
pub(crate) struct Direction {
    key: Key,
    frames: u64,
}

/// Both directions of an authenticated connection.
pub(crate) struct Channel {
    pub(crate) send: Direction,
    pub(crate) receive: Direction,
}

impl Handshake {
    /// Begins a handshake with the store's `secret`. `nonce`: random, used once. `binding`: keying material of the TLS connection, which makes the
    /// key valid for this connection alone.
    pub(crate) fn new(
        secret: &Secret,
        own: NodeId,
        nonce: [u8; NONCE],
        binding: Option<&[u8; 32]>,
    ) -> Result<Handshake, PeerError> {
        let key = Key::new(&secret.0).ok_or(PeerError::Proof)?;
        let key = match binding {
            None => key,
            Some(binding) => Key::new(&key.over(&[b"tls", binding]).finalize().into_bytes()).ok_or(PeerError::Proof)?,
        };
        Ok(Handshake { key, own, nonce })
    }

    fn greeting_into(&self, out: &mut BytesMut) {
        out.put_slice(MAGIC);
        out.put_u16(VERSION);
        out.put_slice(&self.nonce);
    }

    /// Returns the first message, sent by the node that is asked.
    pub(crate) fn greeting(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(GREETING);
        self.greeting_into(&mut out);
        out.freeze()
    }

    fn theirs(bytes: &mut &[u8]) -> Result<[u8; NONCE], PeerError> {
        let mut nonce = [0; NONCE];
        if bytes.len() < GREETING || !bytes.starts_with(MAGIC) {
            return Err(PeerError::Stranger);
        }
        bytes.advance(MAGIC.len());
        let found = bytes.get_u16();
        if found != VERSION {
            return Err(PeerError::Version { found, known: VERSION });
        }
        bytes.copy_to_slice(&mut nonce);
        Ok(nonce)
    }

    /// Returns the asking node's answer to a greeting, and the state to read the welcome.
    pub(crate) fn introduction(self, mut greeting: &[u8]) -> Result<(Bytes, Introduced), PeerError> {
        let theirs = Self::theirs(&mut greeting)?;
        let mut out = BytesMut::with_capacity(INTRODUCTION);
        self.greeting_into(&mut out);
        out.put_i64(self.own.0);
        let own = self.own.0.to_be_bytes();
        out.put_slice(&self.key.over(&[b"asking", &theirs, &self.nonce, &own]).finalize().into_bytes());
        Ok((out.freeze(), Introduced { key: self.key, asked: theirs, asking: self.nonce }))
    }

    /// Returns the welcome of the node that is asked, the id of the asking node, and the channel.
    pub(crate) fn welcome(self, mut introduction: &[u8]) -> Result<(Bytes, NodeId, Channel), PeerError> {
        let asking = Self::theirs(&mut introduction)?;
        if introduction.len() < 8 + PROOF {
            return Err(PeerError::Stranger);
        }
        let id = introduction.get_i64();
        let proof = self.key.over(&[b"asking", &self.nonce, &asking, &id.to_be_bytes()]);
        proof.verify_slice(&introduction[..PROOF]).map_err(|_| PeerError::Proof)?;
        let own = self.own.0.to_be_bytes();
        let mut out = BytesMut::with_capacity(WELCOME);
        out.put_i64(self.own.0);
        out.put_slice(&self.key.over(&[b"asked", &self.nonce, &asking, &own]).finalize().into_bytes());
        Ok((out.freeze(), NodeId(id), channel(&self.key, &self.nonce, &asking, false)?))
    }
}

/// A handshake that waits for the welcome.
pub(crate) struct Introduced {
    key: Key,
    asked: [u8; NONCE],
    asking: [u8; NONCE],
}

impl Introduced {
    /// Returns the channel, if the welcome comes from `expected`.
    pub(crate) fn welcomed(self, mut welcome: &[u8], expected: NodeId) -> Result<Channel, PeerError> {
        if welcome.len() < WELCOME {
            return Err(PeerError::Stranger);
        }
        let id = welcome.get_i64();
        let proof = self.key.over(&[b"asked", &self.asked, &self.asking, &id.to_be_bytes()]);
        proof.verify_slice(&welcome[..PROOF]).map_err(|_| PeerError::Proof)?;
        if id != expected.0 {
            return Err(PeerError::Another);
        }
        channel(&self.key, &self.asked, &self.asking, true)
    }
}

fn channel(key: &Key, asked: &[u8], asking: &[u8], is_asking: bool) -> Result<Channel, PeerError> {
    let direction = |name: &[u8]| {
        let key = key.over(&[name, asked, asking]).finalize().into_bytes();
        Ok(Direction { key: Key::new(&key).ok_or(PeerError::Proof)?, frames: 0 })
    };
    let (there, back) = (direction(b"to asked")?, direction(b"to asking")?);
    Ok(if is_asking { Channel { send: there, receive: back } } else { Channel { send: back, receive: there } })
}

impl Direction {
    fn tag(&mut self, body: &[u8]) -> Hmac<Sha256> {
        self.frames += 1;
        self.key.over(&[&self.frames.to_be_bytes(), body])
    }

    /// Returns the bytes before and after `body` on the wire.
    pub(crate) fn seal(&mut self, body: &[u8]) -> ([u8; 4], [u8; TAG]) {
        let mut tag = [0; TAG];
        tag.copy_from_slice(&self.tag(body).finalize().into_bytes()[..TAG]);
        (u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes(), tag)
    }

    /// Returns the number of bytes after a frame's length: body and tag.
    pub(crate) fn announced(length: [u8; 4]) -> Result<usize, PeerError> {
        let found = u32::from_be_bytes(length) as usize;
        if found > LONGEST {
            return Err(PeerError::TooLong { what: "a message, in bytes", found, limit: LONGEST });
        }
        Ok(found + TAG)
    }

    /// Verifies the tag and returns the body.
    pub(crate) fn open(&mut self, mut frame: Bytes) -> Result<Bytes, PeerError> {
        let length = frame.len().checked_sub(TAG).ok_or(PeerError::Malformed)?;
        let tag = frame.split_off(length);
        self.tag(&frame).verify_truncated_left(&tag).map_err(|_| PeerError::Proof)?;
        Ok(frame)
    }
}

// === Bodies ===

/// The silence of an instance or a session that a node reports: a duration, and whether the node knows the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence(u32);

/// Flag for an instance that was heard before the node knew it. Nodes of older versions read a silence of weeks.
const NOT_KNOWN: u32 = 1 << 31;

impl Silence {
    /// Makes a silence; `milliseconds` beyond 24 days count as 24 days.
    pub(crate) fn new(milliseconds: u64, known: bool) -> Silence {
        let milliseconds = u32::try_from(milliseconds).unwrap_or(u32::MAX).min(NOT_KNOWN - 2);
        Silence(if known { milliseconds } else { milliseconds | NOT_KNOWN })
    }

    pub(crate) fn milliseconds(self) -> u64 {
        u64::from(self.0 & !NOT_KNOWN)
    }

    pub(crate) fn is_known(self) -> bool {
        self.0 & NOT_KNOWN == 0
    }
}

const QUESTION: u8 = b'Q';
const ANSWER: u8 = b'A';
const COMMITTED: u8 = b'C';
const NEWS: u8 = b'N';
const NEVER: u32 = u32::MAX;

fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.put_slice(bytes);
}

/// Encodes a question about at most `QUESTION_IDS` ids.
pub(crate) fn question(number: u64, ids: &[InstanceId]) -> Bytes {
    let mut out = BytesMut::with_capacity(16 + ids.len() * 40);
    out.put_u8(QUESTION);
    out.put_u64(number);
    out.put_u32(u32::try_from(ids.len()).unwrap_or(u32::MAX));
    ids.iter().for_each(|id| put_bytes(&mut out, id.as_str().as_bytes()));
    out.freeze()
}

/// Encodes an answer.
pub(crate) fn answer(number: u64, silence: &[Option<Silence>]) -> Bytes {
    let mut out = BytesMut::with_capacity(16 + silence.len() * 4);
    out.put_u8(ANSWER);
    out.put_u64(number);
    out.put_u32(u32::try_from(silence.len()).unwrap_or(u32::MAX));
    silence.iter().for_each(|silence| out.put_u32(silence.map_or(NEVER, |silence| silence.0)));
    out.freeze()
}

/// Encodes the sender's latest revision.
pub(crate) fn news(epoch: i64, revision: Revision) -> Bytes {
    let mut out = BytesMut::with_capacity(17);
    out.put_u8(NEWS);
    out.put_i64(epoch);
    out.put_u64(revision.0);
    out.freeze()
}

/// Encodes a commit with its rows; without the rows if they would be too long.
pub fn committed(epoch: i64, revision: Revision, records: &[Record]) -> Bytes {
    let mut out = BytesMut::with_capacity(64 + records.len() * 400);
    out.put_u8(COMMITTED);
    out.put_i64(epoch);
    out.put_u64(revision.0);
    out.put_u32(u32::try_from(records.len()).unwrap_or(u32::MAX));
    for record in records {
        match record {
            Record::Instance(row) => put_instance(&mut out, row),
            Record::Service(row) => put_service(&mut out, row),
        }
        if out.len() > LONGEST {
            return news(epoch, revision);
        }
    }
    out.freeze()
}

fn put_instance(out: &mut BytesMut, InstanceRow { instance: i, deleted }: &InstanceRow) {
    out.put_u8(b'i');
    let (metadata, check) = (i.metadata.to_json(), i.check_text());
    for text in [i.id.as_str(), i.service.as_str(), &i.host, &i.protocol, &i.version] {
        put_bytes(out, text.as_bytes());
    }
    for text in [&*i.location.region, &*i.location.zone, &*i.location.campus, &metadata, check.as_deref().unwrap_or("")]
    {
        put_bytes(out, text.as_bytes());
    }
    put_bytes(out, &i.digest.0);
    out.put_u16(i.port);
    out.put_u16(i.weight);
    out.put_u16(i.priority);
    out.put_u8(u8::from(i.isolate));
    out.put_u8(i.health.code());
    out.put_u8(u8::from(*deleted));
    out.put_u64(i.revision.0);
    out.put_i64(i.ctime);
    out.put_i64(i.mtime);
}

fn put_service(out: &mut BytesMut, row: &ServiceRow) {
    out.put_u8(b's');
    put_bytes(out, row.key.as_str().as_bytes());
    put_bytes(out, row.metadata.to_json().as_bytes());
    out.put_u8(u8::from(row.deleted));
    out.put_u64(row.revision.0);
    out.put_i64(row.ctime);
    out.put_i64(row.mtime);
}

/// A reader of values from the front; a missing one is `Malformed`.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], PeerError> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(PeerError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PeerError> {
        self.take(N)?.try_into().map_err(|_| PeerError::Malformed)
    }

    fn byte(&mut self) -> Result<u8, PeerError> {
        Ok(self.array::<1>()?[0])
    }

    fn u16(&mut self) -> Result<u16, PeerError> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Result<u32, PeerError> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Result<u64, PeerError> {
        self.array().map(u64::from_be_bytes)
    }

    fn i64(&mut self) -> Result<i64, PeerError> {
        self.array().map(i64::from_be_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], PeerError> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, PeerError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| PeerError::Malformed)
    }

    /// Reads a count of items of at least `each` bytes: so nothing is allocated for items that cannot be there.
    fn count(&mut self, each: usize) -> Result<usize, PeerError> {
        let count = self.u32()? as usize;
        if count > self.0.len() / each {
            return Err(PeerError::Malformed);
        }
        Ok(count)
    }
}

impl Message {
    /// Decodes a body.
    ///
    /// # Errors
    /// The body is cut off, continues after its end, or has invalid content.
    pub fn read(body: &[u8], interner: &mut Interner) -> Result<Message, PeerError> {
        let mut reader = Reader(body);
        let message = match reader.byte()? {
            QUESTION => {
                let number = reader.u64()?;
                let count = reader.count(4)?;
                if count > QUESTION_IDS {
                    let limit = QUESTION_IDS;
                    return Err(PeerError::TooLong { what: "ids of a question", found: count, limit });
                }
                let mut ids = Vec::with_capacity(count);
                for _ in 0..count {
                    ids.push(InstanceId::parse(reader.text()?).map_err(|e| PeerError::Row(e.to_string().into()))?);
                }
                Message::Question { number, ids }
            }
            ANSWER => {
                let number = reader.u64()?;
                let count = reader.count(4)?;
                let mut silence = Vec::with_capacity(count);
                for _ in 0..count {
                    silence.push(Some(reader.u32()?).filter(|silence| *silence != NEVER).map(Silence));
                }
                Message::Answer { number, silence }
            }
            COMMITTED => {
                let (epoch, revision) = (reader.i64()?, Revision(reader.u64()?));
                let count = reader.count(32)?;
                let mut records = Vec::with_capacity(count);
                for _ in 0..count {
                    records.push(read_record(&mut reader, revision, interner)?);
                }
                Message::Committed { epoch, revision, records }
            }
            NEWS => Message::News { epoch: reader.i64()?, revision: Revision(reader.u64()?) },
            _ => return Err(PeerError::Malformed),
        };
        if reader.0.is_empty() { Ok(message) } else { Err(PeerError::Malformed) }
    }
}

fn read_record(reader: &mut Reader<'_>, of: Revision, interner: &mut Interner) -> Result<Record, PeerError> {
    let wrong = |error: StoreError| PeerError::Row(error.to_string().into());
    let record = match reader.byte()? {
        b'i' => {
            let (id, service, host, protocol, version) =
                (reader.text()?, reader.text()?, reader.text()?, reader.text()?, reader.text()?);
            let (region, zone, campus) = (reader.text()?, reader.text()?, reader.text()?);
            let (metadata, check) = (reader.text()?, reader.text()?);
            let digest = reader.bytes()?;
            let (port, weight, priority) = (reader.u16()?, reader.u16()?, reader.u16()?);
            let (isolate, health, deleted) = (reader.byte()?, reader.byte()?, reader.byte()?);
            let (rev, ctime, mtime) = (reader.i64()?, reader.i64()?, reader.i64()?);
            let columns = Columns {
                id,
                service,
                host,
                port: port.into(),
                protocol,
                version,
                weight: weight.into(),
                priority: priority.into(),
                flags: isolate.into(),
                health: health.into(),
                check_spec: (!check.is_empty()).then_some(check),
                region,
                zone,
                campus,
                metadata,
                digest,
                rev,
                deleted: deleted != 0,
                ctime,
                mtime,
            };
            let row = columns.decode("peer", interner).map_err(wrong)?;
            // A digest that does not match the content would be trusted for ever.
            if row.instance.content_digest() != row.instance.digest || row.instance.revision != of {
                return Err(PeerError::Malformed);
            }
            Record::Instance(row)
        }
        b's' => {
            let (key, metadata, deleted) = (reader.text()?, reader.text()?, reader.byte()? != 0);
            let columns = (key, metadata, reader.i64()?, deleted, reader.i64()?, reader.i64()?);
            Record::Service(ServiceRow::decode("peer", columns).map_err(wrong)?)
        }
        _ => return Err(PeerError::Malformed),
    };
    Ok(record)
}

#[cfg(test)]
#[path = "wire_tests.rs"]
mod tests;
