//! Small logs for tests.

use crate::MAGIC;
use crate::event::{CHECKSUM, HEADER, Header, Kind};

pub(crate) struct Log {
    pub(crate) bytes: Vec<u8>,
    checksum: bool,
}

impl Log {
    pub(crate) fn new(checksum: bool) -> Log {
        let mut log = Log { bytes: MAGIC.to_vec(), checksum: true };
        let mut body = vec![4, 0];
        let mut version = b"10.11.6-MariaDB-log".to_vec();
        version.resize(50, 0);
        body.extend_from_slice(&version);
        body.extend_from_slice(&[0; 4]);
        body.push(HEADER as u8);
        body.extend_from_slice(&[56; 100]);
        body.push(u8::from(checksum));
        log.push(Kind::FORMAT, 0, &body);
        log.checksum = checksum;
        log.push(Kind::MARIADB_GTID_LIST, 0, &[0; 4]);
        log
    }

    pub(crate) fn push(&mut self, kind: Kind, flags: u16, body: &[u8]) {
        let sum = if self.checksum { CHECKSUM } else { 0 };
        let length = (HEADER + body.len() + sum) as u32;
        let end = self.bytes.len() as u32 + length;
        let mut event = Header { timestamp: 1, kind, server_id: 1, length, end, flags }.encode().to_vec();
        event.extend_from_slice(body);
        if self.checksum {
            let sum = crc32fast::hash(&event);
            event.extend_from_slice(&sum.to_le_bytes());
        }
        self.bytes.extend_from_slice(&event);
    }

    pub(crate) fn transaction(mut self, domain: u32, sequence: u64, rows: &[u8]) -> Log {
        let mut body = sequence.to_le_bytes().to_vec();
        body.extend_from_slice(&domain.to_le_bytes());
        body.extend_from_slice(&[0; 7]);
        self.push(Kind::MARIADB_GTID, 0, &body);
        self.push(Kind(23), 0, rows);
        self.push(Kind::XID, 0, &[0; 8]);
        self
    }
}
