//! Base backups: messages of the server, records, manifests, tar streams, histories, moments.

#![cfg_attr(fuzzing, no_main)]

use archive::{BackupId, FileName};
use kingpost_fuzz::fuzz_target;
use wire::replication::{BackupMessage, Rows};

fuzz_target!(|data: &[u8]| {
    let _ = BackupMessage::read(data);
    if let Some(row) = Rows::read(data) {
        let _ = (row.backup_point(), row.backup_tablespace());
    }
    if let Some((id, part)) = std::str::from_utf8(data).ok().and_then(FileName::parse_backup) {
        assert_eq!(BackupId::parse(id.as_str()), Some(id.clone()));
        assert_eq!(FileName::parse_backup(FileName::of_backup(&id, part).as_str()), Some((id, part)));
    }
    backup::read_anything(data);
});
