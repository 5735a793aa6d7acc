//! `kingpost restore`: a data directory from a backup and the archived WAL.
//!
//! The control file gets its name last: until then no server starts in the directory.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use archive::{BackupId, BackupPart};
use config::Config;
use process::{Failure, postgresql, terminal};
use watermark::Lsn;

use crate::args::RestoreArgs;
use crate::branch::{self, PointFound, Target};
use crate::catalog::{Catalog, PartReader};
use crate::chain::Chains;
use crate::join::{self, Join};
use crate::manifest::Manifest;
use crate::record::{Record, Stream};
use crate::unpack::{CONTROL, MANIFEST, UNFINISHED, unpack};
use crate::{recovery, server, size};

/// File that says why no server starts in the directory of a restore that was killed.
const MARK: &str = "RESTORE_IS_UNFINISHED";

/// A choice of backup and timeline.
struct Plan {
    /// The backup, last, behind those that it needs.
    chain: Vec<Record>,
    timeline: u32,
    /// Start of the last archived record, for a position that is its end.
    last_record: Option<Lsn>,
}

/// Restores.
pub(crate) fn restore(config: &Config, args: &RestoreArgs) -> Result<(), Failure> {
    let to = std::path::absolute(&args.to).map_err(|error| Failure::path("use", &args.to, &error))?;
    if to.to_str().is_none_or(|path| path.contains(['\n', '\r'])) {
        return Err(Failure::config("--to: a path of UTF-8 without line feeds is needed"));
    }
    must_be_empty(&to)?;
    if args.verify {
        server::may_start(&to)?;
    }
    let runtime = process::control_runtime()?;
    let (plan, catalog) = runtime.block_on(async {
        let catalog = Catalog::attach(&config.relay.archive).await?;
        Ok::<_, Failure>((plan(&catalog, args).await?, catalog))
    })?;
    let Plan { chain, timeline, last_record } = &plan;
    let Some(record) = chain.last() else { return Ok(()) };
    let find = |program, purpose: &str| {
        let found = postgresql::find_program(args.pg_bin.as_deref(), record.major(), program);
        found.map_err(|failure| Failure { what: format!("{purpose}: {}", failure.what), ..failure })
    };
    let programs = args.verify.then(|| find("postgres", "--verify")).transpose()?;
    let purpose = format!("the backup {} is incremental", record.id);
    let combine = (chain.len() > 1).then(|| find(join::PROGRAM, &purpose)).transpose()?;
    let of_chain = match chain.len() {
        1 => String::new(),
        backups => format!(", which is joined from {backups} backups"),
    };
    terminal::note(format_args!(
        "restoring {} on timeline {timeline} to {}, from the backup {} of {}{of_chain}",
        args.at,
        to.display(),
        record.id,
        size(chain.iter().map(Record::bytes).sum())
    ));
    let program = std::env::current_exe().map_err(|error| {
        Failure::environment(format!("cannot find this program's path for restore_command: {error}"))
    })?;
    let config_path = std::path::absolute(&args.config.config);
    let config_path = config_path.map_err(|error| Failure::path("use", &args.config.config, &error))?;
    let action = if args.verify { "promote" } else { &args.then };
    let command = recovery::restore_command(&program, &config_path, args.standby);
    let mut settings = match args.standby {
        true => recovery::standby_settings(&command),
        false => recovery::settings(&args.at, *timeline, args.before, action, &command),
    };
    if let Some(last_record) = last_record {
        recovery::end_with(&mut settings, *last_record);
    }
    let places = places(record, &to, args)?;
    begin(&to)?;
    // Each is opened when its turn comes: a reader reads ahead.
    let readers = |record: &Record| {
        let _inside = runtime.enter();
        readers(&catalog, record)
    };
    match combine {
        None => {
            let directories: Vec<_> = places.iter().map(|place| (place.oid, place.directory.clone())).collect();
            unpack_into(record, readers(record)?, &to, &directories)?;
        }
        Some(installation) => {
            let program = installation.program(join::PROGRAM);
            let mut join = Join::begin(&program, &to)?;
            for record in chain {
                terminal::note(format_args!("unpacking the backup {} of {}", record.id, size(record.bytes())));
                join.unpack(record, readers(record)?, &places)?;
            }
            join.finish(record.major())?;
        }
    }
    complete(record, &to, &places, &settings, args.standby)?;
    for Place { oid, location, directory } in &places {
        terminal::note(format_args!("tablespace {oid}, which was in {location}, is in {}", directory.display()));
    }
    if args.standby {
        terminal::line(format_args!(
            "restored to {} as a standby: set primary_conninfo, and start the server",
            to.display()
        ));
        return Ok(());
    }
    let Some(programs) = programs else {
        terminal::line(format_args!(
            "restored to {}: start the server, which recovers up to {} and then: {action}",
            to.display(),
            args.at
        ));
        return Ok(());
    };
    runtime.block_on(server::verify(&programs.bin, &to, args))
}

/// Chooses the timeline and the backup, and checks that the archive has the WAL between them and the moment.
async fn plan(catalog: &Catalog, args: &RestoreArgs) -> Result<Plan, Failure> {
    let records = catalog.records().await?;
    let timelines = catalog.timelines().await?;
    let sides = match (&args.at, args.timeline) {
        (Target::Latest, _) | (_, Some(_)) => Vec::new(),
        _ => catalog.sides(&timelines).await?,
    };
    let failed = |error: branch::ChoiceError| Failure::runtime(error.to_string());
    let given = args.backup.as_deref();
    let chains = Chains::new(&records);
    // Of a backup that the user names, the error says what its chain lacks.
    let usable = |record: &&Record| given.is_some() || chains.of(record).is_ok();
    let usable: Vec<Record> = records.iter().filter(usable).cloned().collect();
    let point = match &args.at {
        Target::Name(name) => {
            terminal::note(format_args!("searching the archived WAL for {}", args.at));
            let way = branch::main_way(&timelines, args.timeline).map_err(failed)?;
            catalog.point(&usable, &timelines, name, way, given).await?
        }
        _ => PointFound::NotAsked,
    };
    let (timeline, point) = branch::timeline(&timelines, &sides, &args.at, point, args.timeline).map_err(failed)?;
    let record = branch::backup(&usable, &timelines, &args.at, point, timeline, given).map_err(failed)?;
    let chain = chains.of(record).map_err(|error| {
        Failure::runtime(error.to_string()).advise("`kingpost backup list` shows the backups that can be restored")
    })?;
    let (reach, on) = catalog.reach_along(&timelines, record.start, timeline).await?;
    let needed = match (&args.at, point) {
        (Target::Lsn(at), _) => record.end.lsn.max(*at),
        (_, PointFound::At(at)) => record.end.lsn.max(at),
        _ => record.end.lsn,
    };
    if reach < needed {
        return Err(Failure::runtime(format!(
            "the archive {} has the WAL from the backup {} on only up to {reach} on timeline {on}, and {needed} is needed",
            catalog.name(),
            record.id
        )));
    }
    let last_record = match args.at {
        Target::Lsn(at) if at == reach => catalog.last_record(on, at).await?,
        _ => None,
    };
    Ok(Plan { chain: chain.into_iter().cloned().collect(), timeline, last_record })
}

/// Readers of all parts of a backup: the manifest first.
pub(crate) struct Readers {
    manifest: PartReader,
    streams: Vec<(Stream, PartReader)>,
}

fn id_of(record: &Record) -> Result<BackupId, Failure> {
    record.backup_id().ok_or_else(|| Failure::runtime(format!("{:?} is no name of a backup", record.id)))
}

/// Opens the manifest of a backup.
pub(crate) fn manifest_of(catalog: &Catalog, record: &Record) -> Result<PartReader, Failure> {
    let id = id_of(record)?;
    if record.manifest > crate::manifest::LARGEST {
        return Err(Failure::runtime(format!("the manifest of the backup {id} has {} bytes", record.manifest)));
    }
    Ok(catalog.read(&id, BackupPart::Manifest, record.manifest))
}

/// Opens all parts of a backup. Each reads only a little ahead.
pub(crate) fn readers(catalog: &Catalog, record: &Record) -> Result<Readers, Failure> {
    let id = id_of(record)?;
    let stream = |(index, stream): (usize, &Stream)| {
        let part = BackupPart::Stream(u16::try_from(index).unwrap_or(u16::MAX));
        (stream.clone(), catalog.read(&id, part, stream.bytes))
    };
    Ok(Readers {
        manifest: manifest_of(catalog, record)?,
        streams: record.streams.iter().enumerate().map(stream).collect(),
    })
}

/// A tablespace of the restored server.
pub(crate) struct Place {
    pub(crate) oid: u32,
    /// Location on the server of the backup.
    location: String,
    pub(crate) directory: PathBuf,
}

/// Returns the places of the tablespaces.
fn places(record: &Record, to: &Path, args: &RestoreArgs) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for stream in &record.streams {
        let (Some(oid), Some(location)) = (stream.oid, &stream.location) else { continue };
        let directory = recovery::tablespace(to, oid, location, &args.tablespaces);
        if !directory.starts_with(to) {
            must_be_empty(&directory)?;
        }
        places.push(Place { oid, location: location.clone(), directory });
    }
    let is_there =
        |old: &String| places.iter().any(|place| place.location.trim_end_matches('/') == old.trim_end_matches('/'));
    match args.tablespaces.iter().find(|(old, _)| !is_there(old)) {
        None => Ok(places),
        Some((old, _)) => {
            let known: Vec<&str> = places.iter().map(|place| place.location.as_str()).collect();
            Err(Failure::config(format!("--tablespace: the backup has none in {old}; it has: {}", known.join(", "))))
        }
    }
}

fn must_be_empty(path: &Path) -> Result<(), Failure> {
    match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Failure::path("use", path, &error)),
        Ok(mut entries) => {
            if entries.next().is_none() {
                return Ok(());
            }
            let failure = Failure::environment(format!("{} is not empty: nothing is restored over it", path.display()));
            Err(if path.join(MARK).exists() {
                failure.advise("it is what a restore left that was killed: remove it, and restore again")
            } else {
                failure
            })
        }
    }
}

pub(crate) fn make(path: &Path) -> Result<(), Failure> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    let made = made.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)));
    made.map_err(|error| Failure::path("make", path, &error))
}

fn write(path: &Path, text: &[u8]) -> Result<(), Failure> {
    let written = fs::write(path, text).and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o600)));
    written.map_err(|error| Failure::path("write", path, &error))
}

/// Reads all parts, and compares them with the manifest; returns the manifest and the number of its files. `to`: the directory of a stream, None to
/// compare only.
pub(crate) fn read_all(readers: Readers, to: impl Fn(&Stream) -> Option<PathBuf>) -> Result<(Vec<u8>, usize), String> {
    let Readers { manifest: mut reader, streams } = readers;
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(|error| format!("cannot read the manifest: {error}"))?;
    let mut manifest = Manifest::parse(&bytes).map_err(|error| error.to_string())?;
    for (stream, mut reader) in streams {
        let (prefix, name) = match stream.oid {
            None => (String::new(), "the data directory".to_owned()),
            Some(oid) => (format!("pg_tblspc/{oid}/"), format!("tablespace {oid}")),
        };
        let done = unpack(&mut reader, &prefix, to(&stream).as_deref(), &mut manifest);
        done.map_err(|error| format!("{name}: {error}"))?;
        // What is behind the last entry is checked, too.
        io::copy(&mut reader, &mut io::sink()).map_err(|error| format!("{name}: {error}"))?;
    }
    let files = manifest.finish().map_err(|error| error.to_string())?;
    Ok((bytes, files))
}

/// Makes the new directory, with a mark that says why no server starts in it.
fn begin(to: &Path) -> Result<(), Failure> {
    make(to)?;
    write(&to.join(MARK), b"A restore into this directory was not completed, and no server starts in it.\nRemove the directory, and restore again.\n")
}

/// Unpacks a backup, and compares it with its manifest. `tablespaces`: identifiers and directories.
pub(crate) fn unpack_into(
    record: &Record,
    readers: Readers,
    to: &Path,
    tablespaces: &[(u32, PathBuf)],
) -> Result<(), Failure> {
    make(to)?;
    for (_, directory) in tablespaces {
        make(directory)?;
    }
    let directory = |stream: &Stream| match stream.oid {
        None => Some(to.to_owned()),
        Some(oid) => tablespaces.iter().find(|(of, _)| *of == oid).map(|(_, directory)| directory.clone()),
    };
    let (manifest, files) = read_all(readers, directory).map_err(|why| {
        Failure::runtime(format!("cannot restore the backup {} to {}: {why}", record.id, to.display()))
            .advise("no server starts in that directory; `kingpost backup list` shows earlier backups")
    })?;
    write(&to.join(MANIFEST), &manifest)?;
    terminal::note(format_args!("{files} files are as in the server's manifest"));
    Ok(())
}

/// Writes the files of the recovery, makes everything durable, and gives the control file its name.
fn complete(
    record: &Record,
    to: &Path,
    places: &[Place],
    settings: &[(&'static str, String)],
    is_standby: bool,
) -> Result<(), Failure> {
    if !to.join("backup_label").is_file() {
        return Err(Failure::runtime(format!(
            "the backup {} has no backup_label: a recovery would not be complete",
            record.id
        )));
    }
    let auto = to.join("postgresql.auto.conf");
    let before = match fs::read_to_string(&auto) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::path("read", &auto, &error)),
    };
    write(&auto, recovery::auto_conf(&before, settings).as_bytes())?;
    write(&to.join(if is_standby { "standby.signal" } else { "recovery.signal" }), b"")?;
    if !to.join("postgresql.conf").exists() {
        write(&to.join("postgresql.conf"), recovery::minimal_conf(record).as_bytes())?;
    }
    if !to.join("pg_hba.conf").exists() {
        write(&to.join("pg_hba.conf"), b"# Made by kingpost restore: the backup has none.\nlocal all all peer\n")?;
    }
    make(&to.join("pg_wal"))?;
    make(&to.join("pg_tblspc"))?;
    if !places.is_empty() {
        let map: Vec<(u32, PathBuf)> = places.iter().map(|place| (place.oid, place.directory.clone())).collect();
        write(&to.join("tablespace_map"), recovery::tablespace_map(&map).as_bytes())?;
        for (oid, place) in &map {
            let link = to.join("pg_tblspc").join(oid.to_string());
            // A join of a chain has made it.
            if !link.is_symlink() {
                std::os::unix::fs::symlink(place, &link).map_err(|error| Failure::path("make", &link, &error))?;
            }
        }
    }
    for path in places.iter().map(|place| place.directory.as_path()).chain([to]) {
        sync(path)?;
    }
    let (from, control) = (to.join(UNFINISHED), to.join(CONTROL));
    let named = fs::remove_file(to.join(MARK)).and_then(|()| fs::rename(&from, &control));
    named.map_err(|error| Failure::path("name", &control, &error))?;
    sync(to)
}

/// Makes the file system of a path durable.
fn sync(path: &Path) -> Result<(), Failure> {
    let synced = fs::File::open(path).and_then(|file| rustix::fs::syncfs(&file).map_err(io::Error::from));
    synced.map_err(|error| Failure::path("make durable what is in", path, &error))
}
