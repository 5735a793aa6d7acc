//! Slots of downstreams, and the greeting for downstreams: in memory, and in a small file beside the log.
//!
//! Positions of slots, and the transactions that their users need, are written at intervals: old values only keep more than needed. Data that must
//! not be lost is elsewhere (`promise`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use watermark::Lsn;
use wire::Sqlstate;
use wire::replication::{is_slot_name, position, read_position};

use crate::error::StartError;
use crate::promise::{Choice, Promise};

mod feedback;

pub(crate) use feedback::Feedback;

const FILE: &str = "kingpost-relay.json";
/// Format number of the file.
const FORMAT: u32 = 1;
/// Format number of an earlier version's file with a fence.
const FENCED_FORMAT: u32 = 2;
/// Limit of the number of slots.
pub(crate) const MOST_SLOTS: usize = 1000;
/// Limit of the servers at which the relay has, or has left, a slot. The one followed first is forgotten.
const MOST_UPSTREAMS: usize = 32;
/// Size limit of the file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Parameters of the upstream that downstreams get in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// `server_version`.
    pub(crate) server_version: String,
    /// `data_directory_mode`.
    pub(crate) data_directory_mode: String,
}

/// A fence in an earlier version's file.
#[derive(Debug, Deserialize)]
struct EarlierFence {
    timeline: u32,
    chosen: Option<(u64, String)>,
}

/// An upstream named by an operator, in an earlier version's file.
#[derive(Debug, Deserialize)]
struct EarlierFollow {
    configured: String,
    address: String,
}

/// Slots and greeting, in memory and on disk.
#[derive(Debug)]
pub(crate) struct Slots {
    path: PathBuf,
    inner: Mutex<Inner>,
    /// Held while the file is written, and taken before `inner`. Readers do not wait for the disk.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    greeting: Option<Greeting>,
    slots: BTreeMap<String, Slot>,
    /// Servers at which the relay itself has a slot: address and slot, the newest last.
    upstreams: Vec<(String, String)>,
    /// True if a change is not on disk yet.
    dirty: bool,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// The oldest position that its user needs, and its timeline; None before the first use.
    restart: Option<(Lsn, u32)>,
    /// The oldest transactions that its user needs, by the user's last report; kept while the user is disconnected.
    feedback: Feedback,
    temporary: bool,
    /// ID of the connection that uses it.
    user: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct OnDisk {
    format: u32,
    greeting: Option<Greeting>,
    /// By slot name: `X/X` and timeline.
    slots: BTreeMap<String, Option<(String, u32)>>,
    /// By slot name, for slots with feedback. Earlier versions do not write it, and ignore it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    feedback: BTreeMap<String, Feedback>,
    /// Servers at which the relay itself has a slot: address and slot.
    #[serde(default)]
    upstreams: Vec<(String, String)>,
    #[serde(default, skip_serializing)]
    fence: Option<EarlierFence>,
    #[serde(default, skip_serializing)]
    follow: Option<EarlierFollow>,
}

/// Refusal of a slot command, with PostgreSQL's message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotError {
    pub(crate) code: Sqlstate,
    pub(crate) text: String,
    /// Empty for no hint.
    pub(crate) hint: &'static str,
}

fn refused<T>(code: Sqlstate, text: String) -> Result<T, SlotError> {
    Err(SlotError { code, text, hint: "" })
}

/// Checks that the name is a valid slot name.
fn valid(name: &str) -> Result<(), SlotError> {
    if is_slot_name(name) {
        return Ok(());
    }
    let text = |what| format!("replication slot name \"{name}\" {what}");
    let code = Sqlstate(*b"42602");
    if name.is_empty() {
        return refused(code, text("is too short"));
    }
    let hint = "Replication slot names may only contain lower case letters, numbers, and the underscore character.";
    Err(SlotError { code, text: text("contains invalid character"), hint })
}

/// A slot, as shown to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotView {
    pub(crate) name: String,
    pub(crate) restart: Option<Lsn>,
    pub(crate) feedback: Feedback,
    pub(crate) active: bool,
}

/// Reads the file of a directory, if it exists.
fn read(path: &Path) -> Result<Option<OnDisk>, StartError> {
    let fail = |source| StartError::File { tried: "read", path: path.into(), source };
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(fail(std::io::Error::other(format!("longer than {MAX_FILE} bytes"))));
        }
        Ok(_) => {}
    }
    let text = fs::read(path).map_err(fail)?;
    let disk: OnDisk = serde_json::from_slice(&text).map_err(|error| fail(error.into()))?;
    if ![FORMAT, FENCED_FORMAT].contains(&disk.format) {
        let text = format!("format {}, expected {FORMAT} or {FENCED_FORMAT}", disk.format);
        return Err(fail(std::io::Error::other(text)));
    }
    Ok(Some(disk))
}

/// Reads the promises of an earlier version from its two files: the term beside the log, the rest in this one. None if there are none, or they were
/// taken over already.
///
/// # Errors
/// A file cannot be read, or is damaged.
pub(crate) fn earlier_promise(dir: &Path) -> Result<Option<Promise>, StartError> {
    let failed = |source| StartError::Log { dir: dir.into(), source };
    let Some(term) = crate::log::earlier_term(dir).map_err(failed)? else { return Ok(None) };
    let disk = read(&dir.join(FILE))?;
    let (fence, follow) = disk.map_or((None, None), |disk| (disk.fence, disk.follow));
    let choice = |(term, node)| Choice { term, node };
    let fence = fence.map(|fence| (fence.timeline, fence.chosen.map(choice)));
    Ok(Some(Promise::earlier(term, fence, follow.map(|follow| (follow.configured, follow.address)))))
}

impl Slots {
    /// Reads the file of a directory, if it exists.
    pub(crate) fn open(dir: &Path) -> Result<Slots, StartError> {
        let path = dir.join(FILE);
        let inner = read(&path)?.map_or_else(Inner::default, |disk| {
            let slots = disk.slots.into_iter().map(|(name, restart)| {
                let restart = restart.and_then(|(at, timeline)| Some((Lsn(read_position(&at)?), timeline)));
                let feedback = disk.feedback.get(&name).copied().unwrap_or_default();
                (name, Slot { restart, feedback, ..Slot::default() })
            });
            let upstreams = disk.upstreams.into_iter().take(MOST_UPSTREAMS).collect();
            Inner { greeting: disk.greeting, slots: slots.take(MOST_SLOTS).collect(), upstreams, dirty: false }
        });
        Ok(Slots { path, inner: Mutex::new(inner), writing: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn greeting(&self) -> Option<Greeting> {
        self.lock().greeting.clone()
    }

    /// Stores the upstream's parameters.
    pub(crate) fn greet(&self, greeting: Greeting) -> Result<(), StartError> {
        {
            let mut inner = self.lock();
            if inner.greeting.as_ref() == Some(&greeting) {
                return Ok(());
            }
            inner.greeting = Some(greeting);
        }
        self.write()
    }

    /// Records that the relay itself has this slot at that server.
    ///
    /// # Errors
    /// The record is not saved; saving is retried with the next change.
    pub(crate) fn has_slot_at(&self, address: &str, slot: &str) -> Result<(), StartError> {
        {
            let mut inner = self.lock();
            if inner.upstreams.iter().any(|known| known.0 == address && known.1 == slot) {
                return Ok(());
            }
            if inner.upstreams.len() >= MOST_UPSTREAMS {
                inner.upstreams.remove(0);
            }
            inner.upstreams.push((address.into(), slot.into()));
        }
        self.write()
    }

    /// Returns the slots that the relay has at servers other than the current one, or under another name.
    pub(crate) fn left(&self, address: &str, slot: &str) -> Vec<(String, String)> {
        let mut left = self.lock().upstreams.clone();
        left.retain(|known| known.0 != address || known.1 != slot);
        left
    }

    /// Removes the record of that slot at that server.
    ///
    /// # Errors
    /// The errors of [`Slots::has_slot_at`].
    pub(crate) fn gone(&self, address: &str, slot: &str) -> Result<(), StartError> {
        self.lock().upstreams.retain(|known| known.0 != address || known.1 != slot);
        self.write()
    }

    /// Creates a slot. `restart` is its start, if WAL must be kept from now on. A temporary one belongs to connection `user`.
    pub(crate) fn create(
        &self,
        name: &str,
        temporary: bool,
        restart: Option<(Lsn, u32)>,
        user: u32,
    ) -> Result<(), SlotError> {
        valid(name)?;
        let mut inner = self.lock();
        if inner.slots.contains_key(name) {
            return refused(Sqlstate::DUPLICATE_OBJECT, format!("replication slot \"{name}\" already exists"));
        }
        if inner.slots.len() >= MOST_SLOTS {
            return refused(Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, "all replication slots are in use".into());
        }
        inner
            .slots
            .insert(name.into(), Slot { restart, temporary, user: temporary.then_some(user), ..Slot::default() });
        drop(inner);
        if temporary {
            return Ok(());
        }
        self.write().or_else(|error| {
            self.lock().slots.remove(name);
            refused(Sqlstate(*b"58030"), error.to_string())
        })
    }

    /// Drops a slot that no other connection uses.
    pub(crate) fn drop_slot(&self, name: &str, user: u32) -> Result<(), SlotError> {
        let mut inner = self.lock();
        self.usable(&inner, name, user)?;
        inner.slots.remove(name);
        drop(inner);
        self.write().or_else(|error| refused(Sqlstate(*b"58030"), error.to_string()))
    }

    fn usable(&self, inner: &Inner, name: &str, user: u32) -> Result<(), SlotError> {
        match inner.slots.get(name) {
            None => refused(Sqlstate::UNDEFINED_OBJECT, format!("replication slot \"{name}\" does not exist")),
            Some(Slot { user: Some(other), .. }) if *other != user => {
                refused(Sqlstate::OBJECT_IN_USE, format!("replication slot \"{name}\" is active for PID {other}"))
            }
            Some(_) => Ok(()),
        }
    }

    pub(crate) fn is_used_by_another(&self, name: &str, user: u32) -> bool {
        self.lock().slots.get(name).is_some_and(|slot| slot.user.is_some_and(|other| other != user))
    }

    /// Acquires a slot for a connection.
    pub(crate) fn acquire(&self, name: &str, user: u32) -> Result<(), SlotError> {
        let mut inner = self.lock();
        self.usable(&inner, name, user)?;
        if let Some(slot) = inner.slots.get_mut(name) {
            slot.user = Some(user);
        }
        Ok(())
    }

    /// Releases the slots of a connection; drops its temporary slots if the connection has ended.
    pub(crate) fn release(&self, user: u32, ended: bool) {
        let mut inner = self.lock();
        inner.slots.retain(|_, slot| !(ended && slot.temporary && slot.user == Some(user)));
        for slot in inner.slots.values_mut().filter(|slot| slot.user == Some(user) && !slot.temporary) {
            slot.user = None;
        }
    }

    /// Records that the user of a slot needs nothing before `at` any more.
    pub(crate) fn advance(&self, name: &str, at: Lsn, timeline: u32) {
        let mut inner = self.lock();
        let mut moved = false;
        if let Some(slot) = inner.slots.get_mut(name) {
            moved = slot.restart != Some((at, timeline)) && at > Lsn(0);
            if moved {
                slot.restart = Some((at, timeline));
            }
        }
        inner.dirty |= moved;
    }

    /// Records the oldest transactions that the user of a slot needs. True if it needed none before: then a [`Slots::save`] at once is worthwhile.
    pub(crate) fn feed_back(&self, name: &str, feedback: Feedback) -> bool {
        let mut inner = self.lock();
        let Some(slot) = inner.slots.get_mut(name) else { return false };
        let before = std::mem::replace(&mut slot.feedback, feedback);
        inner.dirty |= before != feedback;
        before == Feedback::default() && before != feedback
    }

    /// Returns the oldest transactions that any slot needs. A slot whose WAL is gone, because `oldest` is the oldest held position, needs none while
    /// its user is disconnected: the user cannot continue from it.
    pub(crate) fn feedback(&self, oldest: impl FnOnce() -> Lsn) -> Feedback {
        let inner = self.lock();
        let needing = || inner.slots.values().filter(|slot| slot.feedback != Feedback::default());
        if needing().next().is_none() {
            return Feedback::default();
        }
        let oldest = oldest();
        let usable = |slot: &&Slot| slot.user.is_some() || slot.restart.is_none_or(|(at, _)| at >= oldest);
        needing().filter(usable).map(|slot| slot.feedback).fold(Feedback::default(), Feedback::and)
    }

    /// Returns the start of a slot. None: no such slot. Some(None): never used.
    pub(crate) fn restart(&self, name: &str) -> Option<Option<(Lsn, u32)>> {
        self.lock().slots.get(name).map(|slot| slot.restart)
    }

    /// Returns the oldest position that any slot needs.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        self.lock().slots.values().filter_map(|slot| slot.restart).map(|(at, _)| at).min()
    }

    pub(crate) fn slots(&self) -> Vec<SlotView> {
        let view = |(name, slot): (&String, &Slot)| SlotView {
            name: name.clone(),
            restart: slot.restart.map(|(at, _)| at),
            feedback: slot.feedback,
            active: slot.user.is_some(),
        };
        self.lock().slots.iter().map(view).collect()
    }

    /// Writes changed positions.
    pub(crate) fn save(&self) -> Result<(), StartError> {
        let dirty = self.lock().dirty;
        if dirty { self.write() } else { Ok(()) }
    }

    /// Writes the current state; durable on return. Blocks as long as the disk takes.
    fn write(&self) -> Result<(), StartError> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = {
            let mut inner = self.lock();
            inner.dirty = false;
            inner.render()
        };
        let new = self.path.with_extension("new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(&text)?;
            file.sync_all()?;
            fs::rename(&new, &self.path)?;
            match self.path.parent() {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|source| {
            self.lock().dirty = true;
            StartError::File { tried: "write", path: self.path.clone(), source }
        })
    }
}

impl Inner {
    /// Returns the contents of the file.
    fn render(&self) -> Vec<u8> {
        let kept = || self.slots.iter().filter(|(_, slot)| !slot.temporary);
        let feedback = kept().filter(|(_, slot)| slot.feedback != Feedback::default());
        let slots = kept().map(|(name, slot)| (name.clone(), slot.restart.map(|(at, tli)| (position(at.0), tli))));
        let disk = OnDisk {
            format: FORMAT,
            greeting: self.greeting.clone(),
            slots: slots.collect(),
            feedback: feedback.map(|(name, slot)| (name.clone(), slot.feedback)).collect(),
            upstreams: self.upstreams.clone(),
            fence: None,
            follow: None,
        };
        serde_json::to_vec_pretty(&disk).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn slots_survive_and_temporary_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = Slots::open(dir.path()).unwrap();
        let greeting = Greeting { server_version: "15.8".into(), data_directory_mode: "0700".into() };
        state.greet(greeting.clone()).unwrap();
        state.create("a", false, None, 1).unwrap();
        state.create("b", false, Some((Lsn(0x300_0000), 2)), 1).unwrap();
        state.create("t", true, Some((Lsn(0x100_0000), 2)), 1).unwrap();
        assert_eq!(state.oldest(), Some(Lsn(0x100_0000)));
        state.release(1, true);
        assert_eq!(state.oldest(), Some(Lsn(0x300_0000)));
        state.advance("a", Lsn(0x500_0000), 3);
        state.save().unwrap();
        let again = Slots::open(dir.path()).unwrap();
        assert_eq!(again.greeting(), Some(greeting));
        assert_eq!(again.restart("a"), Some(Some((Lsn(0x500_0000), 3))));
        assert_eq!(again.restart("b"), Some(Some((Lsn(0x300_0000), 2))));
        assert_eq!(again.restart("t"), None);
        again.drop_slot("b", 9).unwrap();
        assert_eq!(Slots::open(dir.path()).unwrap().slots().len(), 1);
    }

    #[test]
    fn what_a_user_that_is_away_needs_is_kept() {
        let feedback = |xmin, catalog_xmin| Feedback { xmin: (xmin, 0), catalog_xmin: (catalog_xmin, 0) };
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path()).unwrap();
        for (name, temporary) in [("a", false), ("b", false), ("t", true)] {
            slots.create(name, temporary, Some((Lsn(0x300_0000), 1)), 1).unwrap();
            slots.acquire(name, 1).unwrap();
        }
        let oldest = || Lsn(0x100_0000);
        assert_eq!(slots.feedback(|| panic!("nobody needs anything")), Feedback::default());
        slots.feed_back("a", feedback(0, 7));
        slots.feed_back("b", feedback(9, 8));
        slots.feed_back("t", feedback(5, 0));
        assert_eq!(slots.feedback(oldest), feedback(5, 7));
        slots.release(1, true);
        assert_eq!(slots.feedback(oldest), feedback(9, 7), "a temporary slot ends with its connection");
        slots.save().unwrap();
        let again = Slots::open(dir.path()).unwrap();
        assert_eq!(again.feedback(oldest), feedback(9, 7));
        // Its WAL is gone, because no more than `max_bytes` is kept: only a user that still streams needs transactions.
        again.advance("b", Lsn(0x500_0000), 1);
        assert_eq!(again.feedback(|| Lsn(0x400_0000)), feedback(9, 8));
        again.acquire("a", 2).unwrap();
        assert_eq!(again.feedback(|| Lsn(0x400_0000)), feedback(9, 7));
        again.drop_slot("a", 2).unwrap();
        again.feed_back("b", Feedback::default());
        again.feed_back("a", feedback(1, 1));
        again.save().unwrap();
        assert_eq!(again.feedback(oldest), Feedback::default());
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("feedback"), "as an earlier version wrote it: {text}");
    }

    /// Streams report to their slots, and logins read the greeting, also while a slow disk writes the file.
    #[test]
    fn nobody_waits_for_the_file_but_who_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path()).unwrap();
        slots.create("a", false, None, 1).unwrap();
        let writing = slots.writing.lock().unwrap();
        slots.acquire("a", 1).unwrap();
        slots.advance("a", Lsn(0x500_0000), 1);
        slots.release(1, true);
        assert_eq!((slots.greeting(), slots.oldest()), (None, Some(Lsn(0x500_0000))));
        drop(writing);
        slots.save().unwrap();
        assert_eq!(Slots::open(dir.path()).unwrap().oldest(), Some(Lsn(0x500_0000)));
    }

    #[test]
    fn slots_that_were_left_at_servers_survive() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path()).unwrap();
        for address in ["a:1", "b:1", "a:1"] {
            slots.has_slot_at(address, "r").unwrap();
        }
        let again = Slots::open(dir.path()).unwrap();
        let pair = |address: &str| (address.to_owned(), "r".to_owned());
        assert_eq!(again.left("b:1", "r"), [pair("a:1")]);
        assert_eq!(again.left("b:1", "other"), [pair("a:1"), pair("b:1")]);
        again.gone("a:1", "other").unwrap();
        again.gone("a:1", "r").unwrap();
        assert_eq!(Slots::open(dir.path()).unwrap().left("c:1", "r"), [pair("b:1")]);
        for number in 0..100 {
            again.has_slot_at(&format!("c:{number}"), "r").unwrap();
        }
        let left = again.left("", "");
        assert_eq!((left.len(), left.last()), (MOST_UPSTREAMS, Some(&pair("c:99"))));
    }

    #[test]
    fn refusals() {
        let dir = tempfile::tempdir().unwrap();
        let state = Slots::open(dir.path()).unwrap();
        state.create("a", false, None, 1).unwrap();
        state.acquire("a", 7).unwrap();
        for (got, code, text) in [
            (state.create("a", false, None, 1), Sqlstate::DUPLICATE_OBJECT, "replication slot \"a\" already exists"),
            (state.acquire("b", 1), Sqlstate::UNDEFINED_OBJECT, "replication slot \"b\" does not exist"),
            (state.acquire("a", 8), Sqlstate::OBJECT_IN_USE, "replication slot \"a\" is active for PID 7"),
            (state.drop_slot("a", 8), Sqlstate::OBJECT_IN_USE, "replication slot \"a\" is active for PID 7"),
        ] {
            assert_eq!(got, Err(SlotError { code, text: text.into(), hint: "" }));
        }
        assert!(state.create("A", false, None, 1).is_err());
        state.release(7, true);
        state.acquire("a", 8).unwrap();
    }

    #[test]
    fn what_an_earlier_version_promised_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(earlier_promise(dir.path()).unwrap(), None);
        let lines = "kingpost-log 1\nsystem-id 7\nsegment-size 16777216\nterm 3\n";
        let state = format!("{lines}crc32c {:08x}\n", crc32c::crc32c(lines.as_bytes()));
        std::fs::write(dir.path().join(crate::log::STATE_FILE), state).unwrap();
        assert_eq!(earlier_promise(dir.path()).unwrap(), Some(Promise::earlier(3, None, None)));
        let json = r#"{"format": 2, "greeting": null, "slots": {"a": ["0/3000000", 2]},
            "fence": {"timeline": 2, "chosen": [3, "n1"]}, "follow": {"configured": "a:1", "address": "b:1"}}"#;
        std::fs::write(dir.path().join(FILE), json).unwrap();
        let choice = Choice { term: 3, node: "n1".into() };
        let expected = Promise::earlier(3, Some((2, Some(choice))), Some(("a:1".into(), "b:1".into())));
        assert_eq!(earlier_promise(dir.path()).unwrap(), Some(expected));
        crate::log::take_over(dir.path()).unwrap();
        assert_eq!(earlier_promise(dir.path()).unwrap(), None);
        let slots = Slots::open(dir.path()).unwrap();
        assert_eq!(slots.restart("a"), Some(Some((Lsn(0x300_0000), 2))));
        slots.create("b", false, None, 1).unwrap();
        let text = std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert!(!text.contains("fence") && !text.contains("follow") && text.contains("\"format\": 1"), "{text}");
    }

    #[test]
    fn a_broken_file_is_an_error_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(Slots::open(dir.path()).unwrap_err().to_string().contains(FILE));
    }
}
