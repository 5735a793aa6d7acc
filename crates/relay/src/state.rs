//! The small file beside the log: what downstreams are greeted with, and their slots.
//!
//! Positions of slots are written now and then: an old one only keeps more WAL than needed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use watermark::Lsn;
use wire::Sqlstate;
use wire::replication::{is_slot_name, position, read_position};

use crate::error::StartError;

const FILE: &str = "kingpost-relay.json";
/// What is written while there is no fence: earlier versions read it.
const FORMAT: u32 = 1;
/// Written while there is a fence: an earlier version, which knows none, must not go on with the directory.
const FENCED_FORMAT: u32 = 2;
/// Most slots.
const MOST_SLOTS: usize = 1000;
/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// What the upstream says of itself and downstreams hear in its place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    /// `server_version`.
    pub(crate) server_version: String,
    /// `data_directory_mode`.
    pub(crate) data_directory_mode: String,
}

/// What was promised to an operator at a failover: nothing more is taken on this timeline or an older one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fence {
    /// The last timeline that ends here.
    pub(crate) timeline: u32,
    /// Which node is to go on from it, and the term in which that was chosen.
    pub(crate) chosen: Option<(u64, String)>,
}

/// An upstream that an operator has named instead of the configured one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Follow {
    /// What the configuration said then; once it says something else, that counts.
    configured: String,
    address: String,
}

/// Slots, greeting and fence, in memory and on disk.
#[derive(Debug)]
pub(crate) struct State {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    greeting: Option<Greeting>,
    slots: BTreeMap<String, Slot>,
    fence: Option<Fence>,
    follow: Option<Follow>,
    /// Something is not on disk yet.
    dirty: bool,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    /// The oldest position that its user needs, and its timeline; None before the first use.
    restart: Option<(Lsn, u32)>,
    temporary: bool,
    /// The connection that uses it.
    user: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct OnDisk {
    format: u32,
    greeting: Option<Greeting>,
    /// By name: `X/X` and timeline.
    slots: BTreeMap<String, Option<(String, u32)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fence: Option<Fence>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    follow: Option<Follow>,
}

/// Why something about a slot was refused: as PostgreSQL says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotError {
    pub(crate) code: Sqlstate,
    pub(crate) text: String,
}

fn refused<T>(code: Sqlstate, text: String) -> Result<T, SlotError> {
    Err(SlotError { code, text })
}

/// A slot as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SlotView {
    pub(crate) name: String,
    pub(crate) restart: Option<Lsn>,
    pub(crate) active: bool,
}

impl State {
    /// Reads the file of a directory, if there is one.
    pub(crate) fn open(dir: &std::path::Path) -> Result<State, StartError> {
        let path = dir.join(FILE);
        let fail = |source| StartError::File { tried: "read", path: path.clone(), source };
        let inner = match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Inner::default(),
            Err(error) => return Err(fail(error)),
            Ok(metadata) if metadata.len() > MAX_FILE => {
                return Err(fail(std::io::Error::other(format!("longer than {MAX_FILE} bytes"))));
            }
            Ok(_) => {
                let text = fs::read(&path).map_err(fail)?;
                let disk: OnDisk = serde_json::from_slice(&text).map_err(|error| fail(error.into()))?;
                if ![FORMAT, FENCED_FORMAT].contains(&disk.format) {
                    let text = format!("format {}, expected {FORMAT} or {FENCED_FORMAT}", disk.format);
                    return Err(fail(std::io::Error::other(text)));
                }
                let slots = disk.slots.into_iter().map(|(name, restart)| {
                    let restart = restart.and_then(|(at, timeline)| Some((Lsn(read_position(&at)?), timeline)));
                    (name, Slot { restart, ..Slot::default() })
                });
                Inner {
                    greeting: disk.greeting,
                    slots: slots.take(MOST_SLOTS).collect(),
                    fence: disk.fence,
                    follow: disk.follow,
                    dirty: false,
                }
            }
        };
        Ok(State { path, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn greeting(&self) -> Option<Greeting> {
        self.lock().greeting.clone()
    }

    /// Takes over what the upstream says.
    pub(crate) fn greet(&self, greeting: Greeting) -> Result<(), StartError> {
        let mut inner = self.lock();
        if inner.greeting.as_ref() == Some(&greeting) {
            return Ok(());
        }
        inner.greeting = Some(greeting);
        self.write(&mut inner)
    }

    /// The fence, if there is one.
    pub(crate) fn fence(&self) -> Option<Fence> {
        self.lock().fence.clone()
    }

    /// Puts up, changes or takes away the fence; durable when it returns. After an error the old one holds.
    pub(crate) fn set_fence(&self, fence: Option<Fence>) -> Result<(), StartError> {
        let mut inner = self.lock();
        let old = std::mem::replace(&mut inner.fence, fence);
        self.write(&mut inner).inspect_err(|_| inner.fence = old)
    }

    /// Follows `address` as long as the configuration says `configured`; durable when it returns.
    pub(crate) fn set_follow(&self, configured: &str, address: &str) -> Result<(), StartError> {
        let mut inner = self.lock();
        let follow = Follow { configured: configured.into(), address: address.into() };
        let old = inner.follow.replace(follow);
        self.write(&mut inner).inspect_err(|_| inner.follow = old)
    }

    /// Whom to follow when this is configured.
    pub(crate) fn upstream_for(&self, configured: &str) -> String {
        match &self.lock().follow {
            Some(follow) if follow.configured == configured => follow.address.clone(),
            _ => configured.into(),
        }
    }

    /// Makes a slot. `restart` is where it starts, if WAL is to be kept from now on. A temporary one belongs to connection `user`.
    pub(crate) fn create(
        &self,
        name: &str,
        temporary: bool,
        restart: Option<(Lsn, u32)>,
        user: u32,
    ) -> Result<(), SlotError> {
        if !is_slot_name(name) {
            return refused(
                Sqlstate(*b"42602"),
                format!("replication slot name \"{name}\" is not valid: expected 1 to 63 of a-z, 0-9 and _"),
            );
        }
        let mut inner = self.lock();
        if inner.slots.contains_key(name) {
            return refused(Sqlstate::DUPLICATE_OBJECT, format!("replication slot \"{name}\" already exists"));
        }
        if inner.slots.len() >= MOST_SLOTS {
            return refused(Sqlstate::CONFIGURATION_LIMIT_EXCEEDED, "all replication slots are in use".into());
        }
        inner.slots.insert(name.into(), Slot { restart, temporary, user: temporary.then_some(user) });
        if temporary {
            return Ok(());
        }
        self.write(&mut inner).or_else(|error| {
            inner.slots.remove(name);
            refused(Sqlstate(*b"58030"), error.to_string())
        })
    }

    /// Removes a slot that nobody else uses.
    pub(crate) fn drop_slot(&self, name: &str, user: u32) -> Result<(), SlotError> {
        let mut inner = self.lock();
        self.usable(&inner, name, user)?;
        inner.slots.remove(name);
        self.write(&mut inner).or_else(|error| refused(Sqlstate(*b"58030"), error.to_string()))
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

    /// Takes a slot for a connection.
    pub(crate) fn acquire(&self, name: &str, user: u32) -> Result<(), SlotError> {
        let mut inner = self.lock();
        self.usable(&inner, name, user)?;
        if let Some(slot) = inner.slots.get_mut(name) {
            slot.user = Some(user);
        }
        Ok(())
    }

    /// Gives back what a connection has taken; its temporary slots end, if it does.
    pub(crate) fn release(&self, user: u32, ended: bool) {
        let mut inner = self.lock();
        inner.slots.retain(|_, slot| !(ended && slot.temporary && slot.user == Some(user)));
        for slot in inner.slots.values_mut().filter(|slot| slot.user == Some(user) && !slot.temporary) {
            slot.user = None;
        }
    }

    /// The user of a slot needs nothing before `at` any more.
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

    /// None: there is no such slot. Some(None): it was never used.
    pub(crate) fn restart(&self, name: &str) -> Option<Option<(Lsn, u32)>> {
        self.lock().slots.get(name).map(|slot| slot.restart)
    }

    /// The oldest position that any slot needs.
    pub(crate) fn oldest(&self) -> Option<Lsn> {
        self.lock().slots.values().filter_map(|slot| slot.restart).map(|(at, _)| at).min()
    }

    pub(crate) fn slots(&self) -> Vec<SlotView> {
        let view = |(name, slot): (&String, &Slot)| SlotView {
            name: name.clone(),
            restart: slot.restart.map(|(at, _)| at),
            active: slot.user.is_some(),
        };
        self.lock().slots.iter().map(view).collect()
    }

    /// Writes positions that have moved.
    pub(crate) fn save(&self) -> Result<(), StartError> {
        let mut inner = self.lock();
        if inner.dirty { self.write(&mut inner) } else { Ok(()) }
    }

    fn write(&self, inner: &mut Inner) -> Result<(), StartError> {
        let kept = inner.slots.iter().filter(|(_, slot)| !slot.temporary);
        let slots = kept.map(|(name, slot)| (name.clone(), slot.restart.map(|(at, tli)| (position(at.0), tli))));
        let disk = OnDisk {
            format: if inner.fence.is_some() { FENCED_FORMAT } else { FORMAT },
            greeting: inner.greeting.clone(),
            slots: slots.collect(),
            fence: inner.fence.clone(),
            follow: inner.follow.clone(),
        };
        let text = serde_json::to_vec_pretty(&disk).unwrap_or_default();
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
        write().map_err(|source| StartError::File { tried: "write", path: self.path.clone(), source })?;
        inner.dirty = false;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn slots_survive_and_temporary_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
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
        let again = State::open(dir.path()).unwrap();
        assert_eq!(again.greeting(), Some(greeting));
        assert_eq!(again.restart("a"), Some(Some((Lsn(0x500_0000), 3))));
        assert_eq!(again.restart("b"), Some(Some((Lsn(0x300_0000), 2))));
        assert_eq!(again.restart("t"), None);
        again.drop_slot("b", 9).unwrap();
        assert_eq!(State::open(dir.path()).unwrap().slots().len(), 1);
    }

    #[test]
    fn refusals() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        state.create("a", false, None, 1).unwrap();
        state.acquire("a", 7).unwrap();
        for (got, code, text) in [
            (state.create("a", false, None, 1), Sqlstate::DUPLICATE_OBJECT, "replication slot \"a\" already exists"),
            (state.acquire("b", 1), Sqlstate::UNDEFINED_OBJECT, "replication slot \"b\" does not exist"),
            (state.acquire("a", 8), Sqlstate::OBJECT_IN_USE, "replication slot \"a\" is active for PID 7"),
            (state.drop_slot("a", 8), Sqlstate::OBJECT_IN_USE, "replication slot \"a\" is active for PID 7"),
        ] {
            assert_eq!(got, Err(SlotError { code, text: text.into() }));
        }
        assert!(state.create("A", false, None, 1).is_err());
        state.release(7, true);
        state.acquire("a", 8).unwrap();
    }

    #[test]
    fn a_broken_file_is_an_error_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert!(State::open(dir.path()).unwrap_err().to_string().contains(FILE));
    }
}
