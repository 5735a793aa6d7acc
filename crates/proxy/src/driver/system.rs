//! The user at the other end of a Unix socket, for the method `peer`.

use std::collections::HashMap;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::sockopt::socket_peercred;

/// Names of the system's users, from `/etc/passwd`. The system's name service (`getpwuid`) is not used: it may query the network, which would delay
/// every client that connects.
pub(crate) struct SystemUsers {
    file: PathBuf,
    /// Identification of the file's version.
    stamp: Option<Stamp>,
    names: HashMap<u32, Arc<String>>,
}

/// Inode, length, time of change in seconds and nanoseconds.
type Stamp = (u64, u64, i64, i64);

/// Maximum number of bytes that are read of `/etc/passwd`. Users after it have no name.
const MOST_PASSWD: u64 = 16 << 20;

impl SystemUsers {
    pub(crate) fn new() -> SystemUsers {
        SystemUsers::of(Path::new("/etc/passwd"))
    }

    fn of(file: &Path) -> SystemUsers {
        SystemUsers { file: file.to_owned(), stamp: None, names: HashMap::new() }
    }

    /// Returns the name of the user at the other end of a Unix socket; `None` if the kernel or the file does not know it.
    pub(crate) fn at(&mut self, socket: BorrowedFd<'_>) -> Option<Arc<String>> {
        let uid = socket_peercred(socket).ok()?.uid.as_raw();
        self.name(uid)
    }

    /// Returns the name of a user ID. Reads the file if it has changed. An unreadable file has no names: old ones might belong to other users by now.
    fn name(&mut self, uid: u32) -> Option<Arc<String>> {
        let Ok(found) = std::fs::metadata(&self.file) else {
            *self = SystemUsers::of(&self.file);
            return None;
        };
        let stamp = (found.ino(), found.len(), found.ctime(), found.ctime_nsec());
        if self.stamp != Some(stamp) {
            let mut text = Vec::new();
            let file = std::fs::File::open(&self.file);
            let read = file.and_then(|file| file.take(MOST_PASSWD).read_to_end(&mut text));
            self.names = if read.is_ok() { names_of(&String::from_utf8_lossy(&text)) } else { HashMap::new() };
            self.stamp = read.is_ok().then_some(stamp);
        }
        self.names.get(&uid).cloned()
    }
}

/// Returns the names in lines `name:password:uid:…`, by user ID. Of several names the first one, as the system does.
fn names_of(text: &str) -> HashMap<u32, Arc<String>> {
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(uid)) = (fields.next(), fields.next(), fields.next())
            && !name.is_empty()
            && let Ok(uid) = uid.parse()
        {
            names.entry(uid).or_insert_with(|| Arc::new(name.to_owned()));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_first_name_of_a_number_counts() {
        let text =
            "root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/:\n\n+::::::\n:x:7:7::/:\nodd:x:-1:1::/:\ndave:*:1000\n";
        let mut found: Vec<_> = names_of(text).into_iter().map(|(uid, name)| (uid, name.to_string())).collect();
        found.sort();
        assert_eq!(found, [(0, "root".to_owned()), (1000, "dave".to_owned())]);
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_lost_one_names_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        let mut users = SystemUsers::of(&file);
        assert_eq!(users.name(5), None);
        std::fs::write(&file, "old:x:5:").unwrap();
        assert_eq!(users.name(5).as_deref().map(String::as_str), Some("old"));
        std::fs::write(dir.path().join("next"), "new:x:5:").unwrap();
        std::fs::rename(dir.path().join("next"), &file).unwrap();
        assert_eq!(users.name(5).as_deref().map(String::as_str), Some("new"));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(users.name(5), None);
    }

    #[test]
    fn the_kernel_says_who_is_at_the_other_end() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("passwd");
        std::fs::write(&file, format!("me:x:{uid}:")).unwrap();
        assert_eq!(SystemUsers::of(&file).at(ours.as_fd()).as_deref().map(String::as_str), Some("me"));
    }
}
