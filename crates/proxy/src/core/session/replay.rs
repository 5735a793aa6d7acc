//! A unit that may be sent again to another server: its bytes, and how to undo what its answers have changed so far.

use std::cell::RefCell;

use super::put_off::PutOffBegin;
use crate::core::memory::{Buffers, Spare, keep_spare, take_spare};
use crate::core::prepared::{Names, Undo};

/// Takes the room of one pointer while the client has no such unit.
#[derive(Debug, Default)]
pub(in crate::core) struct Replay(Option<Box<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    unit: Vec<u8>,
    /// Changes of the client's names by messages that have been answered, oldest first.
    undo: Vec<Undo>,
    /// The BEGIN that was put off and sent ahead of the unit.
    begun: Option<PutOffBegin>,
}

thread_local! {
    /// Unused boxes: a client that is busy again and again allocates nothing.
    static SPARE: Spare<Kept> = const { RefCell::new(Vec::new()) };
}

impl Replay {
    /// Keeps `unit`; a unit kept before is dropped.
    pub(in crate::core) fn keep(&mut self, unit: &[u8], buffers: &mut Buffers) {
        let kept = self.0.get_or_insert_with(|| take_spare(&SPARE));
        kept.unit.clear();
        buffers.lend(&mut kept.unit).extend_from_slice(unit);
    }

    /// True if a unit is kept.
    pub(in crate::core) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// True if no unit is kept.
    pub(in crate::core) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The bytes of the unit; empty if none is kept.
    pub(in crate::core) fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |kept| &kept.unit)
    }

    /// A message of the unit was answered that has changed the client's names. If no unit is kept, the change is final.
    pub(in crate::core) fn answered(&mut self, undo: Undo) {
        if let Some(kept) = &mut self.0
            && undo.is_change()
        {
            kept.undo.push(undo);
        }
    }

    /// A BEGIN that was put off has been sent ahead of the unit.
    pub(in crate::core) fn begins(&mut self, begun: &PutOffBegin) {
        if let Some(kept) = &mut self.0 {
            kept.begun = Some(begun.clone());
        }
    }

    /// Takes the unit out, to send it again. The client's names go back to what they were before the unit, since its
    /// answers so far do not count. Gives the bytes of the unit and the BEGIN that went ahead of it.
    pub(in crate::core) fn take(&mut self, names: &mut Names) -> Option<(Vec<u8>, Option<PutOffBegin>)> {
        let mut kept = self.0.take()?;
        for undo in kept.undo.drain(..).rev() {
            names.undo(undo);
        }
        let (unit, begun) = (std::mem::take(&mut kept.unit), kept.begun.take());
        keep_spare(&SPARE, kept);
        Some((unit, begun))
    }

    /// Drops the unit: it will not be sent again. False if none was kept.
    pub(in crate::core) fn forget(&mut self, buffers: &mut Buffers) -> bool {
        let Some(mut kept) = self.0.take() else { return false };
        buffers.give(std::mem::take(&mut kept.unit));
        kept.undo.clear();
        kept.begun = None;
        keep_spare(&SPARE, kept);
        true
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::prepared::Statement;

    #[test]
    fn what_is_sent_again_has_not_happened() {
        let (mut replay, mut names, mut buffers) = (Replay::default(), Names::default(), Buffers::default());
        let statement = Arc::new(Statement::unknown());
        names.parse(b"a", statement.clone(), 1 << 20).unwrap();
        replay.keep(b"unit", &mut buffers);
        replay.begins(&PutOffBegin { statement: statement.clone(), leaves_portal: false });
        let undo = names.close(b"a").unwrap();
        replay.answered(undo);
        let undo = names.parse(b"b", statement, 1 << 20).unwrap();
        replay.answered(undo);
        let (unit, begun) = replay.take(&mut names).unwrap();
        assert_eq!((&*unit, begun.is_some()), (&b"unit"[..], true));
        assert!(names.get(b"a").is_some() && names.get(b"b").is_none() && replay.is_none());
        // What is not sent again has.
        replay.keep(b"unit", &mut buffers);
        let undo = names.close(b"a").unwrap();
        replay.answered(undo);
        assert!(replay.forget(&mut buffers) && !replay.forget(&mut buffers));
        assert!(names.get(b"a").is_none());
        replay.keep(b"other", &mut buffers);
        assert!(replay.take(&mut names).is_some_and(|(unit, begun)| unit == b"other" && begun.is_none()));
        assert!(names.get(b"a").is_none(), "nothing is left of the unit before");
    }
}
