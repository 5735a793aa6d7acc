//! Compression of response bodies.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Compresses bytes, for speed rather than size: the network within one site is not the bottleneck.
pub(super) fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    // Writing into memory does not fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}
