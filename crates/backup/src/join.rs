//! The join of a chain: each backup is unpacked aside, and the server's `pg_combinebackup` makes one of them.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use process::{Failure, terminal};

use crate::record::Record;
use crate::restore::{Place, Readers, make, unpack_into};
use crate::server::last_lines;
use crate::unpack::{CONTROL, UNFINISHED, compare};

/// The server's program.
pub(crate) const PROGRAM: &str = "pg_combinebackup";
/// Directory of the unpacked backups, in the new directory: on its file system, and removed with it after a restore that was killed.
const ASIDE: &str = "unfinished";
/// First major version whose program links files in place of copying them.
const LINKS_SINCE: u32 = 18;

/// A chain on its way to one data directory.
pub(crate) struct Join<'a> {
    program: &'a Path,
    to: &'a Path,
    unpacked: Vec<PathBuf>,
    /// Tablespaces of the last backup: the directory aside, and that of the restored server.
    mapped: Vec<(PathBuf, PathBuf)>,
}

impl<'a> Join<'a> {
    /// Begins a join into a directory that was made.
    pub(crate) fn begin(program: &'a Path, to: &'a Path) -> Result<Join<'a>, Failure> {
        make(&to.join(ASIDE))?;
        Ok(Join { program, to, unpacked: Vec::new(), mapped: Vec::new() })
    }

    /// Unpacks the next backup of the chain, and compares it with its manifest. `places`: the tablespaces of the restored server.
    pub(crate) fn unpack(&mut self, record: &Record, readers: Readers, places: &[Place]) -> Result<(), Failure> {
        let dir = self.to.join(ASIDE).join(self.unpacked.len().to_string());
        let aside = |oid: u32| dir.with_extension(oid.to_string());
        let tablespaces: Vec<(u32, PathBuf)> =
            record.streams.iter().filter_map(|stream| stream.oid).map(|oid| (oid, aside(oid))).collect();
        unpack_into(record, readers, &dir, &tablespaces)?;
        make(&dir.join("pg_tblspc"))?;
        for (oid, aside) in &tablespaces {
            let link = dir.join("pg_tblspc").join(oid.to_string());
            symlink(aside, &link).map_err(|error| Failure::path("make", &link, &error))?;
        }
        rename(&dir.join(UNFINISHED), &dir.join(CONTROL))?;
        let is_here = |place: &&Place| tablespaces.iter().any(|(oid, _)| *oid == place.oid);
        self.mapped = places.iter().filter(is_here).map(|place| (aside(place.oid), place.directory.clone())).collect();
        self.unpacked.push(dir);
        Ok(())
    }

    /// Joins the backups, and moves the result to its place, where its control file has the name of an unfinished restore.
    pub(crate) fn finish(self, major: u32) -> Result<(), Failure> {
        let joined = self.to.join(ASIDE).join("joined");
        let mut command = Command::new(self.program);
        // The restore makes all of it durable at its end.
        command.arg("--no-sync").arg("--output").arg(&joined).args(&self.unpacked);
        // What is aside goes afterwards, so a link is as good as a copy; another directory may be another file system.
        if major >= LINKS_SINCE && self.mapped.iter().all(|(_, place)| place.starts_with(self.to)) {
            command.arg("--link");
        }
        for (aside, place) in &self.mapped {
            let word = |path: &Path| path.display().to_string().replace('=', "\\=");
            command.arg(format!("--tablespace-mapping={}={}", word(aside), word(place)));
        }
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| Failure::path("run", self.program, &error))?;
        if !output.status.success() {
            let said = last_lines(&[output.stdout, output.stderr].concat());
            return Err(Failure::runtime(format!(
                "{} could not join {} backups ({}):\n{said}",
                self.program.display(),
                self.unpacked.len(),
                output.status
            ))
            .advise(format!(
                "no server starts in {}: remove it, and restore from an earlier backup",
                self.to.display()
            )));
        }
        let files = compare(&joined).map_err(|why| {
            Failure::runtime(format!(
                "{} made a damaged directory of {} backups: {why}",
                self.program.display(),
                self.unpacked.len()
            ))
            .advise(format!("no server starts in {}: remove it, and restore again", self.to.display()))
        })?;
        terminal::note(format_args!("{files} joined files are as in the manifest of {PROGRAM}"));
        rename(&joined.join(CONTROL), &joined.join(UNFINISHED))?;
        let entries = fs::read_dir(&joined).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        for entry in entries.map_err(|error| Failure::path("read", &joined, &error))? {
            rename(&entry.path(), &self.to.join(entry.file_name()))?;
        }
        let aside = self.to.join(ASIDE);
        fs::remove_dir_all(&aside).map_err(|error| Failure::path("remove", &aside, &error))
    }
}

fn rename(from: &Path, to: &Path) -> Result<(), Failure> {
    fs::rename(from, to).map_err(|error| Failure::path("name", to, &error))
}
