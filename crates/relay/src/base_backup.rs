//! `BASE_BACKUP` over a replication connection: the driver of [`wire::replication::BackupOptions`]. Blocking.

use std::sync::Arc;
use std::time::Duration;

use watermark::Lsn;
use wire::message;
use wire::replication::{BackupMessage, BackupOptions, BackupPoint, BackupTablespace, Rows};

use crate::ask::{Role, identify, role, show};
use crate::error::{Cause, Peer, SessionError};
use crate::session::{Login, STEP, Session};
use crate::upstream::parse_size;

/// Longest time until the server has done the checkpoint that a backup begins with.
const CHECKPOINT: Duration = Duration::from_secs(3600);
/// Longest time without a message.
const SILENCE: Duration = Duration::from_secs(600);
/// Bytes of a manifest in one message.
const UPLOADED: usize = 64 << 10;
/// Most bytes of notices, reports and results beside the messages that are waited for. A server sends some hundreds.
const MOST_ASIDE: usize = 1 << 20;
/// Most tablespaces of a cluster.
const MOST_TABLESPACES: usize = 4096;

/// Address and login of a server.
#[derive(Debug, Clone, Copy)]
pub struct ServerAccess<'a> {
    /// Configured name, for errors.
    pub name: &'a str,
    /// `host:port`, or the path of a Unix socket.
    pub address: &'a str,
    /// A user with the REPLICATION attribute.
    pub user: &'a str,
    /// Password of the user.
    pub password: Option<&'a str>,
    /// None for a connection without TLS.
    pub connector: Option<&'a Arc<tls::Connector>>,
}

/// A connection to a server that can give a base backup.
pub struct BackupSession {
    session: Session,
    /// Identifier of the cluster.
    pub system: u64,
    /// Segment size in bytes.
    pub segment_size: u64,
    /// Timeline of the server.
    pub timeline: u32,
    /// End of the WAL that the server had flushed at the login.
    pub position: Lsn,
    /// True for a server in recovery.
    pub is_standby: bool,
}

/// One piece of a base backup, in the order of arrival.
#[derive(Debug, PartialEq, Eq)]
pub enum BackupEvent {
    /// The archive of a tablespace begins: its index in [`Begun::tablespaces`].
    Archive(usize),
    /// The manifest begins.
    Manifest,
    /// Bytes of the archive or of the manifest.
    Data(Vec<u8>),
    /// End of the backup. It needs the WAL up to this position.
    End(BackupPoint),
}

/// Start of a base backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// Position of the checkpoint's redo record: WAL is needed from here on.
    pub start: BackupPoint,
    /// The tablespaces; the data directory is one without a place.
    pub tablespaces: Vec<BackupTablespace>,
}

/// A running base backup.
pub struct BaseBackup {
    session: Session,
    begun: Begun,
    /// True for one copy with typed messages (15 and later).
    typed: bool,
    /// Number of copies that have begun, before 15.
    copies: usize,
    in_copy: bool,
}

impl BackupSession {
    /// Connects to a server, and queries its identity.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or is a relay.
    pub fn open(server: &ServerAccess<'_>) -> Result<BackupSession, SessionError> {
        let login = Login {
            peer: Peer::Server(server.name.into()),
            address: server.address,
            user: server.user,
            password: server.password,
            application_name: "kingpost backup",
            connector: server.connector.cloned(),
            host_timeout: Duration::from_secs(60),
            step: STEP,
        };
        let mut session = Session::open::<SessionError>(&login, |_| Ok(()))?;
        if session.is_relay() {
            return Err(session.failed(Cause::Protocol("a relay has no data files: name a server".into())));
        }
        let remote = identify(&mut session)?;
        let shown = show(&mut session, "wal_segment_size")?;
        let segment_size = parse_size(&shown)
            .ok_or_else(|| session.failed(Cause::Protocol(format!("wal_segment_size is {shown:?}"))))?;
        let is_standby = role(&mut session)? == Role::Follower;
        Ok(BackupSession {
            session,
            system: remote.system,
            segment_size,
            timeline: remote.timeline,
            position: Lsn(remote.position),
            is_standby,
        })
    }

    /// Returns the version as the server reported it.
    #[must_use]
    pub fn server_version(&self) -> &str {
        self.session.server_version()
    }

    /// Queries a setting.
    ///
    /// # Errors
    /// The server does not know it, or fails.
    pub fn show(&mut self, name: &str) -> Result<String, SessionError> {
        show(&mut self.session, name)
    }

    /// Returns the major version of the server.
    #[must_use]
    pub fn major(&self) -> u32 {
        crate::shared::major(self.session.server_version())
    }

    /// Sends the manifest of an earlier backup, to which the backup that is started next is incremental.
    ///
    /// # Errors
    /// The server refuses the manifest, or fails.
    pub fn upload_manifest(&mut self, manifest: &[u8]) -> Result<(), SessionError> {
        self.session.set_patience(SILENCE, SILENCE)?;
        upload(&mut self.session, manifest).map_err(|cause| self.session.failed(cause))
    }

    /// Starts a base backup; returns after the server's checkpoint.
    ///
    /// # Errors
    /// The server refuses, or fails.
    pub fn start(mut self, options: &BackupOptions) -> Result<BaseBackup, SessionError> {
        let typed = self.major() >= 15;
        let command = options.command(self.major());
        self.session.set_patience(CHECKPOINT, SILENCE)?;
        match begin(&mut self.session, &command) {
            Ok(begun) => {
                self.session.set_patience(SILENCE, SILENCE)?;
                Ok(BaseBackup { session: self.session, begun, typed, copies: 0, in_copy: false })
            }
            Err(cause) => Err(self.session.failed(cause)),
        }
    }
}

fn upload(session: &mut Session, manifest: &[u8]) -> Result<(), Cause> {
    const COMMAND: &str = "UPLOAD_MANIFEST";
    session.send(|out| message::query(out, COMMAND))?;
    wait_for(session, b'G', COMMAND)?;
    for piece in manifest.chunks(UPLOADED) {
        session.send(|out| message::message(out, b'd', |out| out.extend_from_slice(piece)))?;
    }
    session.send(|out| message::empty(out, b'c'))?;
    wait_for(session, b'Z', COMMAND)
}

/// Reads messages up to one of this kind.
fn wait_for(session: &mut Session, tag: u8, command: &str) -> Result<(), Cause> {
    let mut aside = Aside::default();
    loop {
        let (got, data) = session.message(command)?;
        if got == tag {
            return Ok(());
        }
        aside.add(&data, command)?;
    }
}

/// The bytes of messages that were not waited for.
#[derive(Default)]
struct Aside(usize);

impl Aside {
    fn add(&mut self, data: &[u8], command: &str) -> Result<(), Cause> {
        self.0 += data.len() + wire::HEADER;
        match self.0 {
            0..=MOST_ASIDE => Ok(()),
            _ => Err(Cause::Protocol(format!("more than {MOST_ASIDE} bytes beside the answer to {command}"))),
        }
    }
}

fn begin(session: &mut Session, command: &str) -> Result<Begun, Cause> {
    let wrong = |what: &str| Cause::Protocol(format!("unexpected {what}"));
    session.send(|out| message::query(out, command))?;
    let (mut start, mut tablespaces) = (None, None::<Vec<BackupTablespace>>);
    let mut aside = Aside::default();
    loop {
        let (tag, data) = session.message("BASE_BACKUP")?;
        if tablespaces.is_none() || tag != b'D' {
            aside.add(&data, "BASE_BACKUP")?;
        }
        match tag {
            b'T' if start.is_some() => tablespaces = Some(Vec::new()),
            b'D' => {
                let row = Rows::read(&data).ok_or_else(|| wrong("row"))?;
                match &mut tablespaces {
                    None => start = Some(row.backup_point().ok_or_else(|| wrong("start of a backup"))?),
                    Some(tablespaces) if tablespaces.len() < MOST_TABLESPACES => {
                        tablespaces.push(row.backup_tablespace().ok_or_else(|| wrong("tablespace of a backup"))?);
                    }
                    Some(_) => return Err(Cause::Protocol(format!("more than {MOST_TABLESPACES} tablespaces"))),
                }
            }
            b'C' => {
                if let (Some(start), Some(tablespaces)) = (start, tablespaces.take()) {
                    return Ok(Begun { start, tablespaces });
                }
            }
            b'T' | b'N' | b'S' => {}
            b'Z' => return Err(wrong("end of a backup that has not begun")),
            _ => return Err(wrong(&format!("message {:?} before a backup", char::from(tag)))),
        }
    }
}

impl BaseBackup {
    /// Returns the start and the tablespaces.
    #[must_use]
    pub fn begun(&self) -> &Begun {
        &self.begun
    }

    /// Returns the next piece; None after the end.
    ///
    /// # Errors
    /// The server fails, ends the backup, or closes the connection.
    pub fn event(&mut self) -> Result<Option<BackupEvent>, SessionError> {
        self.next_event().map_err(|cause| self.session.failed(cause))
    }

    fn next_event(&mut self) -> Result<Option<BackupEvent>, Cause> {
        let wrong = |what: &str| Cause::Protocol(format!("unexpected {what} in a backup"));
        loop {
            let (tag, mut data) = self.session.message("BASE_BACKUP")?;
            match tag {
                b'H' => {
                    self.in_copy = true;
                    if self.typed {
                        continue;
                    }
                    self.copies += 1;
                    let is_archive = self.copies <= self.begun.tablespaces.len();
                    return match self.copies - self.begun.tablespaces.len().min(self.copies) {
                        _ if is_archive => Ok(Some(BackupEvent::Archive(self.copies - 1))),
                        1 => Ok(Some(BackupEvent::Manifest)),
                        _ => Err(wrong("copy")),
                    };
                }
                b'd' if self.in_copy && !self.typed => return Ok(Some(BackupEvent::Data(data))),
                b'd' if self.in_copy => match BackupMessage::read(&data).ok_or_else(|| wrong("message"))? {
                    BackupMessage::Archive(name) => {
                        let index = self.archive(name).ok_or_else(|| wrong(&format!("archive {name:?}")))?;
                        return Ok(Some(BackupEvent::Archive(index)));
                    }
                    BackupMessage::Manifest => return Ok(Some(BackupEvent::Manifest)),
                    BackupMessage::Data(_) => {
                        data.remove(0);
                        return Ok(Some(BackupEvent::Data(data)));
                    }
                    BackupMessage::Progress => {}
                },
                b'c' => self.in_copy = false,
                b'D' if !self.in_copy => {
                    let end = Rows::read(&data).and_then(|row| row.backup_point()).ok_or_else(|| wrong("row"))?;
                    return Ok(Some(BackupEvent::End(end)));
                }
                b'T' | b'C' | b'N' | b'S' => {}
                b'Z' => return Ok(None),
                _ => return Err(wrong(&format!("message {:?}", char::from(tag)))),
            }
        }
    }

    /// Returns the index of the tablespace of an archive's name, `base.tar` or `OID.tar`.
    fn archive(&self, name: &str) -> Option<usize> {
        let oid = match name.strip_suffix(".tar")? {
            "base" => None,
            digits => Some(digits.parse::<u32>().ok()?),
        };
        let is = |of: &BackupTablespace| of.place.as_ref().map(|(oid, _)| *oid) == oid;
        self.begun.tablespaces.iter().position(is)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    /// A server that accepts a login, and answers everything with notices without end.
    fn endless() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            assert!(socket.read(&mut buffer).unwrap() > 0);
            let mut out = Vec::new();
            message::authentication_ok(&mut out);
            message::ready(&mut out, message::Status::Idle);
            socket.write_all(&out).unwrap();
            assert!(socket.read(&mut buffer).unwrap() > 0);
            let mut notice = Vec::new();
            message::message(&mut notice, b'N', |out| out.extend_from_slice(&[b'x'; 1000]));
            // Until the client leaves.
            while socket.write_all(&notice).is_ok() {}
        });
        address
    }

    #[test]
    fn notices_without_end_are_an_error() {
        for command in ["UPLOAD_MANIFEST", "BASE_BACKUP"] {
            let address = endless();
            let login = Login {
                peer: Peer::Server("n0".into()),
                address: &address,
                user: "u",
                password: None,
                application_name: "test",
                connector: None,
                host_timeout: Duration::from_secs(60),
                step: STEP,
            };
            let mut session = Session::open::<SessionError>(&login, |_| Ok(())).unwrap();
            let failed = match command {
                "UPLOAD_MANIFEST" => upload(&mut session, b"{}").map(drop),
                _ => begin(&mut session, command).map(drop),
            };
            let error = failed.map_err(|cause| session.failed(cause)).unwrap_err().to_string();
            assert!(error.contains(&format!("bytes beside the answer to {command}")), "{error}");
        }
    }
}
