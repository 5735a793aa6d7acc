//! Objects of an archive: headers, payloads and names.

#![cfg_attr(fuzzing, no_main)]

use archive::{
    Checksum, Codec, FileName, HEADER, Header, Identity, Keys, Kind, Span, chain, part_of_path, part_path,
    turn_of_path, turn_path, unseal,
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
        key: None,
        stored: payload.len() as u64,
        sum: Checksum::of(payload),
    };
    Some([&header.render()[..], payload].concat())
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    let none = Keys::default();
    match mode & 7 {
        0 => {
            if let Ok(header) = Header::parse(data) {
                assert_eq!(header.render()[..], data[..HEADER]);
            }
            let _ = unseal(data, &none);
        }
        1 => {
            let Some(object) = mend(data, Codec::None) else { return };
            assert!(unseal(&object, &none).is_ok_and(|(_, raw)| raw == data));
        }
        2 => {
            let Some(object) = mend(data, Codec::Zstd) else { return };
            let _ = unseal(&object, &none);
        }
        3 => {
            let Some(object) = mend(data, Codec::Lz4) else { return };
            let _ = unseal(&object, &none);
        }
        4 => {
            let text = String::from_utf8_lossy(data);
            let _ = Keys::parse(&text);
            let Ok(keys) = Keys::parse(&"7f".repeat(32)) else { return };
            let Some(key) = keys.newest() else { return };
            assert!(key.decrypt(b"bound", data).is_none(), "nobody finds a tag by chance");
            let Ok(mut frame) = key.encrypt(b"bound", data) else { return };
            assert!(key.decrypt(b"bound", &frame).is_some_and(|plain| plain == data));
            let at = usize::from(mode) % frame.len();
            frame[at] ^= 1;
            assert!(key.decrypt(b"bound", &frame).is_none());
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
            if let Some(number) = turn_of_path(text) {
                assert_eq!(turn_of_path(&turn_path(number)), Some(number));
            }
            if let Some(name) = FileName::parse(text) {
                assert_eq!(name.as_str(), text);
            }
        }
    }
});
