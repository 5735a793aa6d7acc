//! The oldest transactions that readers of standbys need: hot standby feedback.

use serde::{Deserialize, Serialize};

/// ID and epoch of each; ID 0 is none. The first field is for rows of tables, the second one for rows of catalogs, which logical slots of a standby
/// need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Feedback {
    pub(crate) xmin: (u32, u32),
    pub(crate) catalog_xmin: (u32, u32),
}

impl Feedback {
    /// Returns both as full transaction IDs (`pg_current_xact_id`); 0 is none.
    pub(crate) fn ids(self) -> (u64, u64) {
        (whole(self.xmin), whole(self.catalog_xmin))
    }

    /// Returns the older value of each field.
    pub(crate) fn and(self, other: Feedback) -> Feedback {
        let older = |a: (u32, u32), b: (u32, u32)| match (a.0, b.0) {
            (0, _) => b,
            (_, 0) => a,
            _ => std::cmp::min_by_key(a, b, |pair| whole(*pair)),
        };
        Feedback { xmin: older(self.xmin, other.xmin), catalog_xmin: older(self.catalog_xmin, other.catalog_xmin) }
    }
}

/// Returns a full transaction ID (`pg_current_xact_id`); 0 is none.
fn whole((id, epoch): (u32, u32)) -> u64 {
    if id == 0 { 0 } else { u64::from(epoch) << 32 | u64::from(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_transaction_wins_and_none_is_none() {
        let of = |xmin, catalog_xmin| Feedback { xmin, catalog_xmin };
        for (a, b, expected) in [
            (of((0, 0), (0, 0)), of((0, 0), (0, 0)), of((0, 0), (0, 0))),
            (of((7, 0), (0, 0)), of((0, 0), (9, 1)), of((7, 0), (9, 1))),
            (of((7, 1), (0, 0)), of((4_000_000_000, 0), (0, 0)), of((4_000_000_000, 0), (0, 0))),
            (of((7, 1), (3, 0)), of((6, 1), (4, 0)), of((6, 1), (3, 0))),
        ] {
            assert_eq!(a.and(b), expected);
            assert_eq!(b.and(a), expected);
        }
        assert_eq!((whole((0, 3)), whole((7, 1))), (0, (1 << 32) + 7));
    }
}
