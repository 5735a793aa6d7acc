#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

use super::*;
use crate::location::Location;

/// Bytes of a body that a connection reads before it is closed without an answer.
const READ: u64 = 1 << 20;

/// A service that gives these answers, in order, and keeps the heads of the requests. With the status 0 the connection is closed within the request.
struct Canned {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    fn start(answers: &[(u16, &str)]) -> Canned {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, heads) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<String>>>::default());
        let kept = Arc::clone(&heads);
        let answers: Vec<(u16, String)> = answers.iter().map(|(status, body)| (*status, (*body).to_owned())).collect();
        std::thread::spawn(move || {
            // A connection for each request: the next one is accepted when this one is closed.
            for (status, body) in answers {
                let Ok((stream, _)) = listener.accept() else { return };
                let mut reader = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    if reader.read_line(&mut head).unwrap_or(0) == 0 {
                        return;
                    }
                }
                let length = head
                    .to_lowercase()
                    .split("content-length: ")
                    .nth(1)
                    .and_then(|rest| rest.split("\r\n").next().and_then(|digits| digits.parse::<u64>().ok()));
                let length = if status == 0 { READ } else { length.unwrap_or(0) };
                let _ = std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink());
                kept.lock().unwrap().push(head.to_lowercase());
                if status == 0 {
                    continue;
                }
                let _ = write!(
                    reader.get_mut(),
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\netag: \"1\"\r\nx-goog-generation: 1\r\nlast-modified: Sun, 29 Nov 2026 \
                     08:00:00 GMT\r\ncontent-range: bytes 0-0/7\r\nconnection: close\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        Canned { port, heads }
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn store(&self, url: &str, change: impl Fn(&mut ArchiveConfig)) -> BucketStore {
        let mut config = ArchiveConfig {
            url: url.into(),
            endpoint: format!("http://127.0.0.1:{}", self.port),
            timeout: Duration::from_secs(10),
            ..ArchiveConfig::default()
        };
        change(&mut config);
        let Some(Location::Bucket(bucket)) = config.location() else { panic!("{url} is no bucket") };
        BucketStore::new(bucket, &config).unwrap()
    }
}

fn code(code: &str) -> String {
    format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>m</Message></Error>")
}

/// URLs with credentials, and the head of a request that only creates.
const SERVICES: [(&str, &str, &str); 3] = [
    ("s3://bucket/of/main", "AKIA:hush", "\r\nif-none-match: *\r\n"),
    ("gs://bucket/of/main", "ya29.hush", "\r\nx-goog-if-generation-match: 0\r\n"),
    ("az://account/bucket/of/main", "aHVzaA==", "\r\nif-none-match: *\r\n"),
];

#[tokio::test]
async fn a_creation_never_overwrites_and_only_an_answer_about_the_object_counts() {
    for (service, status, error, expected) in [
        (0, 200, "", "New"),
        (0, 412, "PreconditionFailed", "Exists"),
        (0, 409, "ConditionalRequestConflict", "cannot write"),
        (0, 501, "NotImplemented", "Unsupported"),
        (0, 404, "NoSuchBucket", "cannot write"),
        (1, 200, "", "New"),
        (1, 412, "PreconditionFailed", "Exists"),
        (1, 404, "NoSuchBucket", "cannot write"),
        (1, 403, "AccessDenied", "refuses to write"),
        (2, 201, "", "New"),
        (2, 409, "BlobAlreadyExists", "Exists"),
        (2, 412, "ConditionNotMet", "Exists"),
        (2, 409, "ContainerBeingDeleted", "cannot write"),
        (2, 403, "AuthenticationFailed", "refuses to write"),
    ] {
        let (url, secret, condition) = SERVICES[service];
        // Refused ones are asked again, and a 501 is tried four times.
        let canned = Canned::start(&[(status, &*code(error)); 4]);
        let store = canned.store(url, |config| config.credentials = Some(secret.into()));
        let said = match store.create("kingpost-archive", Bytes::from_static(b"x")).await {
            Ok(created) => format!("{created:?}"),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(expected), "{url} {status} {error}: {said}");
        assert!(!format!("{said} {store:?}").contains("hush") && !said.contains("aHVz"), "{said}");
        let heads = canned.heads();
        assert!(!heads.is_empty() && heads.iter().all(|head| head.contains(condition)), "{heads:?}");
        assert!(heads[0].starts_with("put /bucket/of"), "{heads:?}");
    }
}

#[tokio::test]
async fn a_creation_that_meets_another_one_is_sent_again() {
    let (conflict, exists) = (code("ConditionalRequestConflict"), code("PreconditionFailed"));
    for (status, answer, expected) in [(200, "", Created::New), (412, &*exists, Created::Exists)] {
        let canned = Canned::start(&[(409, &*conflict), (409, &*conflict), (409, &*conflict), (status, answer)]);
        let store = canned.store(SERVICES[0].0, |config| config.credentials = Some(SERVICES[0].1.into()));
        assert_eq!(store.create("wal/1", Bytes::from_static(b"x")).await.unwrap(), expected);
        assert_eq!(canned.heads().len(), 4);
    }
}

#[tokio::test]
async fn a_creation_without_an_answer_exists_if_the_object_does() {
    for (url, secret, _) in SERVICES {
        for (status, answer, expected) in
            [(206, "c", "Exists"), (404, &*code("NoSuchKey"), "cannot write"), (503, "", "cannot write")]
        {
            let canned =
                Canned::start(&[(0, ""), (status, answer), (status, answer), (status, answer), (status, answer)]);
            let store = canned.store(url, |config| config.credentials = Some(secret.into()));
            let said = match store.create("wal/1", vec![0; 32 * READ as usize].into()).await {
                Ok(created) => format!("{created:?}"),
                Err(error) => error.to_string(),
            };
            assert!(said.contains(expected), "{url} {status}: {said}");
            let heads = canned.heads();
            assert!(
                heads[0].starts_with("put ") && heads[1..].iter().all(|head| head.starts_with("get ")),
                "{heads:?}"
            );
        }
    }
}

#[tokio::test]
async fn an_object_is_absent_only_by_the_service_s_word() {
    for (service, status, answer, expected) in [
        (0, 404, code("NoSuchKey"), "None"),
        (0, 404, code("NoSuchBucket"), "cannot read"),
        (1, 404, code("NoSuchKey"), "None"),
        (1, 404, code("NoSuchBucket"), "cannot read"),
        (1, 404, "Not Found".into(), "cannot read"),
        (2, 404, code("BlobNotFound"), "None"),
        (2, 404, code("ContainerNotFound"), "cannot read"),
        (2, 200, "content".into(), "content"),
    ] {
        let (url, secret, _) = SERVICES[service];
        let canned = Canned::start(&[(status, &*answer)]);
        let store = canned.store(url, |config| config.credentials = Some(secret.into()));
        let said = match store.read("kingpost-archive", None).await {
            Ok(read) => format!("{read:?}"),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(expected), "{url} {answer}: {said}");
    }
}

#[tokio::test]
async fn refused_credentials_are_read_again_and_shown_nowhere() {
    const SIGNED: &str = "sv=2023-11-03&sp=rcwdl&sr=c&sig=";
    const LISTED: &str = "<EnumerationResults><Blobs></Blobs></EnumerationResults>";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{SIGNED}hush1\n")).unwrap();
    let refused = code("AuthenticationFailed");
    let canned = Canned::start(&[(403, &refused), (403, &refused), (403, &refused), (200, LISTED)]);
    let store = canned.store(SERVICES[2].0, |config| config.credentials_file = Some(file.path().into()));
    let error = store.list("wal").await.unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    assert!(!format!("{error} {error:?} {store:?}").contains("hush"), "{error:?}");
    std::fs::write(file.path(), format!("{SIGNED}hush2\n")).unwrap();
    // With the old ones, which are known; and at once with the new ones.
    assert_eq!(store.list("wal").await.unwrap(), []);
    let heads = canned.heads();
    let signed: Vec<bool> = heads.iter().map(|head| head.contains("sig=hush2")).collect();
    assert_eq!(signed, [false, false, false, true], "{heads:?}");
    // A file that holds something else is refused without a request.
    std::fs::write(file.path(), "hush!").unwrap();
    store.forget();
    let error = store.list("wal").await.unwrap_err().to_string();
    assert!(error.contains("neither an account key") && !error.contains("hush"), "{error}");
}
