//! Who else is there, and who judges what. Pure: a roll call goes in, what it means comes out.
//!
//! A node counts its beats in the store. Whoever calls the roll sees them rise, or not: no clocks are compared, and while the
//! store cannot be read nobody is found to be missing. A node lives while its beats rise, or while it is heard over its link: one that has
//! only lost its way to the store still takes heartbeats, and has to be asked. Who judges has to reach the store, to write what it
//! finds: that goes by the beats alone. And who judges has to reach every node that lives: a node that does not leaves judging to one that may.

use std::collections::BTreeMap;

use crate::model::InstanceId;
use crate::store::{NodeId, NodeRow};

/// Roll calls in a row at which a node's beat has not moved, after which it is lost. A node gives a beat at each call.
pub(crate) const LOST: u32 = 4;
/// The same, after which its row is removed from the store.
const FORGOTTEN: u32 = 30;

/// The other nodes, as this one sees them.
#[derive(Debug, Default)]
pub(crate) struct Members {
    others: BTreeMap<NodeId, Known>,
}

#[derive(Debug)]
struct Known {
    row: NodeRow,
    /// Roll calls in a row at which its beat has not moved, or its row was not there.
    unmoved: u32,
    /// Whether it was heard over its link at the last roll call.
    linked: bool,
}

impl Known {
    fn lives(&self) -> bool {
        self.linked || self.unmoved < LOST
    }
}

/// What a roll call has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) joined: Vec<NodeId>,
    /// What they alone knew is not known any more.
    pub(crate) lost: Vec<NodeId>,
}

impl Members {
    /// Takes what was read. `counts`: whether it is one of the regular calls, between which beats move. `linked`: whether a node is
    /// heard over its link.
    pub(crate) fn called(
        &mut self,
        own: NodeId,
        rows: Vec<NodeRow>,
        counts: bool,
        linked: impl Fn(NodeId) -> bool,
    ) -> News {
        let mut news = News::default();
        let mut before = std::mem::take(&mut self.others);
        for row in rows {
            if row.id == own {
                continue;
            }
            let (id, linked) = (row.id, linked(row.id));
            let known = before.remove(&id);
            let lived = known.as_ref().is_some_and(Known::lives);
            let known = match known {
                Some(known) if known.row.beat == row.beat && !counts => Known { linked, ..known },
                Some(known) if known.row.beat == row.beat => {
                    Known { unmoved: known.unmoved.saturating_add(1), linked, ..known }
                }
                _ => Known { row, unmoved: 0, linked },
            };
            match (lived, known.lives()) {
                (false, true) => news.joined.push(id),
                (true, false) => news.lost.push(id),
                _ => {}
            }
            self.others.insert(id, known);
        }
        // Whoever leaves takes its row away, and closes its link. Without the link: somebody who does not hear it has removed the row.
        for (id, known) in before {
            if linked(id) {
                self.others.insert(id, Known { unmoved: known.unmoved.max(LOST), linked: true, ..known });
            } else if known.lives() {
                news.lost.push(id);
            }
        }
        news
    }

    /// Those that live.
    pub(crate) fn live(&self) -> impl Iterator<Item = &NodeRow> {
        self.others.values().filter(|known| known.lives()).map(|known| &known.row)
    }

    /// Those that live and reach the store: by what they find, others can go.
    pub(crate) fn in_touch(&self) -> impl Iterator<Item = &NodeRow> {
        self.others.values().filter(|known| known.unmoved < LOST).map(|known| &known.row)
    }

    /// Whether this node leaves judging to others: there is a node that lives and that it has not heard for long, so it could not ask that node;
    /// and there is a judge that it hears, who may be able to. Where two such nodes leave it to each other, the one that calls the roll next sees
    /// that nobody is left, and judges. `silent`: not heard for long over its link; `heard`: just now.
    pub(crate) fn leaves_judging(&self, silent: impl Fn(NodeId) -> bool, heard: impl Fn(NodeId) -> bool) -> bool {
        self.live().any(|row| silent(row.id)) && self.in_touch().any(|row| row.judges && heard(row.id))
    }

    /// Those whose rows may go. One that comes back nevertheless makes a new row.
    pub(crate) fn forgotten(&self) -> Vec<NodeId> {
        let forgotten = self.others.iter().filter(|(_, known)| !known.linked && known.unmoved >= FORGOTTEN);
        forgotten.map(|(id, _)| *id).collect()
    }
}

/// Which of `nodes` judges the instance: rendezvous hashing. When a node goes only its own instances get another owner, and each
/// other node gets an equal share of them.
pub(crate) fn owner(nodes: &[NodeId], id: &InstanceId) -> Option<NodeId> {
    // FNV-1a of the text, the same on all nodes and in all versions.
    let text = id
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    nodes.iter().copied().max_by_key(|node| (mix(text ^ mix(node.0 as u64)), *node))
}

/// The finish of SplitMix64: every bit of the input decides about every bit of the result.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn row(id: i64, beat: i64) -> NodeRow {
        NodeRow { id: NodeId(id), address: format!("h{id}:1"), judges: true, beat }
    }

    fn ids(ids: &[i64]) -> Vec<NodeId> {
        ids.iter().map(|id| NodeId(*id)).collect()
    }

    /// Roll calls one after the other; each with the rows (id, beat) and who is then said to have joined and to be lost.
    #[test]
    fn roll_calls() {
        type Call<'a> = (&'a [(i64, i64)], &'a [i64], &'a [i64]);
        let cases: &[&[Call<'_>]] = &[
            // Only itself.
            &[(&[(1, 1)], &[], &[]), (&[(1, 2)], &[], &[])],
            // One joins, and leaves.
            &[
                (&[(1, 1), (2, 7)], &[2], &[]),
                (&[(1, 2), (2, 8)], &[], &[]),
                (&[(1, 3)], &[], &[2]),
                (&[(1, 4)], &[], &[]),
            ],
            // One falls silent, and comes back: also one whose beats began anew.
            &[
                (&[(2, 7)], &[2], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[2]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 3)], &[2], &[]),
                (&[(2, 4)], &[], &[]),
            ],
            // Silent for a while only.
            &[
                (&[(2, 7)], &[2], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 8)], &[], &[]),
                (&[(2, 8)], &[], &[]),
                (&[(2, 8)], &[], &[]),
            ],
            // Lost, then its row is taken away: lost once.
            &[
                (&[(2, 7)], &[2], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[]),
                (&[(2, 7)], &[], &[2]),
                (&[], &[], &[]),
            ],
        ];
        for (case, calls) in cases.iter().enumerate() {
            let mut members = Members::default();
            for (n, (rows, joined, lost)) in calls.iter().enumerate() {
                let rows = rows.iter().map(|(id, beat)| row(*id, *beat)).collect();
                let news = members.called(NodeId(1), rows, true, |_| false);
                assert_eq!(news, News { joined: ids(joined), lost: ids(lost) }, "case {case}, call {n}");
            }
        }
    }

    /// A node that has lost its way to the store only: it is asked as before, judges nothing, and is lost when its link ends too.
    #[test]
    fn who_is_heard_over_its_link_lives() {
        let mut members = Members::default();
        let shown = |members: &Members| {
            let list = |rows: Vec<&NodeRow>| rows.into_iter().map(|row| row.id.0).collect::<Vec<_>>();
            (list(members.live().collect()), list(members.in_touch().collect()))
        };
        for (call, (beat, linked, joined, lost, live, in_touch)) in [
            (Some(7), false, &[2][..], &[][..], &[2][..], &[2][..]),
            (Some(7), true, &[], &[], &[2], &[2]),
            (Some(7), true, &[], &[], &[2], &[2]),
            (Some(7), true, &[], &[], &[2], &[2]),
            (Some(7), true, &[], &[], &[2], &[]),
            // Somebody else has removed its row.
            (None, true, &[], &[], &[2], &[]),
            (None, true, &[], &[], &[2], &[]),
            // It is back.
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[]),
            // The link ends too.
            (Some(9), false, &[], &[2], &[], &[]),
            (Some(9), false, &[], &[], &[], &[]),
            // The link alone is enough to be asked.
            (Some(9), true, &[2], &[], &[2], &[]),
            (None, false, &[], &[2], &[], &[]),
        ]
        .into_iter()
        .enumerate()
        {
            let rows = beat.map(|beat| row(2, beat)).into_iter().collect();
            let news = members.called(NodeId(1), rows, true, |_| linked);
            assert_eq!(news, News { joined: ids(joined), lost: ids(lost) }, "call {call}");
            assert_eq!(shown(&members), (live.to_vec(), in_touch.to_vec()), "call {call}");
        }
    }

    /// Three nodes, of which two do not hear each other: the third one judges for all. Of two nodes each goes on judging.
    #[test]
    fn who_cannot_ask_everybody_leaves_judging_to_who_can() {
        let judging = |id: i64, judges: bool| NodeRow { judges, ..row(id, 1) };
        for (rows, silent, heard, leaves) in [
            (vec![judging(2, true), judging(3, true)], &[][..], &[2, 3][..], false),
            (vec![judging(2, true), judging(3, true)], &[2], &[3], true),
            (vec![judging(2, true), judging(3, false)], &[2], &[3], false),
            (vec![judging(2, true), judging(3, true)], &[2, 3], &[], false),
            (vec![judging(2, true)], &[2], &[], false),
            (vec![], &[], &[], false),
        ] {
            let mut members = Members::default();
            members.called(NodeId(1), rows.clone(), true, |_| false);
            let found = members.leaves_judging(|id| silent.contains(&id.0), |id| heard.contains(&id.0));
            assert_eq!(found, leaves, "{rows:?}, silent {silent:?}, heard {heard:?}");
        }
    }

    #[test]
    fn who_is_silent_for_long_is_forgotten() {
        let mut members = Members::default();
        for call in 0..=FORGOTTEN {
            assert!(members.forgotten().is_empty(), "call {call}");
            members.called(NodeId(1), vec![row(2, 7), row(3, i64::from(call))], true, |_| false);
            let between = members.called(NodeId(1), vec![row(2, 7), row(3, i64::from(call))], false, |_| false);
            assert_eq!(between, News::default());
        }
        assert_eq!(members.forgotten(), ids(&[2]));
        assert_eq!(members.live().map(|row| row.id).collect::<Vec<_>>(), ids(&[3]));
    }

    #[test]
    fn shares_are_equal_and_only_those_of_a_lost_node_move() {
        let nodes = ids(&[11, 12, 13, 14]);
        let instances: Vec<InstanceId> =
            (0..20_000).map(|n| InstanceId::parse(&format!("default/instance-{n}")).unwrap()).collect();
        let mut counts = [0; 4];
        let mut moved = [0; 4];
        for id in &instances {
            let before = owner(&nodes, id).unwrap();
            counts[usize::try_from(before.0 - 11).unwrap()] += 1;
            let after = owner(&nodes[1..], id).unwrap();
            if before == nodes[0] {
                moved[usize::try_from(after.0 - 11).unwrap()] += 1;
            } else {
                assert_eq!(before, after, "{id:?} had no reason to move");
            }
        }
        assert!(counts.iter().all(|count| (4500..5500).contains(count)), "{counts:?}");
        assert!(moved[1..].iter().all(|count| (1400..1950).contains(count)), "{moved:?}");
        assert_eq!(owner(&[], &instances[0]), None);
        let mut reversed = nodes.clone();
        reversed.reverse();
        assert_eq!(owner(&nodes, &instances[0]), owner(&reversed, &instances[0]), "whatever the order");
    }
}
