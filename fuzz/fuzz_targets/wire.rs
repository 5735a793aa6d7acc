//! Frames, payload fields, startup packets and the replication protocol, from arbitrary bytes.
#![cfg_attr(fuzzing, no_main)]

use kingpost_fuzz::fuzz_target;
use wire::frontend::Message;
use wire::replication::{Command, Flushed, Rows, WalStream, read_reply};
use wire::{Frame, HEADER, payload, startup};

fuzz_target!(|bytes: &[u8]| {
    // A packet before the first message.
    if let Ok(Some((packet, used))) = startup::read(bytes) {
        assert!(used <= bytes.len() && used <= startup::MAX_STARTUP);
        if let wire::Startup::Login { parameters, .. } = packet {
            for (name, value) in startup::parameters(parameters).flatten() {
                assert!(!name.is_empty());
                if let Ok(value) = std::str::from_utf8(value) {
                    let _ = startup::options(value);
                }
            }
        }
    }
    // A server's stream, a standby's replies, a command.
    let (mut stream, mut used) = (WalStream::default(), 0);
    while let Ok(Some((_, n))) = stream.next(&bytes[used..]) {
        assert!(n > 0);
        used += n;
        assert!(used <= bytes.len());
    }
    let _ = read_reply(bytes);
    let _ = Flushed::read(bytes);
    let _ = Rows::read(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = Command::parse(text);
    }
    // A run of messages: each complete one is consumed, and nothing is read beyond it.
    let mut rest = bytes;
    while let Ok(Some(frame)) = Frame::read(rest) {
        assert_eq!(frame.total(), frame.payload + HEADER);
        let part = &rest[..frame.total().min(rest.len())];
        if let Ok(Some(message)) = Message::read(frame, part)
            && let Some(less) = part.len().checked_sub(1).filter(|less| *less >= HEADER)
            && let Ok(Some(beginning)) = Message::read(frame, &part[..less])
        {
            assert_eq!(std::mem::discriminant(&message), std::mem::discriminant(&beginning));
        }
        let Some(data) = rest.get(HEADER..frame.total()) else { break };
        if let Some((name, text, types)) = payload::parse(data) {
            assert_eq!(name.len() + text.len() + types.len() + 2, data.len());
        }
        if let Some((portal, statement, rest)) = payload::bind(data) {
            assert_eq!(portal.len() + statement.len() + rest.len() + 2, data.len());
        }
        let _ = payload::named(data);
        let _ = payload::sqlstate(data);
        let _ = payload::error_field(data, b'M');
        let _ = payload::parameter_status(data);
        let _ = payload::backend_key(data);
        let _ = payload::authentication(data);
        let _ = payload::sasl_initial(data);
        let _ = payload::has_mechanism(data, b"SCRAM-SHA-256");
        rest = &rest[frame.total()..];
    }
});
