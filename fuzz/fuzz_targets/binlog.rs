//! Binary logs as files and streams, GTIDs, and the messages of MySQL's protocol.

#![cfg_attr(fuzzing, no_main)]

use binlog::event::{CHECKSUM, Checksum, HEADER};
use binlog::gtid::{mariadb, mysql};
use binlog::protocol::login::{ClientHello, Greeting};
use binlog::protocol::{Messages, command::Command, reply, text::Statement};
use binlog::{Groups, MAGIC, Walker, Within};
use kingpost_fuzz::fuzz_target;

/// Gives each event a valid length, position and checksum, so that its contents are parsed.
fn mend(data: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    let format = {
        let mut body = vec![4, 0];
        body.resize(52 + 4, b'1');
        body.push(HEADER as u8);
        body.extend_from_slice(&[1, 0, 0, 0, 0]);
        body
    };
    let mut push = |kind: u8, body: &[u8]| {
        let length = (HEADER + body.len() + CHECKSUM) as u32;
        let end = file.len() as u32 + length;
        let mut event = vec![1, 0, 0, 0, kind, 7, 0, 0, 0];
        event.extend_from_slice(&length.to_le_bytes());
        event.extend_from_slice(&end.to_le_bytes());
        event.extend_from_slice(&[0, 0]);
        event.extend_from_slice(body);
        let sum = crc32fast::hash(&event);
        event.extend_from_slice(&sum.to_le_bytes());
        file.extend_from_slice(&event);
    };
    push(15, &format[..format.len() - CHECKSUM]);
    for part in data.chunks(40) {
        push(part[0], &part[1..]);
    }
    file
}

fn walk(mut walker: Walker, bytes: &[u8], pieces: usize) {
    let mut groups = Groups::default();
    for mut piece in bytes.chunks(pieces) {
        loop {
            let before = walker.offset();
            match walker.advance(&mut piece) {
                Ok(Some(Within::Event(event))) => {
                    assert!(event.end() >= event.at && event.at == before);
                    let _ = groups.next(&event);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    let pieces = usize::from(mode >> 3) + 1;
    match mode & 7 {
        0 => walk(Walker::file(), data, pieces),
        1 => walk(Walker::stream(4, Checksum::Crc32), data, pieces),
        2 => walk(Walker::file(), &mend(data), pieces),
        3 => {
            if let Ok(set) = mysql::Set::decode(data) {
                assert_eq!(mysql::Set::decode(&set.encode()).as_ref(), Ok(&set));
                assert_eq!(set.to_string().parse::<mysql::Set>().as_ref(), Ok(&set));
            }
        }
        4 => {
            let mut messages = Messages::new(1 << 16);
            for mut piece in data.chunks(pieces) {
                while let Ok(Some((_, message))) = messages.next(&mut piece) {
                    let _ = (Command::parse(&message), Greeting::parse(&message), ClientHello::parse(&message));
                }
            }
        }
        5 => {
            let mut answer = reply::ReplyParser::default();
            for message in data.chunks(pieces) {
                if answer.received(message).is_err() {
                    return;
                }
            }
        }
        _ => {
            let Ok(text) = std::str::from_utf8(data) else { return };
            let _ = Statement::parse(text);
            if let Ok(state) = text.parse::<mariadb::State>() {
                assert_eq!(state.to_string().parse::<mariadb::State>().as_ref(), Ok(&state));
            }
            if let Ok(set) = text.parse::<mysql::Set>() {
                assert_eq!(mysql::Set::decode(&set.encode()).as_ref(), Ok(&set));
            }
        }
    }
});
