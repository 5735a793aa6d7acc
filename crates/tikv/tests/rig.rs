//! The client against a real PD, and unistore in TiKV's place (`tests/tikv`). Without them these tests are skipped.
#![allow(clippy::unwrap_used)]

#[path = "../../../tests/tikv/rig.rs"]
mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rig::Rig;
use tikv::{Client, Error, Security, Timestamp, Write};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Time limit of every wait: nothing takes so long, not even PD's election of a leader on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(180);

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

async fn connect(rig: &Rig) -> Arc<Client> {
    Client::connect(rig.endpoints(), Security::none(), soon()).await.unwrap()
}

fn put(key: &str, value: impl ToString) -> Write {
    Write::Put(key.to_owned().into(), value.to_string().into())
}

async fn get(client: &Arc<Client>, at: Timestamp, key: &str) -> Option<u64> {
    let value = client.snapshot(at).get(key.to_owned().into(), soon()).await.unwrap()?;
    Some(std::str::from_utf8(&value).unwrap().parse().unwrap())
}

/// Timestamps that the callers of one client got: no two are equal, and each one is higher than all that any caller, at any client, had got before it
/// was requested.
struct History {
    /// The highest timestamp that any caller has got.
    highest: AtomicU64,
    stop: AtomicBool,
}

impl History {
    async fn caller(self: Arc<History>, client: Arc<Client>) -> (Vec<u64>, u64) {
        let (mut got, mut late) = (Vec::new(), 0);
        while !self.stop.load(Ordering::SeqCst) {
            let before = self.highest.load(Ordering::SeqCst);
            match client.timestamp(Instant::now() + Duration::from_millis(500)).await {
                Ok(Timestamp(now)) => {
                    assert!(now > before, "{now} was given after somebody had got {before}");
                    self.highest.fetch_max(now, Ordering::SeqCst);
                    got.push(now);
                }
                Err(Error::Late { .. }) => late += 1,
                Err(error) => panic!("{error}"),
            }
        }
        (got, late)
    }
}

/// Runs callers at two clients while `disturb` is at work; how many timestamps there were, and how many calls that ended without.
async fn history(clients: [Arc<Client>; 2], disturb: impl Future<Output = ()>) -> (usize, u64) {
    let history = Arc::new(History { highest: AtomicU64::new(0), stop: AtomicBool::new(false) });
    let mut callers = JoinSet::new();
    for n in 0..16 {
        callers.spawn(Arc::clone(&history).caller(Arc::clone(&clients[n % 2])));
    }
    disturb.await;
    history.stop.store(true, Ordering::SeqCst);
    let (mut all, mut late) = (Vec::new(), 0);
    while let Some(caller) = callers.join_next().await {
        let (got, without) = caller.unwrap();
        assert!(got.is_sorted(), "one caller's timestamps rise");
        all.extend(got);
        late += without;
    }
    let given = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), given, "a timestamp was given twice");
    (given, late)
}

/// Waits until `client` gives timestamps.
async fn gives(client: &Arc<Client>) {
    client.timestamp(soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timestamps_rise_by_real_time_over_leader_changes() {
    let Some(mut rig) = Rig::with(3, None) else { return };
    let clients = [connect(&rig).await, connect(&rig).await];
    let watched = clients.clone();
    let disturb = async {
        for round in 0..3 {
            let before = watched[0].figures().counts().timestamps;
            let leader = rig.leader();
            if round == 1 {
                // Its connections stay, and nothing comes: the others lead after its lease.
                rig.freeze_pd(leader);
                gives(&watched[0]).await;
                gives(&watched[1]).await;
                rig.thaw_pd(leader);
            } else {
                rig.kill_pd(leader);
                gives(&watched[0]).await;
                gives(&watched[1]).await;
                rig.start_pd(leader);
            }
            assert!(watched[0].figures().counts().timestamps > before, "round {round}");
        }
    };
    let (given, _) = history(clients.clone(), disturb).await;
    assert!(given > 1000, "{given} timestamps: too few to say anything");
    for client in &clients {
        let counts = client.figures().counts();
        assert!(counts.timestamp_streams_lost >= 3, "{counts:?}");
        assert_eq!(counts.timestamps_refused, 0, "{counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pd_that_stands_still_ends_calls_at_their_deadline() {
    let Some(rig) = Rig::start() else { return };
    let clients = [connect(&rig).await, connect(&rig).await];
    let client = Arc::clone(&clients[0]);
    let disturb = async {
        gives(&client).await;
        rig.freeze_pd(0);
        // Well over the deadline of the callers, and of this call.
        let error = client.timestamp(Instant::now() + Duration::from_secs(3)).await.unwrap_err();
        assert!(matches!(error, Error::Late { .. }), "{error}");
        rig.thaw_pd(0);
        gives(&client).await;
    };
    let (_, late) = history(clients.clone(), disturb).await;
    assert!(late > 0, "nobody's deadline has come");
}

/// Two clients raise a counter, and write its new value beside it: nothing is lost, nothing is counted twice, and every reader sees both or neither,
/// while regions split and requests and replies are lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_and_nothing_seen_by_halves() {
    const EACH: u64 = 40;
    let Some(rig) = Rig::start() else { return };
    let clients = [connect(&rig).await, connect(&rig).await];
    let start = clients[0].timestamp(soon()).await.unwrap();
    clients[0].commit(start, vec![put("k/t/counter", 0), put("k/t/row/00000", 0)], soon()).await.unwrap();
    let mut writers = JoinSet::new();
    let begun = Arc::new(AtomicU64::new(0));
    for n in 0..4 {
        let (client, begun) = (Arc::clone(&clients[n % 2]), Arc::clone(&begun));
        writers.spawn(async move {
            let mut unknown = 0;
            for _ in 0..EACH {
                begun.fetch_add(1, Ordering::SeqCst);
                loop {
                    let start = client.timestamp(soon()).await.unwrap();
                    let next = get(&client, start, "k/t/counter").await.unwrap() + 1;
                    let writes = vec![put("k/t/counter", next), put(&format!("k/t/row/{next:05}"), next)];
                    match client.commit(start, writes, Instant::now() + Duration::from_secs(10)).await {
                        Ok(at) => {
                            assert!(at > start);
                            break;
                        }
                        Err(Error::Conflict { .. }) => {}
                        Err(Error::Undetermined { .. } | Error::Late { .. }) => {
                            unknown += 1;
                            break;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            }
            unknown
        });
    }
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (client, stop) = (Arc::clone(&clients[1]), Arc::clone(&stop));
        tokio::spawn(async move {
            let mut before = 0;
            while !stop.load(Ordering::SeqCst) {
                let at = client.timestamp(soon()).await.unwrap();
                let counter = get(&client, at, "k/t/counter").await.unwrap();
                assert!(counter >= before, "from {before} back to {counter}");
                before = counter;
                let mut scan = client.snapshot(at).scan("test", "k/t/row/".into(), "k/t/row0".into(), 7);
                let mut rows: Vec<Bytes> = Vec::new();
                while let Some(page) = scan.page(soon()).await.unwrap() {
                    rows.extend(page.into_iter().map(|pair| pair.key));
                }
                let expected: Vec<Bytes> = (0..=counter).map(|n| format!("k/t/row/{n:05}").into()).collect();
                assert_eq!(rows, expected, "at {counter}");
            }
        })
    };
    let mut unknown = 0;
    let mut disturbed = 0;
    let mut splits = (0..40).map(|n| format!("k/t/row/{:05}", n * 4)).chain(["k/t/d".to_owned()]);
    loop {
        // New faults only after a new transaction: on a busy machine they would come faster than transactions can meet them, and none would
        // ever get through.
        let begun = begun.load(Ordering::SeqCst);
        let faults = [
            ("KvCommit", "reply"),
            ("KvPrewrite", "reply"),
            ("KvCommit", "request"),
            ("KvResolveLock", "request"),
            ("KvGet", "busy"),
        ];
        if begun >= disturbed + 4 {
            faults.into_iter().for_each(|(call, mode)| rig.fault(call, mode, 3, 1));
            disturbed = begun;
        }
        if let Some(key) = splits.next() {
            rig.split(&key);
        }
        match tokio::time::timeout(Duration::from_millis(30), writers.join_next()).await {
            Ok(Some(writer)) => unknown += writer.unwrap(),
            Ok(None) => break,
            Err(_) => {}
        }
    }
    rig.clear();
    stop.store(true, Ordering::SeqCst);
    reader.await.unwrap();
    let at = clients[0].timestamp(soon()).await.unwrap();
    let counter = get(&clients[0], at, "k/t/counter").await.unwrap();
    assert!((4 * EACH - unknown..=4 * EACH).contains(&counter), "{counter} of {} with {unknown} unknown", 4 * EACH);
    let conflicts: u64 = clients.iter().map(|client| client.figures().counts().conflicts).sum();
    assert!(conflicts > 0, "nobody was in anybody's way");
    assert!(clients.iter().all(|client| client.figures().counts().retries > 0));
}

/// A transaction whose client dies between the phases is committed in all its regions or in none, as its primary key says; others wait
/// for its time to live at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_client_leaves_is_done_or_undone() {
    let Some(rig) = Rig::start() else { return };
    rig.split("k/d/m");
    let other = connect(&rig).await;
    // The step before which the client's requests stop coming through, and whether the transaction is committed then.
    for (n, (call, skip, committed)) in
        [("KvPrewrite", 1, false), ("KvCommit", 0, false), ("KvCommit", 1, true)].into_iter().enumerate()
    {
        let dying = connect(&rig).await;
        rig.clear();
        rig.fault(call, "request", skip, 100_000);
        let start = dying.timestamp(soon()).await.unwrap();
        let writes = vec![put("k/d/a", n + 1), put("k/d/z", n + 1)];
        let client = Arc::clone(&dying);
        let dies = tokio::spawn(async move { client.commit(start, writes, soon()).await });
        let began = Instant::now();
        while rig.calls(call) < u64::from(skip) + 2 {
            assert!(began.elapsed() < PATIENCE, "{call} was not tried");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        dies.abort();
        let _ = dies.await;
        // The requests by which the other one determines the outcome are neither prewrite nor commit.
        let at = other.timestamp(soon()).await.unwrap();
        let seen = [get(&other, at, "k/d/z").await, get(&other, at, "k/d/a").await];
        rig.clear();
        assert_eq!(seen[0], seen[1], "{call}: half of a transaction");
        assert_eq!(seen[0] == Some(n as u64 + 1), committed, "{call} after {skip}");
        let start = other.timestamp(soon()).await.unwrap();
        other.commit(start, vec![put("k/d/a", 100), put("k/d/z", 100)], soon()).await.unwrap();
    }
    assert!(other.figures().counts().locks_resolved > 0);
}

/// A store has executed a commit, and answers that it does not know, or with an unknown error: the caller gets the error of an unknown outcome, and a
/// read determines it. Nothing is taken for not written. Other requests are just sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_store_does_not_know_is_not_taken_for_a_no() {
    let Some(rig) = Rig::start() else { return };
    rig.split("k/u/m");
    let client = connect(&rig).await;
    for (n, mode) in ["undetermined", "newer", "abort"].into_iter().enumerate() {
        let value = n as u64 + 1;
        let start = client.timestamp(soon()).await.unwrap();
        rig.fault("KvCommit", mode, 0, 1);
        let commit = client.commit(start, vec![put("k/u/a", value), put("k/u/z", value)], soon()).await;
        assert!(matches!(commit, Err(Error::Undetermined { .. })), "{mode}: {commit:?}");
        let at = client.timestamp(soon()).await.unwrap();
        assert_eq!(get(&client, at, "k/u/a").await, Some(value), "{mode}");
        assert_eq!(get(&client, at, "k/u/z").await, Some(value), "{mode}");
        assert_eq!(rig.calls("KvBatchRollback"), 0, "{mode}");
    }
    let counts = client.figures().counts();
    assert_eq!((counts.undetermined, counts.rollbacks), (3, 0), "{counts:?}");
    for mode in ["undetermined", "newer"] {
        for call in ["KvPrewrite", "KvGet"] {
            rig.fault(call, mode, 0, 1);
        }
        let at = client.timestamp(soon()).await.unwrap();
        let next = get(&client, at, "k/u/a").await.unwrap() + 1;
        client.commit(at, vec![put("k/u/a", next)], soon()).await.unwrap();
        assert_eq!(rig.faults_left(), 0, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_write_is_a_conflict_and_leaves_nothing_locked() {
    let Some(rig) = Rig::start() else { return };
    let client = connect(&rig).await;
    let starts = [client.timestamp(soon()).await.unwrap(), client.timestamp(soon()).await.unwrap()];
    client.commit(starts[1], vec![put("k/c/a", 1), put("k/c/b", 1)], soon()).await.unwrap();
    let lost = client.commit(starts[0], vec![put("k/c/b", 2), put("k/c/c", 2)], soon()).await;
    assert!(matches!(lost, Err(Error::Conflict { .. })), "{lost:?}");
    let at = client.timestamp(soon()).await.unwrap();
    assert_eq!(get(&client, at, "k/c/c").await, None);
    assert_eq!(get(&client, at, "k/c/b").await, Some(1));
    assert_eq!(get(&client, starts[1], "k/c/b").await, None, "as of before the commit");
    client.commit(at, vec![Write::Delete("k/c/a".into())], soon()).await.unwrap();
    let at = client.timestamp(soon()).await.unwrap();
    assert_eq!(get(&client, at, "k/c/a").await, None);
    // More bytes than one request takes, and than one page holds.
    let large = |n: usize| Write::Put(format!("k/l/{n:04}").into(), vec![b'x'; 3000].into());
    client.commit(at, (0..1000).map(large).collect(), soon()).await.unwrap();
    let at = client.timestamp(soon()).await.unwrap();
    let keys = (0..1001).map(|n| format!("k/l/{n:04}").into()).collect();
    assert_eq!(client.snapshot(at).get_many(keys, soon()).await.unwrap().len(), 1000);
}

/// An authority, and the certificates that it has signed, as PEM files in a directory.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Authority { issuer: rcgen::Issuer::new(params, key), dir }
    }

    fn ca(&self) -> std::path::PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Issues a certificate for `host`, and its key, which only its owner may read. Returns their paths.
    fn issue(&self, host: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        use std::os::unix::fs::PermissionsExt as _;
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let (cert, file) = (self.dir.path().join(format!("{host}.pem")), self.dir.path().join(format!("{host}.key")));
        std::fs::write(&cert, params.signed_by(&key, &self.issuer).unwrap().pem()).unwrap();
        std::fs::write(&file, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        (cert, file)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_tls_with_certificates_of_clients() {
    let (ours, others) = (Authority::new(), Authority::new());
    let (cert, key) = ours.issue("127.0.0.1");
    let Some(rig) = Rig::with(1, Some(rig::Tls { ca: ours.ca(), cert, key })) else { return };
    let own = || Some(ours.issue("client"));
    let security = Security::tls(ours.ca(), own()).unwrap();
    let client = Client::connect(rig.endpoints(), security, soon()).await.unwrap();
    let start = client.timestamp(soon()).await.unwrap();
    client.commit(start, vec![put("k/s/a", 1)], soon()).await.unwrap();
    let at = client.timestamp(soon()).await.unwrap();
    assert_eq!(get(&client, at, "k/s/a").await, Some(1));
    for (who, security) in [
        ("without a certificate", Security::tls(ours.ca(), None).unwrap()),
        ("with somebody else's certificate", Security::tls(ours.ca(), Some(others.issue("client"))).unwrap()),
        ("who trusts somebody else", Security::tls(others.ca(), own()).unwrap()),
        ("without TLS", Security::none()),
    ] {
        let refused = Client::connect(rig.endpoints(), security, Instant::now() + Duration::from_secs(1)).await;
        assert!(matches!(refused, Err(Error::Late { .. })), "{who}: {refused:?}");
    }
}
