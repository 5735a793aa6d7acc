//! A stand-in for a TiKV cluster: real PDs, and unistore as the one store. The tests of several crates include this file, so it uses
//! one file of the harness, and no crate.
//!
//! It runs where `tests/tikv/setup` has built the programs and `KINGPOST_TESTS_TIKV=1` is set, as `make clients` does; otherwise tests
//! print `skipped` and pass.

#![allow(dead_code, unreachable_pub, reason = "each crate uses a part")]

#[path = "../harness/skipped.rs"]
mod skipped;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use self::skipped::skipped;

/// Longest time until a program is ready.
const PATIENCE: Duration = Duration::from_secs(90);
/// Number of attempts: a free port may be taken before a program listens there, and then everything starts again.
const STARTS: usize = 4;

/// The cluster, stopped on drop.
pub struct Rig {
    dir: tempfile::TempDir,
    members: Vec<Member>,
    store: Member,
    control: u16,
    tls: bool,
}

/// Files for TLS: the authority, and the servers' certificate and key.
#[derive(Clone)]
pub struct Tls {
    pub ca: PathBuf,
    pub cert: PathBuf,
    pub key: PathBuf,
}

struct Member {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    log: PathBuf,
    /// Ports for clients, and for clients over TLS.
    port: u16,
    secure: u16,
    process: Option<Child>,
}

fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// Returns the directory of the programs; None, with a message, if tests must not use them.
fn programs() -> Option<PathBuf> {
    if std::env::var("KINGPOST_TESTS_TIKV").as_deref() != Ok("1") {
        skipped("no stand-in for TiKV (tests/tikv/setup, then KINGPOST_TESTS_TIKV=1)");
        return None;
    }
    let mut setup = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    while !setup.join("tests/tikv/setup").exists() {
        assert!(setup.pop(), "tests/tikv/setup is above {}", env!("CARGO_MANIFEST_DIR"));
    }
    let output =
        Command::new(setup.join("tests/tikv/setup")).arg("--installed").output().expect("run tests/tikv/setup");
    let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() {
        skipped("tests/tikv/setup has not built the stand-in for TiKV");
        return None;
    }
    Some(directory.into())
}

impl Rig {
    /// Starts the cluster with one PD.
    pub fn start() -> Option<Rig> {
        Rig::with(1, None)
    }

    /// Starts the cluster with this number of PDs; over TLS, with client certificates.
    pub fn with(members: usize, tls: Option<Tls>) -> Option<Rig> {
        let programs = programs()?;
        for _ in 1..STARTS {
            match Rig::try_with(&programs, members, tls.clone()) {
                Err(said) if said.contains("address already in use") => {}
                started => return Some(started.unwrap_or_else(|said| panic!("{said}"))),
            }
        }
        Some(Rig::try_with(&programs, members, tls).unwrap_or_else(|said| panic!("{said}")))
    }

    fn try_with(programs: &Path, members: usize, tls: Option<Tls>) -> Result<Rig, String> {
        let dir = tempfile::Builder::new().prefix("kp-tikv-").tempdir().expect("a directory");
        let ports: Vec<[u16; 3]> = (0..members).map(|_| [port(), port(), port()]).collect();
        let peers = |n: usize| format!("pd{n}=http://127.0.0.1:{}", ports[n][1]);
        let cluster = (0..members).map(peers).collect::<Vec<_>>().join(",");
        let local = |port: u16| format!("127.0.0.1:{port}");
        let security = |arguments: &mut Vec<String>| {
            if let Some(Tls { ca, cert, key }) = &tls {
                for (flag, file) in [("-ca", ca), ("-cert", cert), ("-key", key)] {
                    arguments.extend([flag.to_owned(), file.display().to_string()]);
                }
            }
        };
        let member = |n: usize| {
            let name = format!("pd{n}");
            let [port, peer, secure] = ports[n];
            let data = dir.path().join(&name).display().to_string();
            let flags = [
                ("-name", name.clone()),
                ("-dir", data),
                ("-client", local(port)),
                ("-peer", local(peer)),
                ("-cluster", cluster.clone()),
            ];
            let mut arguments: Vec<String> =
                flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
            if tls.is_some() {
                arguments.extend(["-secure".to_owned(), local(secure)]);
                security(&mut arguments);
            }
            Member::new(&name, programs.join("pd"), arguments, dir.path(), port, secure)
        };
        let mut members: Vec<Member> = (0..members).map(member).collect();
        // They become ready together.
        members.iter_mut().for_each(Member::spawn);
        for member in &mut members {
            member.wait()?;
        }
        let (listen, control) = (port(), port());
        let known = ports.iter().map(|[port, ..]| local(*port)).collect::<Vec<_>>().join(",");
        let data = dir.path().join("store").display().to_string();
        let flags = [("-pd", known), ("-listen", local(listen)), ("-control", local(control)), ("-dir", data)];
        let mut arguments: Vec<String> = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        security(&mut arguments);
        let mut store = Member::new("store", programs.join("store"), arguments, dir.path(), listen, listen);
        store.spawn();
        store.wait()?;
        Ok(Rig { dir, members, store, control, tls: tls.is_some() })
    }

    /// Returns `host:port` of each PD.
    pub fn endpoints(&self) -> Vec<String> {
        let port = |member: &Member| if self.tls { member.secure } else { member.port };
        self.members.iter().map(|member| format!("127.0.0.1:{}", port(member))).collect()
    }

    /// Returns the store's address of a registry whose keys are below `prefix`.
    pub fn address(&self, prefix: &str) -> String {
        format!("tikv://{}/{prefix}", self.endpoints().join(","))
    }

    /// Returns the directory of all files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the leading PD, as reported by PD number 0 or the next one that answers.
    pub fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            for member in &self.members {
                let said = http(member.port, "/pd/api/v1/leader").unwrap_or_default();
                let leads = |n: &usize| said.contains(&format!("\"name\": \"{}\"", self.members[*n].name));
                if let Some(leader) = (0..self.members.len()).find(leads) {
                    return leader;
                }
            }
            assert!(began.elapsed() < PATIENCE, "no PD leads");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Suspends PD `n` by SIGSTOP: its connections stay, and it sends nothing.
    pub fn freeze_pd(&self, n: usize) {
        self.members[n].signal("STOP");
    }

    /// Resumes PD `n`.
    pub fn thaw_pd(&self, n: usize) {
        self.members[n].signal("CONT");
    }

    /// Kills PD `n`.
    pub fn kill_pd(&mut self, n: usize) {
        self.members[n].end("KILL");
    }

    /// Starts PD `n` again, with its data, and waits until it serves.
    pub fn start_pd(&mut self, n: usize) {
        self.members[n].spawn();
        self.members[n].ready();
    }

    /// Suspends the store, as [`Rig::freeze_pd`].
    pub fn freeze_store(&self) {
        self.store.signal("STOP");
    }

    /// Resumes the store.
    pub fn thaw_store(&self) {
        self.store.signal("CONT");
    }

    /// Stops the store cleanly, as unistore needs it to keep its locks, and starts it again with its data.
    pub fn restart_store(&mut self) {
        self.store.end("TERM");
        self.store.spawn();
        self.store.ready();
    }

    /// Kills the store. Unlike TiKV's, its locks are lost.
    pub fn kill_store(&mut self) {
        self.store.end("KILL");
        self.store.spawn();
        self.store.ready();
    }

    /// Makes `key` the first of a region.
    pub fn split(&self, key: &str) {
        // If a region begins there already, nothing is to be done.
        let _ = http(self.control, &format!("/split?key={key}"));
    }

    /// Spoils `count` of the store's calls named `call` after the next `skip`: `mode` is one of tests/tikv/store/control.go.
    pub fn fault(&self, call: &str, mode: &str, skip: u32, count: u32) {
        let path = format!("/fault?call={call}&mode={mode}&skip={skip}&count={count}&ms=500");
        http(self.control, &path).expect("the store's control port");
    }

    /// Returns the number of requested faults that no call has met yet.
    pub fn faults_left(&self) -> u64 {
        number(&http(self.control, "/").expect("the store's control port"), "\"faults\":")
    }

    /// Counts the calls of this name since the last [`Rig::clear`].
    pub fn calls(&self, call: &str) -> u64 {
        number(&http(self.control, "/").expect("the store's control port"), &format!("\"{call}\":"))
    }

    /// Removes all faults, and resets the counts.
    pub fn clear(&self) {
        http(self.control, "/clear").expect("the store's control port");
    }
}

impl Member {
    fn new(name: &str, program: PathBuf, arguments: Vec<String>, dir: &Path, port: u16, secure: u16) -> Member {
        let log = dir.join(format!("{name}.log"));
        Member { name: name.to_owned(), program, arguments, log, port, secure, process: None }
    }

    fn spawn(&mut self) {
        let log = File::create(&self.log).expect("a log");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.program).args(&self.arguments);
        command.stdin(Stdio::null()).stderr(log.try_clone().expect("a log")).stdout(log);
        self.process = Some(command.spawn().expect("start a program of the rig"));
    }

    fn ready(&mut self) {
        self.wait().unwrap_or_else(|said| panic!("{said}"));
    }

    /// Waits until it serves; otherwise returns its output.
    fn wait(&mut self) -> Result<(), String> {
        let began = Instant::now();
        loop {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            if said.lines().any(|line| line == "ready") {
                return Ok(());
            }
            let ended = self.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if ended.is_some() || began.elapsed() > PATIENCE {
                return Err(format!("{}: {ended:?}: {said}", self.name));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            let status = Command::new("kill").args([&format!("-{name}"), &process.id().to_string()]).status();
            assert!(status.is_ok_and(|status| status.success()), "kill -{name} {}", self.name);
        }
    }

    fn end(&mut self, name: &str) {
        self.signal(name);
        if let Some(mut process) = self.process.take() {
            let _ = process.wait();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Sends a GET on the loopback; None without a complete answer.
fn http(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: rig\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.to_owned())
}

/// Returns the number behind `name`; 0 if it is missing.
fn number(text: &str, name: &str) -> u64 {
    let digits = text.split_once(name).map_or("", |(_, rest)| rest);
    digits.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or_default()
}
