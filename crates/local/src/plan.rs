//! Choice of the primary and of the part of each other node, from their data directories.

/// State of a node's data directory. No I/O here; `postgres::inspect` fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OnDisk {
    /// `system_identifier`: servers with different ones have no history in common.
    pub(super) system: u64,
    /// True if the server would start in recovery (`standby.signal`).
    pub(super) standby: bool,
    /// Highest timeline that the node has been on.
    pub(super) timeline: u32,
    /// Lower bound for the end of its WAL.
    pub(super) lsn: u64,
}

/// Part that a node gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// The node starts first and takes writes.
    Primary {
        /// True if the node is a replica on disk and has to be promoted: no primary of its timeline is left.
        promote: bool,
    },
    /// The node starts with its data and follows.
    Follow,
    /// The node is made again from the primary: it has no data, or data that the primary never had.
    Rebuild,
}

/// Chooses the part of each node; `None` stands for one without data. Returns `None` if no node has data.
///
/// The highest timeline wins: a promotion makes a new one, so a node on an older timeline was left behind. On the same timeline the primary wins over
/// its replicas, then the node with more WAL.
pub(super) fn plan(nodes: &[Option<OnDisk>]) -> Option<Vec<Part>> {
    let (primary, best) = nodes
        .iter()
        .enumerate()
        .filter_map(|(index, node)| node.map(|node| (index, node)))
        .max_by_key(|(index, node)| (node.timeline, !node.standby, node.lsn, std::cmp::Reverse(*index)))?;
    let part = |(index, node): (usize, &Option<OnDisk>)| match node {
        _ if index == primary => Part::Primary { promote: best.standby },
        Some(node) if node.standby && node.system == best.system => Part::Follow,
        _ => Part::Rebuild,
    };
    Some(nodes.iter().enumerate().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        const fn on_disk(standby: bool, timeline: u32, lsn: u64) -> Option<OnDisk> {
            Some(OnDisk { system: 1, standby, timeline, lsn })
        }
        const P: Part = Part::Primary { promote: false };
        const PROMOTE: Part = Part::Primary { promote: true };
        const F: Part = Part::Follow;
        const R: Part = Part::Rebuild;
        let stranger = Some(OnDisk { system: 2, standby: true, timeline: 1, lsn: 5 });
        for (name, nodes, expected) in [
            ("usual", vec![on_disk(false, 1, 9), on_disk(true, 1, 9), on_disk(true, 1, 8)], vec![P, F, F]),
            ("a replica is ahead on disk", vec![on_disk(false, 1, 5), on_disk(true, 1, 9)], vec![P, F]),
            ("failed over", vec![on_disk(false, 1, 9), on_disk(false, 2, 7), on_disk(true, 2, 6)], vec![R, P, F]),
            (
                "failed over, other behind",
                vec![on_disk(false, 1, 9), on_disk(false, 2, 7), on_disk(true, 1, 6)],
                vec![R, P, F],
            ),
            ("primary's data lost", vec![None, on_disk(true, 1, 6), on_disk(true, 1, 7)], vec![R, F, PROMOTE]),
            ("promoted one lost", vec![on_disk(false, 1, 9), None, on_disk(true, 2, 6)], vec![R, R, PROMOTE]),
            ("two promoted", vec![on_disk(false, 2, 5), on_disk(false, 2, 9), on_disk(true, 2, 5)], vec![R, P, F]),
            ("equal", vec![on_disk(true, 1, 5), on_disk(true, 1, 5)], vec![PROMOTE, F]),
            ("new replica", vec![on_disk(false, 1, 9), None], vec![P, R]),
            ("not of this cluster", vec![on_disk(false, 1, 9), stranger], vec![P, R]),
        ] {
            assert_eq!(plan(&nodes), Some(expected), "{name}");
        }
        assert_eq!(plan(&[None, None]), None);
        assert_eq!(plan(&[]), None);
    }
}
