//! Compression of answers.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Packs bytes, fast rather than small: the network between machines of one site is not the bottleneck.
pub(super) fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    // Writing into memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}
