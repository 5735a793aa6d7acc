//! Logins.

use kingpost_tests::raw::{Raw, message, startup};
use kingpost_tests::{
    Cluster, DATABASE, Kingpost, SCRAM_PASSWORD, SCRAM_USER, ShowLogs, Subject, USER, sqlstate, subject, user,
};
use tokio::sync::OnceCell;
use tokio_postgres::Config;

use crate::common::{only_kingpost, value};

struct Guarded {
    cluster: Cluster,
    kingpost: Kingpost,
}

async fn guarded() -> (&'static Guarded, ShowLogs<'static>) {
    static GUARDED: OnceCell<Guarded> = OnceCell::const_new();
    let guarded = GUARDED
        .get_or_init(async || {
            let cluster = Cluster::builder().replicas(1).start().await;
            let kingpost = Kingpost::of(&cluster)
                .set("proxy.auth", "scram-sha-256")
                .add("proxy.users", user(SCRAM_USER, SCRAM_PASSWORD))
                .add("proxy.users", user(USER, "alice's own"))
                .start()
                .await;
            Guarded { cluster, kingpost }
        })
        .await;
    (guarded, ShowLogs(guarded.cluster.dir()))
}

impl Guarded {
    fn config(&self, user: &str, password: Option<&str>) -> Config {
        let mut config = self.kingpost.endpoint().config();
        config.user(user);
        if let Some(password) = password {
            config.password(password);
        }
        config
    }

    async fn refusal(&self, user: &str, password: Option<&str>) -> tokio_postgres::Error {
        let outcome = self.kingpost.endpoint().try_connect(&self.config(user, password)).await;
        outcome.map(|_| ()).expect_err(&format!("{user} with {password:?} got in"))
    }
}

#[tokio::test]
async fn scram_lets_the_right_password_in() {
    let (guarded, _logs) = guarded().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let endpoint = guarded.kingpost.endpoint();
    for (name, password) in [(SCRAM_USER, SCRAM_PASSWORD), (USER, "alice's own")] {
        let client = endpoint.connect_as(&guarded.config(name, Some(password))).await;
        // Both the primary and the replica saw the client's user.
        for route in ["primary", "replica"] {
            assert_eq!(value(&client, &format!("/* kingpost.route={route} */ SELECT current_user")).await, name);
        }
    }
}

#[tokio::test]
async fn a_wrong_password_or_user_is_refused() {
    let (guarded, _logs) = guarded().await;
    if subject() == Subject::PgBouncer {
        return;
    }
    let wrong = guarded.refusal(SCRAM_USER, Some("wrong")).await;
    assert_eq!(sqlstate(&wrong), "28P01");
    assert!(wrong.as_db_error().unwrap().message().contains(SCRAM_USER), "{wrong:?}");
    assert_eq!(sqlstate(&guarded.refusal(SCRAM_USER, Some("")).await), "28P01");
    if only_kingpost() {
        return;
    }
    for (name, password) in [("nobody_known", "x"), ("postgres", SCRAM_PASSWORD), (USER, SCRAM_PASSWORD)] {
        let error = guarded.refusal(name, Some(password)).await;
        // The same for an unknown user: clients must not find out which users exist.
        assert_eq!(sqlstate(&error), "28P01", "{name}: {error:?}");
    }
}

#[tokio::test]
async fn an_unknown_user_is_asked_like_a_known_one() {
    let (guarded, _logs) = guarded().await;
    if only_kingpost() {
        return;
    }
    let mut answers = Vec::new();
    for name in [SCRAM_USER, "nobody_known"] {
        let mut raw = Raw::connect(guarded.kingpost.port()).await;
        raw.send(&startup(3 << 16, &[("user", name), ("database", DATABASE)])).await;
        let asked = raw.next().await.unwrap();
        raw.send(&message(b'p', b"SCRAM-SHA-256\0\0\0\0\x20n,,n=,r=rOprNGfwEbeRWgbNEkqO1234")).await;
        let challenge = raw.next().await.unwrap();
        let text = String::from_utf8_lossy(&challenge.body[4..]).into_owned();
        let fields: Vec<String> = text.split(',').map(|field| field[..2].to_owned()).collect();
        answers.push((asked, challenge.kind, fields, text.len()));
    }
    assert_eq!(answers[0], answers[1]);
    // An unknown user's salt is the same each time, like a known one's.
    let mut salts = Vec::new();
    for _ in 0..2 {
        let mut raw = Raw::connect(guarded.kingpost.port()).await;
        raw.send(&startup(3 << 16, &[("user", "nobody_known"), ("database", DATABASE)])).await;
        raw.next().await.unwrap();
        raw.send(&message(b'p', b"SCRAM-SHA-256\0\0\0\0\x20n,,n=,r=rOprNGfwEbeRWgbNEkqO1234")).await;
        let text = String::from_utf8_lossy(&raw.next().await.unwrap().body).into_owned();
        salts.push(text.split(',').find(|field| field.starts_with("s=")).unwrap().to_owned());
    }
    assert_eq!(salts[0], salts[1]);
}

#[tokio::test]
async fn broken_scram_is_refused() {
    let (guarded, _logs) = guarded().await;
    if only_kingpost() {
        return;
    }
    let answers: [&[u8]; 6] = [
        b"SCRAM-SHA-256-PLUS\0\0\0\0\x20n,,n=,r=rOprNGfwEbeRWgbNEkqO1234",
        b"MD5\0\0\0\0\0",
        b"",
        b"SCRAM-SHA-256\0\xff\xff\xff\xff",
        b"SCRAM-SHA-256\0\x7f\xff\xff\xffn,,",
        b"SCRAM-SHA-256\0\0\0\0\x05y,,zz",
    ];
    for answer in answers {
        let mut raw = Raw::connect(guarded.kingpost.port()).await;
        raw.send(&startup(3 << 16, &[("user", SCRAM_USER), ("database", DATABASE)])).await;
        assert_eq!(raw.next().await.unwrap().kind, b'R');
        raw.send(&message(b'p', answer)).await;
        let rest = raw.rest().await;
        assert!(!rest.iter().any(|message| message.kind == b'Z'), "{answer:?} got in");
        assert!(rest.iter().all(|message| message.kind == b'E' || message.kind == b'R'), "{rest:?}");
    }
    // A password in clear in place of SCRAM, and a query in place of an answer.
    for bytes in [message(b'p', b"correct horse\0"), message(b'Q', b"SELECT 1\0")] {
        let mut raw = Raw::connect(guarded.kingpost.port()).await;
        raw.send(&startup(3 << 16, &[("user", SCRAM_USER), ("database", DATABASE)])).await;
        raw.next().await.unwrap();
        raw.send(&bytes).await;
        assert!(!raw.rest().await.iter().any(|message| message.kind == b'Z' || message.kind == b'D'));
    }
}

#[tokio::test]
async fn trust_asks_nothing() {
    let (guarded, _logs) = guarded().await;
    let kingpost = Kingpost::of(&guarded.cluster).start().await;
    assert_eq!(value(&kingpost.connect().await, "SELECT current_user").await, USER);
    if only_kingpost() {
        return;
    }
    // A user that the servers do not know: their own message reaches the client.
    let mut config = kingpost.endpoint().config();
    config.user("stranger");
    let error = match kingpost.endpoint().try_connect(&config).await {
        Ok(client) => client.simple_query("SELECT 1").await.map(|_| ()).unwrap_err(),
        Err(error) => error,
    };
    assert!(["28000", "28P01", "08006", "08001"].contains(&sqlstate(&error)), "{error:?}");
    let mut config = kingpost.endpoint().config();
    config.dbname("no_such_database");
    let error = match kingpost.endpoint().try_connect(&config).await {
        Ok(client) => client.simple_query("SELECT 1").await.map(|_| ()).unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(sqlstate(&error), "3D000", "{error:?}");
    assert_eq!(value(&kingpost.connect().await, "SELECT 7").await, "7");
}

#[tokio::test]
async fn passwords_stay_out_of_the_log() {
    let (guarded, _logs) = guarded().await;
    if only_kingpost() {
        return;
    }
    let endpoint = guarded.kingpost.endpoint();
    endpoint.connect_as(&guarded.config(SCRAM_USER, Some(SCRAM_PASSWORD))).await;
    guarded.refusal(SCRAM_USER, Some("a wrong secret")).await;
    let log = std::fs::read_to_string(guarded.kingpost.process().log()).unwrap();
    for secret in [SCRAM_PASSWORD, "a wrong secret", "alice's own", "SCRAM-SHA-256$"] {
        assert!(!log.contains(secret), "{secret:?} is in the log:\n{log}");
    }
}
