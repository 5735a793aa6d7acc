//! Objects of an archive: headers, payloads and names.

#![cfg_attr(fuzzing, no_main)]

use archive::{
    Checksum, Codec, FileName, HEADER, Header, Identity, Kind, Span, chain, part_of_path, part_path, unseal,
};
use kingpost_fuzz::fuzz_target;

/// Gives a payload a valid header, so that it is decoded.
fn mend(payload: &[u8], codec: Codec) -> Option<Vec<u8>> {
    let file = FileName::parse("000000010000000000000001")?;
    let header = Header {
        kind: Kind::Part,
        identity: Identity { system_id: 42, segment_size: 1 << 20 },
        span: Some(Span { file, from: 0, to: payload.len() as u64 }),
        codec,
        stored: payload.len() as u64,
        sum: Checksum::of(payload),
    };
    Some([&header.render()[..], payload].concat())
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    match mode & 3 {
        0 => {
            if let Ok(header) = Header::parse(data) {
                assert_eq!(header.render()[..], data[..HEADER]);
            }
            let _ = unseal(data);
        }
        1 => {
            let Some(object) = mend(data, Codec::None) else { return };
            assert!(unseal(&object).is_ok_and(|(_, raw)| raw == data));
        }
        2 => {
            let Some(object) = mend(data, Codec::Zstd) else { return };
            let _ = unseal(&object);
        }
        _ => {
            let Ok(text) = std::str::from_utf8(data) else { return };
            let parts: Vec<Span> = text.lines().filter_map(part_of_path).collect();
            for part in &parts {
                assert_eq!(part_of_path(&part_path(part)).as_ref(), Some(part));
            }
            let mut at = 0;
            for part in chain(&parts, 0) {
                assert!(part.from <= at && part.to > at, "a chain has no gap and goes on");
                at = part.to;
            }
            if let Some(name) = FileName::parse(text) {
                assert_eq!(name.as_str(), text);
            }
        }
    }
});
