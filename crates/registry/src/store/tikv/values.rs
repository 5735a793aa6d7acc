//! Format of the values: a byte for the format, and a protobuf message. An older program skips a field that it does not know; a field's number is
//! never reused.

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;

use super::super::kv::{KvColumns, KvRow};
use super::super::row::{Columns, ISOLATED, Interner};
use super::super::{Head, InstanceRow, ServiceRow};
use super::STORE;
use crate::error::StoreError;
use crate::model::Revision;

/// The only format so far. The byte also keeps a value from being empty, which TiKV cannot distinguish from absent.
const FORM: u8 = 1;

#[derive(Clone, PartialEq, Message)]
struct Counter {
    #[prost(uint64, tag = "1")]
    v: u64,
    #[prost(int64, tag = "2")]
    epoch: i64,
    #[prost(uint64, tag = "3")]
    gc_floor: u64,
}

/// A node's last batch.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Writer {
    #[prost(uint64, tag = "1")]
    pub(super) batch: u64,
    #[prost(uint64, tag = "2")]
    pub(super) rev: u64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "3")]
    pub(super) mtime: i64,
}

/// A node; its id is in the key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, tag = "1")]
    pub(super) address: String,
    #[prost(bool, tag = "2")]
    pub(super) judges: bool,
    #[prost(int64, tag = "3")]
    pub(super) beat: i64,
}

/// The rows that a batch wrote.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Feed {
    /// Time of the batch, in milliseconds since 1970.
    #[prost(int64, tag = "1")]
    pub(super) now: i64,
    #[prost(string, repeated, tag = "2")]
    pub(super) instances: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub(super) services: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct InstanceValue {
    #[prost(string, tag = "1")]
    service: String,
    #[prost(string, tag = "2")]
    host: String,
    #[prost(uint32, tag = "3")]
    port: u32,
    #[prost(string, tag = "4")]
    protocol: String,
    #[prost(string, tag = "5")]
    version: String,
    #[prost(uint32, tag = "6")]
    weight: u32,
    #[prost(uint32, tag = "7")]
    priority: u32,
    #[prost(uint32, tag = "8")]
    flags: u32,
    #[prost(uint32, tag = "9")]
    health: u32,
    #[prost(string, optional, tag = "10")]
    check: Option<String>,
    #[prost(string, tag = "11")]
    region: String,
    #[prost(string, tag = "12")]
    zone: String,
    #[prost(string, tag = "13")]
    campus: String,
    /// JSON.
    #[prost(string, tag = "14")]
    metadata: String,
    #[prost(bytes = "bytes", tag = "15")]
    digest: Bytes,
    #[prost(uint64, tag = "16")]
    rev: u64,
    #[prost(bool, tag = "17")]
    deleted: bool,
    #[prost(int64, tag = "18")]
    ctime: i64,
    #[prost(int64, tag = "19")]
    mtime: i64,
}

#[derive(Clone, PartialEq, Message)]
struct ServiceValue {
    /// JSON.
    #[prost(string, tag = "1")]
    metadata: String,
    #[prost(uint64, tag = "2")]
    rev: u64,
    #[prost(bool, tag = "3")]
    deleted: bool,
    #[prost(int64, tag = "4")]
    ctime: i64,
    #[prost(int64, tag = "5")]
    mtime: i64,
}

/// The keys and sessions that a batch wrote.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KvFeed {
    /// Time of the batch, in milliseconds since 1970.
    #[prost(int64, tag = "1")]
    pub(super) now: i64,
    #[prost(message, repeated, tag = "2")]
    pub(super) rows: Vec<KvName>,
}

/// The name of a key or session.
#[derive(Clone, PartialEq, Message)]
pub(super) struct KvName {
    #[prost(string, tag = "1")]
    pub(super) namespace: String,
    #[prost(int64, tag = "2")]
    pub(super) kind: i64,
    #[prost(string, tag = "3")]
    pub(super) name: String,
}

/// A key or a session; namespace, kind and name are in the key.
#[derive(Clone, PartialEq, Message)]
struct KvValue {
    #[prost(bytes = "bytes", tag = "1")]
    value: Bytes,
    #[prost(sfixed64, tag = "2")]
    flags: i64,
    #[prost(string, optional, tag = "3")]
    session: Option<String>,
    #[prost(int64, tag = "4")]
    lock_index: i64,
    #[prost(int64, tag = "5")]
    lock_delay: i64,
    #[prost(int64, tag = "6")]
    created: i64,
    #[prost(int64, tag = "7")]
    rev: i64,
    #[prost(bool, tag = "8")]
    deleted: bool,
    #[prost(int64, tag = "9")]
    mtime: i64,
}

impl Feed {
    pub(super) fn at(now: i64) -> Feed {
        Feed { now, ..Feed::default() }
    }
}

/// Encodes a message as a value.
pub(super) fn of(message: &impl Message) -> Bytes {
    let mut value = BytesMut::with_capacity(1 + message.encoded_len());
    value.put_u8(FORM);
    // The buffer grows as needed, so encoding cannot fail.
    let _ = message.encode(&mut value);
    value.freeze()
}

/// Decodes the message of a value; `None` if the value has another format or is broken.
pub(super) fn message<M: Message + Default>(value: &Bytes) -> Option<M> {
    let (form, rest) = value.split_first()?;
    (*form == FORM).then_some(())?;
    M::decode(value.slice_ref(rest)).ok()
}

pub(super) fn of_text(text: &str) -> Bytes {
    [&[FORM], text.as_bytes()].concat().into()
}

pub(super) fn text(value: &Bytes) -> Option<&str> {
    let (form, rest) = value.split_first()?;
    (*form == FORM).then(|| std::str::from_utf8(rest).ok())?
}

pub(super) fn of_number(number: i64) -> Bytes {
    of_text(&number.to_string())
}

pub(super) fn number(value: &Bytes) -> Option<i64> {
    text(value)?.parse().ok()
}

pub(super) fn of_head(head: Head) -> Bytes {
    of(&Counter { v: head.v.0, epoch: head.epoch, gc_floor: head.gc_floor.0 })
}

pub(super) fn head(value: &Bytes) -> Option<Head> {
    let Counter { v, epoch, gc_floor } = message(value)?;
    Some(Head { v: Revision(v), epoch, gc_floor: Revision(gc_floor) })
}

pub(super) fn of_instance(InstanceRow { instance: i, deleted }: &InstanceRow) -> Bytes {
    of(&InstanceValue {
        service: i.service.as_str().to_owned(),
        host: i.host.to_string(),
        port: i.port.into(),
        protocol: i.protocol.to_string(),
        version: i.version.to_string(),
        weight: i.weight.into(),
        priority: i.priority.into(),
        flags: if i.isolate { ISOLATED as u32 } else { 0 },
        health: u32::from(i.health.code()),
        check: i.check_text(),
        region: i.location.region.to_string(),
        zone: i.location.zone.to_string(),
        campus: i.location.campus.to_string(),
        metadata: i.metadata.to_json(),
        digest: Bytes::copy_from_slice(&i.digest.0),
        rev: i.revision.0,
        deleted: *deleted,
        ctime: i.ctime,
        mtime: i.mtime,
    })
}

pub(super) fn instance(id: &str, value: &Bytes, interner: &mut Interner) -> Result<InstanceRow, StoreError> {
    let wrong = || StoreError::corrupt(STORE, &format!("instance {id}"), "this is no instance");
    let i: InstanceValue = message(value).ok_or_else(wrong)?;
    Columns {
        id,
        service: &i.service,
        host: &i.host,
        port: i.port.into(),
        protocol: &i.protocol,
        version: &i.version,
        weight: i.weight.into(),
        priority: i.priority.into(),
        flags: i.flags.into(),
        health: i.health.into(),
        check_spec: i.check.as_deref(),
        region: &i.region,
        zone: &i.zone,
        campus: &i.campus,
        metadata: &i.metadata,
        digest: &i.digest,
        rev: i64::try_from(i.rev).map_err(|_| wrong())?,
        deleted: i.deleted,
        ctime: i.ctime,
        mtime: i.mtime,
    }
    .decode(STORE, interner)
}

pub(super) fn of_service(s: &ServiceRow) -> Bytes {
    of(&ServiceValue {
        metadata: s.metadata.to_json(),
        rev: s.revision.0,
        deleted: s.deleted,
        ctime: s.ctime,
        mtime: s.mtime,
    })
}

pub(super) fn service(id: &str, value: &Bytes) -> Result<ServiceRow, StoreError> {
    let wrong = || StoreError::corrupt(STORE, &format!("service {id}"), "this is no service");
    let s: ServiceValue = message(value).ok_or_else(wrong)?;
    let rev = i64::try_from(s.rev).map_err(|_| wrong())?;
    ServiceRow::decode(STORE, (id, &s.metadata, rev, s.deleted, s.ctime, s.mtime))
}

pub(super) fn of_kv_row(row: KvColumns) -> Bytes {
    let KvColumns { value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime, .. } = row;
    of(&KvValue { value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime })
}

pub(super) fn kv_row((namespace, kind, name): (&str, i64, &str), value: &Bytes) -> Result<KvRow, StoreError> {
    let wrong =
        || StoreError::corrupt(STORE, &format!("key {namespace}/{name}"), "this is neither a key nor a session");
    let KvValue { value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime } =
        message(value).ok_or_else(wrong)?;
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    KvColumns { namespace, kind, name, value, flags, session, lock_index, lock_delay, created, rev, deleted, mtime }
        .decode(STORE)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn what_is_not_ours_is_refused() {
        let head = Head { v: Revision(7), epoch: 5, gc_floor: Revision(3) };
        let right = of_head(head);
        assert_eq!(self::head(&right), Some(head));
        assert_eq!(of_head(Head::default()).len(), 1, "never empty");
        let mut other_form = right.to_vec();
        other_form[0] = 2;
        for wrong in
            [Bytes::new(), other_form.into(), Bytes::from_static(b"\x01\xff\xff"), right.slice(..right.len() - 1)]
        {
            assert_eq!(self::head(&wrong), None, "{wrong:?}");
        }
        assert_eq!(number(&of_number(VERSION_OF_ANOTHER)), Some(VERSION_OF_ANOTHER));
        assert!(instance("default/i", &Bytes::from_static(b"\x01"), &mut Interner::default()).is_err());
    }

    const VERSION_OF_ANOTHER: i64 = 999;
}
