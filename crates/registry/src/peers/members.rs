//! Membership of the nodes, and the choice of the judge of an instance. Pure: a roll call is the input, its consequences are the output.
//!
//! A node counts its beats in the store. A node that calls the roll sees them rise, or not: no clocks are compared, and while the store cannot be
//! read no node is found missing. A node lives while its beats rise, or while it is heard over its link: a node that has lost only the store still
//! takes heartbeats, and must be asked. A judge must reach the store, to write its verdicts: so only beats count for it. A judge must also reach
//! every live node: otherwise it leaves judging to a node that may be able to.

use std::collections::BTreeMap;

use crate::model::InstanceId;
use crate::store::{NodeId, NodeRow};

/// Roll calls in a row without a new beat after which a node is lost. A node writes a beat at each call.
pub(crate) const LOST: u32 = 4;
/// Roll calls in a row without a new beat after which a node's row is removed from the store.
const FORGOTTEN: u32 = 30;

/// The other nodes, as seen by this one.
#[derive(Debug, Default)]
pub(crate) struct Members {
    others: BTreeMap<NodeId, Known>,
}

#[derive(Debug)]
struct Known {
    row: NodeRow,
    /// Roll calls in a row without a new beat, or without the row.
    unmoved: u32,
    /// True if the node was heard over its link at the last roll call.
    linked: bool,
}

impl Known {
    fn lives(&self) -> bool {
        self.linked || self.unmoved < LOST
    }
}

/// Changes found by a roll call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    pub(crate) joined: Vec<NodeId>,
    /// Lost nodes: the heartbeats that they alone received are lost, too.
    pub(crate) lost: Vec<NodeId>,
}

impl Members {
    /// Applies the rows read. `counts` is true for the regular calls, between which beats rise. `linked` returns true for a node that is heard over
    /// its link.
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
        // A node that leaves deletes its row, and closes its link. If the link is alive, a node that does not hear it has deleted the row.
        for (id, known) in before {
            if linked(id) {
                self.others.insert(id, Known { unmoved: known.unmoved.max(LOST), linked: true, ..known });
            } else if known.lives() {
                news.lost.push(id);
            }
        }
        news
    }

    /// Iterates over the live nodes.
    pub(crate) fn live(&self) -> impl Iterator<Item = &NodeRow> {
        self.others.values().filter(|known| known.lives()).map(|known| &known.row)
    }

    /// Iterates over the live nodes that reach the store, whose verdicts can be relied on.
    pub(crate) fn in_touch(&self) -> impl Iterator<Item = &NodeRow> {
        self.others.values().filter(|known| known.unmoved < LOST).map(|known| &known.row)
    }

    /// True if this node leaves judging to others: this node has not heard a live node for long, so it could not ask that node, and it hears another
    /// judge that may be able to. If two such nodes leave judging to each other, the one that calls the roll next sees that no judge is left, and
    /// judges. `silent`: not heard for long over its link; `heard`: heard just now.
    pub(crate) fn leaves_judging(&self, silent: impl Fn(NodeId) -> bool, heard: impl Fn(NodeId) -> bool) -> bool {
        self.live().any(|row| silent(row.id)) && self.in_touch().any(|row| row.judges && heard(row.id))
    }

    /// Returns the nodes whose rows may be removed. A node that comes back nevertheless writes a new row.
    pub(crate) fn forgotten(&self) -> Vec<NodeId> {
        let forgotten = self.others.iter().filter(|(_, known)| !known.linked && known.unmoved >= FORGOTTEN);
        forgotten.map(|(id, _)| *id).collect()
    }
}

/// Returns the node among `nodes` that judges the instance: rendezvous hashing. If a node goes, only its own instances get another owner, in equal
/// shares.
pub(crate) fn owner(nodes: &[NodeId], id: &InstanceId) -> Option<NodeId> {
    // FNV-1a of the text, the same on all nodes and in all versions.
    let text = id
        .as_str()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    nodes.iter().copied().max_by_key(|node| (mix(text ^ mix(node.0 as u64)), *node))
}

/// The finaliser of SplitMix64: every bit of the input affects every bit of the result.
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

    /// Sequences of roll calls; each with the rows (id, beat), and the nodes that have joined and that are lost.
    #[test]
    fn roll_calls() {
        type Call<'a> = (&'a [(i64, i64)], &'a [i64], &'a [i64]);
        let cases: &[&[Call<'_>]] = &[
            // Only the node itself.
            &[(&[(1, 1)], &[], &[]), (&[(1, 2)], &[], &[])],
            // A node joins, and leaves.
            &[
                (&[(1, 1), (2, 7)], &[2], &[]),
                (&[(1, 2), (2, 8)], &[], &[]),
                (&[(1, 3)], &[], &[2]),
                (&[(1, 4)], &[], &[]),
            ],
            // A node falls silent, and comes back, also with beats that restart.
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
            // Lost, then its row is deleted: lost once.
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

    /// A node that has lost only the store is asked as before, judges nothing, and is lost when its link ends, too.
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
            // Another node has deleted its row.
            (None, true, &[], &[], &[2], &[]),
            (None, true, &[], &[], &[2], &[]),
            // The node is back.
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[2]),
            (Some(9), true, &[], &[], &[2], &[]),
            // The link ends, too.
            (Some(9), false, &[], &[2], &[], &[]),
            (Some(9), false, &[], &[], &[], &[]),
            // The link alone suffices for the node to be asked.
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

    /// Three nodes, two of which do not hear each other: the third judges for all. Of two nodes, each goes on judging.
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
