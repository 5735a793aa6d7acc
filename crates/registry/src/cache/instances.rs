//! The instances of a service, in pieces that consecutive snapshots share: the cost of a change depends on the size of the change, not on the number
//! of instances.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::encodings::Encodings;
use crate::model::{Digest, Instance, InstanceId};

/// Instances sorted by id; never changed. A clone shares them.
#[derive(Clone, Default)]
pub struct Instances {
    /// Pieces, none empty, none longer than twice [`PIECE`].
    pieces: Vec<Arc<Piece>>,
    len: usize,
}

/// Consecutive instances, and their encodings. Snapshots share a piece until one of its instances changes: so only one piece is encoded again after a
/// change.
#[derive(Debug)]
pub struct Piece {
    list: Box<[Arc<Instance>]>,
    encodings: Encodings,
}

impl Piece {
    fn of(list: &[Arc<Instance>]) -> Arc<Piece> {
        Arc::new(Piece { list: list.into(), encodings: Encodings::default() })
    }

    /// Returns the encodings of these instances.
    pub(crate) fn encodings(&self) -> &Encodings {
        &self.encodings
    }
}

impl Deref for Piece {
    type Target = [Arc<Instance>];

    fn deref(&self) -> &[Arc<Instance>] {
        &self.list
    }
}

/// Number of instances in a new piece. A change copies one piece, and the list of all pieces: both are short for a few hundred to some ten thousand
/// instances.
const PIECE: usize = 64;

impl Instances {
    /// Makes the pieces of a list that is sorted by id.
    pub(crate) fn new(sorted: &[Arc<Instance>]) -> Instances {
        Instances { pieces: sorted.chunks(PIECE).map(Piece::of).collect(), len: sorted.len() }
    }

    /// Iterates over the pieces, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().map(|piece| &**piece)
    }

    /// Returns the number of instances.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no instances.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over all instances, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Instance>> {
        self.into_iter()
    }

    /// Iterates over all instances, from number `start` to the end and then from the first on. Starts at the first if there is no such number.
    pub fn iter_from(&self, start: usize) -> impl Iterator<Item = &Arc<Instance>> {
        let (mut piece, mut before) = (0, 0);
        while let Some(length) = self.pieces.get(piece).map(|piece| piece.len())
            && start < self.len
            && before + length <= start
        {
            before += length;
            piece += 1;
        }
        let within = if start < self.len { start - before } else { 0 };
        let (first, rest) = self.pieces.split_at(piece);
        let turned = rest.iter().chain(first).flat_map(|piece| piece.iter());
        // The beginning of the piece that contains `start` comes last.
        let last = rest.first().map_or(&[][..], |piece| &piece[..within]);
        turned.skip(within).chain(last)
    }

    /// Returns the instance with this id.
    pub fn get(&self, id: &InstanceId) -> Option<&Arc<Instance>> {
        let piece = self.pieces.get(self.pieces.partition_point(|piece| piece[0].id <= *id).checked_sub(1)?)?;
        let at = piece.binary_search_by(|instance| instance.id.cmp(id)).ok()?;
        piece.get(at)
    }

    /// Returns a copy with `changes` (`None`: removed), and the new digest, given the present one.
    pub(crate) fn with(
        &self,
        changes: BTreeMap<InstanceId, Option<Arc<Instance>>>,
        mut digest: Digest,
    ) -> (Instances, Digest) {
        let mut pieces = Vec::with_capacity(self.pieces.len() + 1);
        let mut changes = changes.into_iter().peekable();
        let mut next = 0;
        while let Some((id, _)) = changes.peek() {
            // The piece that contains the id, or would.
            let at = self.pieces.partition_point(|piece| piece[0].id <= *id).saturating_sub(1);
            pieces.extend_from_slice(&self.pieces[next..at]);
            next = self.pieces.len().min(at + 1);
            let mut rest = self.pieces.get(at).map_or(&[][..], |piece| &piece[..]);
            let end = self.pieces.get(next).map(|piece| &piece[0].id);
            let mut list = Vec::with_capacity(rest.len() + 1);
            while let Some((id, change)) = changes.next_if(|(id, _)| end.is_none_or(|end| id < end)) {
                let (before, after) = rest.split_at(rest.partition_point(|instance| instance.id < id));
                list.extend_from_slice(before);
                rest = after;
                if let Some((old, after)) = rest.split_first().filter(|(old, _)| old.id == id) {
                    digest = digest.minus(old.digest_with_machines());
                    rest = after;
                }
                if let Some(new) = change {
                    digest = digest.plus(new.digest_with_machines());
                    list.push(new);
                }
            }
            list.extend_from_slice(rest);
            if list.len() > 2 * PIECE {
                pieces.extend(list.chunks(PIECE).map(Piece::of));
            } else if !list.is_empty() {
                pieces.push(Piece::of(&list));
            }
        }
        pieces.extend_from_slice(&self.pieces[next..]);
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        // After many removals, most pieces have few instances left.
        if pieces.len() > 8 && pieces.len() * PIECE > 4 * len {
            let all: Vec<_> = pieces.iter().flat_map(|piece| piece.iter().cloned()).collect();
            return (Instances::new(&all), digest);
        }
        (Instances { pieces, len }, digest)
    }
}

impl<'a> IntoIterator for &'a Instances {
    type Item = &'a Arc<Instance>;
    type IntoIter = std::iter::FlatMap<
        std::slice::Iter<'a, Arc<Piece>>,
        std::slice::Iter<'a, Arc<Instance>>,
        fn(&'a Arc<Piece>) -> std::slice::Iter<'a, Arc<Instance>>,
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.pieces.iter().flat_map(|piece| piece.iter())
    }
}

impl fmt::Debug for Instances {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::model::{Registration, ServiceKey};

    fn instance(n: u16, port: u16) -> Arc<Instance> {
        let id = InstanceId::parse(&format!("default/{n:05}")).unwrap();
        let service = ServiceKey::parse("default/s").unwrap();
        let mut instance = Instance::registered(Registration::new(id, service, "h", port), None);
        instance.digest = instance.content_digest();
        Arc::new(instance)
    }

    proptest! {
        /// After any puts and removals, in any portions, a map has the same content.
        #[test]
        fn as_a_map(
            portions in proptest::collection::vec(
                proptest::collection::vec((0u16..600, proptest::option::of(0u16..3)), 1..200), 1..8,
            ),
            start in 0usize..700,
        ) {
            let (mut instances, mut digest) = (Instances::default(), Digest::default());
            let mut model: BTreeMap<InstanceId, Arc<Instance>> = BTreeMap::new();
            for portion in portions {
                let change = |(n, port): &(u16, Option<u16>)| (instance(*n, 0).id.clone(), port.map(|port| instance(*n, port)));
                let changes: BTreeMap<_, _> = portion.iter().map(change).collect();
                for (id, change) in &changes {
                    match change {
                        Some(new) => drop(model.insert(id.clone(), Arc::clone(new))),
                        None => drop(model.remove(id)),
                    }
                }
                (instances, digest) = instances.with(changes, digest);
                let expected: Vec<_> = model.values().cloned().collect();
                prop_assert_eq!(instances.iter().cloned().collect::<Vec<_>>(), expected.clone());
                prop_assert_eq!(instances.len(), expected.len());
                let sum = expected.iter().fold(Digest::default(), |sum, instance| sum.plus(instance.digest));
                prop_assert_eq!(digest, sum);
                prop_assert!(instances.pieces.iter().all(|piece| (1..=2 * PIECE).contains(&piece.len())));
                let from = if start < expected.len() { start } else { 0 };
                let turned: Vec<_> = expected[from..].iter().chain(&expected[..from]).cloned().collect();
                prop_assert_eq!(instances.iter_from(start).cloned().collect::<Vec<_>>(), turned);
                for (n, _) in &portion {
                    let id = instance(*n, 0).id.clone();
                    prop_assert_eq!(instances.get(&id), model.get(&id));
                }
            }
        }
    }

    #[test]
    fn a_change_shares_what_it_does_not_touch() {
        let all: Vec<_> = (0..1000).map(|n| instance(n, 1)).collect();
        let before = Instances::new(&all);
        let one = instance(500, 2);
        let (after, _) = before.with([(one.id.clone(), Some(one))].into(), Digest::default());
        let shared =
            after.pieces.iter().filter(|piece| before.pieces.iter().any(|old| Arc::ptr_eq(old, piece))).count();
        assert_eq!((shared, after.pieces.len()), (before.pieces.len() - 1, before.pieces.len()));
    }

    #[test]
    fn few_that_are_left_of_many_lie_together() {
        let all: Vec<_> = (0..6400).map(|n| instance(n, 1)).collect();
        let most = (0..6400).filter(|n| n % 64 != 0).map(|n| (all[n].id.clone(), None)).collect();
        let (few, _) = Instances::new(&all).with(most, Digest::default());
        assert_eq!((few.len(), few.pieces.len()), (100, 2));
    }
}
