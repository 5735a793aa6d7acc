//! Choice of the files that may be removed: a decision over plain numbers.

use watermark::Lsn;

/// Counts the oldest files that may be removed. `files`: start and bytes of each, oldest first; the last one is being written and stays. `needed`:
/// the lowest position that a replica still needs.
pub(super) fn removable(files: &[(Lsn, u64)], needed: Lsn, keep_bytes: u64, max_bytes: u64) -> usize {
    let most = files.len().saturating_sub(1);
    let total: u64 = files.iter().map(|file| file.1).sum();
    let (mut count, mut left) = (0, total);
    while count < most {
        let (start, bytes) = files[count];
        let is_needed = start.0.saturating_add(bytes) > needed.0;
        let stays = is_needed || left.saturating_sub(bytes) < keep_bytes;
        if stays && left <= max_bytes {
            break;
        }
        left = left.saturating_sub(bytes);
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let files: Vec<(Lsn, u64)> = (0..10).map(|n| (Lsn(n * 100), 100)).collect();
        let far = u64::MAX;
        for (needed, keep, max, gone, why) in [
            (1000, 0, far, 9, "nobody needs anything: the last stays"),
            (550, 0, far, 5, "the file that somebody is in"),
            (500, 0, far, 5, "who has got all before"),
            (0, 0, far, 0, "somebody needs all"),
            (1000, 250, far, 7, "kept anyway"),
            (1000, 1000, far, 0, "all is kept anyway"),
            (0, 0, 300, 7, "the cap wins over need"),
            (0, 1000, 300, 7, "and over what is kept"),
            (0, 0, 0, 9, "a cap of nothing leaves the last one"),
        ] {
            assert_eq!(removable(&files, Lsn(needed), keep, max), gone, "{why}");
        }
        assert_eq!(removable(&[], Lsn(0), 0, 0), 0);
    }
}
