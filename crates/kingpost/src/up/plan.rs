//! Which node is the primary, and what becomes of the others: decided from what lies on disk.

/// What a node's data directory says. No I/O here; `postgres::inspect` fills it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OnDisk {
    /// `system_identifier`: servers with different ones have nothing in common.
    pub(super) system: u64,
    /// Whether it would start in recovery (`standby.signal`).
    pub(super) standby: bool,
    /// Highest timeline it has been on.
    pub(super) timeline: u32,
    /// End of what it is known to have, a lower bound.
    pub(super) lsn: u64,
}

/// What becomes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Starts first and takes writes.
    Primary {
        /// It is a replica on disk and has to be promoted: no primary of its timeline is left.
        promote: bool,
    },
    /// Starts with the data it has and follows.
    Follow,
    /// Is made again from the primary: it has no data, or has data that the primary never had.
    Rebuild,
}

/// Decides for each node; `None` stands for one without data. Returns `None` if no node has any.
///
/// The highest timeline wins: a promotion makes a new one, so whatever is on an older one was left behind. On the same
/// timeline the primary wins over its replicas, then the one that has more.
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
