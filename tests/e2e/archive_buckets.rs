//! The archive in a bucket of S3, Azure and Google: the same for each, with its faults, its credentials and the way back.

use std::process::Command;
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::Request;
use hyper::body::Incoming;
use kingpost_tests::{Cluster, Link, RunAs, SOON, ShowLogs, command, kingpost_bin, wait_until, within};

use crate::archive::{
    SEGMENT, archive_file, archiving, fetch, number, open_dir, restore_command, same_as_primary, wait_alarm,
    wait_archived, write,
};
use crate::archive_stores::{Kind, Storage, answer, refusal, serve};
use crate::backup::done;

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_in_s3() {
    an_archive_in(Kind::S3, Extent::Short).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute, and needs versitygw: make clients"]
async fn an_archive_in_s3_whole() {
    an_archive_in(Kind::S3, Extent::Whole).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Azurite: make clients"]
async fn an_archive_in_azure() {
    an_archive_in(Kind::Azure, Extent::Whole).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs fake-gcs-server: make clients"]
async fn an_archive_in_google() {
    an_archive_in(Kind::Google, Extent::Whole).await;
}

/// Extent of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// One relay, and a service that is gone for a time.
    Short,
    /// Two relays at once, and also a service that is silent.
    Whole,
}

async fn an_archive_in(kind: Kind, extent: Extent) {
    let cluster = Cluster::builder().setting("wal_keep_size", "1GB").start().await;
    let _logs = ShowLogs(cluster.dir());
    let primary = cluster.primary();
    let Some(mut storage) = Storage::start(kind, &cluster).await else { return };
    let scratch = open_dir("credentials");
    // The relays' credentials, and those of other hosts in another form.
    let (credentials, others) = (scratch.join("credentials"), scratch.join("others"));
    std::fs::write(&credentials, storage.credentials(0)).unwrap();
    std::fs::write(&others, storage.other_form(0)).unwrap();
    let mut settings = storage.settings();
    settings.push(("timeout", "5s".into()));
    let make = || {
        let mut relay = archiving(&cluster, primary.port(), storage.url())
            .set("relay.archive.credentials_file", credentials.display().to_string());
        for (key, value) in &settings {
            relay = relay.set(&format!("relay.archive.{key}"), value.clone());
        }
        relay
    };
    let (mut relay, mut second) = (make(), make());
    let others_path = others.display().to_string();
    let mut lines = vec![("url", storage.url()), ("credentials_file", others_path.as_str())];
    lines.extend(settings.iter().map(|(key, value)| (*key, value.as_str())));
    let archive = archive_file(&cluster, &lines);

    // Two relays at once: each whole segment is written once, and no relay has a complaint.
    relay.start().await;
    if extent == Extent::Whole {
        second.start().await;
    }
    write(primary, 20).await;
    let mut equal = 0.0;
    for relay in if extent == Extent::Whole { vec![&relay, &second] } else { vec![&relay] } {
        wait_archived(&cluster, relay, primary).await;
        assert!(relay.log().contains("creates=true") || relay.log().contains("\"creates\":true"), "{}", relay.log());
        assert_eq!((number(relay, "alarm").await, number(relay, "failures_total").await), (0.0, 0.0));
        equal += number(relay, "equal_total").await;
    }
    if extent == Extent::Whole {
        assert!(equal >= 1.0, "{equal}");
        second.stop().await;
    }

    // The service is gone, then silent; commits go on meanwhile.
    let faults: &[Link] = if extent == Extent::Whole { &[Link::Cut, Link::BlackHole] } else { &[Link::Cut] };
    for link in faults {
        storage.set(*link);
        within("commits", SOON, cluster.dir(), write(primary, 1)).await;
        wait_alarm(&cluster, &relay, 1.0).await;
        storage.set(Link::Up);
        wait_archived(&cluster, &relay, primary).await;
        wait_alarm(&cluster, &relay, 0.0).await;
    }

    // Its credentials change, and the file some time after.
    storage.rotate().await;
    write(primary, 1).await;
    wait_alarm(&cluster, &relay, 1.0).await;
    let refused = async || relay.log().contains("refuses to").then_some(());
    wait_until("the refusal", SOON, cluster.dir(), refused).await;
    let (code, said) = fetch(&archive, "000000010000000000000001", &scratch.join("no"), &["--stop-recovery"]);
    assert!(code == Some(126) && said.contains("refuses to read"), "{code:?} {said}");
    std::fs::write(&credentials, storage.credentials(1)).unwrap();
    std::fs::write(&others, storage.other_form(1)).unwrap();
    let end = wait_archived(&cluster, &relay, primary).await;
    wait_alarm(&cluster, &relay, 0.0).await;
    for secret in storage.secrets() {
        assert!(!relay.log().contains(&secret) && !said.contains(&secret), "{secret}");
    }

    let fetched = tempfile::tempdir().unwrap();
    same_as_primary(&archive, primary, end, fetched.path());
    assert_eq!(fetch(&archive, "000000010000000000000077", &fetched.path().join("no"), &[]), (Some(1), String::new()));
    // The servers' user reads these.
    let mut open = Command::new("chmod");
    open.arg("644").args([&credentials, &others]);
    open.args(settings.iter().filter(|(key, _)| *key == "ca_file").map(|(_, path)| path));
    assert!(open.status().unwrap().success());
    // A base backup in the bucket, and the way back.
    let backups = cluster.dir().join("backups.toml");
    let node = format!("[[cluster.nodes]]\nname = \"n0\"\naddress = \"127.0.0.1:{}\"\n", primary.port());
    std::fs::write(&backups, std::fs::read_to_string(&archive).unwrap() + &node).unwrap();
    assert!(done(&backups, &["backup", "--label", "in a bucket"]).contains("restorable"));
    let listed = done(&backups, &["backup", "list"]);
    assert!(listed.contains("restorable  in a bucket"), "{listed}");
    done(&backups, &["backup", "verify"]);
    let to = open_dir("to").join("data");
    let said = done(&backups, &["restore", "--to", to.to_str().unwrap(), "--verify"]);
    assert!(to.join("global/pg_control").exists(), "{said}");
    done(&backups, &["backup", "--label", "the second"]);
    // What relay and server have lost comes from the bucket.
    let dropped = async || (relay.position("oldest").await >= SEGMENT as u64).then_some(());
    wait_until("the relay to drop segments", SOON, cluster.dir(), dropped).await;
    primary.kill9().await;
    let restored = cluster.copy("restored", ("restore_command", &restore_command(&archive)));
    std::fs::write(restored.dir().join("recovery.signal"), "").unwrap();
    restored.start().await;
    restored.wait_value("SELECT pg_is_in_recovery()", "f").await;
    assert_eq!(restored.query("SELECT count(*) FROM load").await, ((21 + faults.len()) * 900).to_string());
    done(&backups, &["backup", "prune", "--keep", "0"]);
    let listed = done(&backups, &["backup", "list"]);
    assert!(listed.contains("the second") && !listed.contains("in a bucket"), "{listed}");
}

/// A request to a stand-in for the services of a cloud: path, authorization, and body.
type Asked = Arc<Mutex<Vec<(String, String, String)>>>;

/// The services by which clouds give an identity; every object is absent.
async fn cloud(request: Request<Incoming>, asked: Asked) -> hyper::Response<http_body_util::Full<bytes::Bytes>> {
    let (parts, body) = request.into_parts();
    let body = String::from_utf8_lossy(&body.collect().await.unwrap().to_bytes()).into_owned();
    let header =
        |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    asked.lock().unwrap().push((parts.uri.to_string(), header("authorization"), body.clone()));
    match parts.uri.path() {
        "/computeMetadata/v1/instance/service-accounts/default/token" if header("metadata-flavor") == "Google" => {
            answer(200, r#"{"access_token": "of-google", "expires_in": 3600, "token_type": "Bearer"}"#)
        }
        "/msi" if header("metadata") == "true" && header("x-identity-header") == "hush" => {
            answer(200, r#"{"access_token": "managed", "expires_on": "4102444800"}"#)
        }
        "/tenant/oauth2/v2.0/token" if body.contains("client_assertion=of-the-pod") => {
            answer(200, r#"{"access_token": "workload", "expires_in": 3600}"#)
        }
        "/tenant/oauth2/v2.0/token" if body.contains("client_secret=hush") => {
            answer(200, r#"{"access_token": "application", "expires_in": 3600}"#)
        }
        "/tenant/oauth2/v2.0/token" => answer(401, r#"{"error": "invalid_client"}"#),
        "/pod" if header("authorization") == "of-the-pod" => answer(
            200,
            r#"{"AccessKeyId": "AKIAOFPOD", "SecretAccessKey": "hush", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}"#,
        ),
        path if path.starts_with("/account/") => refusal(404, "BlobNotFound"),
        _ => refusal(404, "NoSuchKey"),
    }
}

/// A URL, a line of the configuration, the environment, and the beginning of the authorization of each request for an object.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str);

#[tokio::test(flavor = "multi_thread")]
async fn a_cloud_gives_a_host_its_identity() {
    let asked = Asked::default();
    let kept = Arc::clone(&asked);
    let cloud = serve(move |request| cloud(request, Arc::clone(&kept))).await;
    let scratch = open_dir("identity");
    let token = scratch.join("token");
    std::fs::write(&token, "of-the-pod").unwrap();
    let (token, base) = (token.display().to_string(), format!("http://127.0.0.1:{}", cloud.port));
    let (host, msi, pod) = (base.replace("http://", ""), format!("{base}/msi"), format!("{base}/pod"));
    let cases: [Case<'_>; 6] = [
        ("gs://bucket/p", "host_identity = true", &[("GCE_METADATA_HOST", &host)], "Bearer of-google"),
        (
            "az://account/bucket/p",
            "host_identity = true",
            &[("IDENTITY_ENDPOINT", &msi), ("IDENTITY_HEADER", "hush")],
            "Bearer managed",
        ),
        (
            "az://account/bucket/p",
            "host_identity = true",
            &[
                ("AZURE_AUTHORITY_HOST", &base),
                ("AZURE_TENANT_ID", "tenant"),
                ("AZURE_CLIENT_ID", "client"),
                ("AZURE_FEDERATED_TOKEN_FILE", &token),
            ],
            "Bearer workload",
        ),
        (
            "az://account/bucket/p",
            "credentials = \"tenant:client:hush\"",
            &[("AZURE_AUTHORITY_HOST", &base)],
            "Bearer application",
        ),
        (
            "s3://bucket/p",
            "host_identity = true",
            &[("AWS_CONTAINER_CREDENTIALS_FULL_URI", &pod), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token)],
            "AWS4-HMAC-SHA256 Credential=AKIAOFPOD/",
        ),
        // A secret that the issuer of tokens refuses: no object is asked for.
        ("az://account/bucket/p", "credentials = \"tenant:client:wrong\"", &[("AZURE_AUTHORITY_HOST", &base)], ""),
    ];
    for (url, line, variables, expected) in cases {
        asked.lock().unwrap().clear();
        let endpoint = if url.starts_with("az:") { format!("{base}/account") } else { base.clone() };
        let archive = scratch.join("archive.toml");
        std::fs::write(
            &archive,
            format!("[relay.archive]\nurl = {url:?}\nendpoint = {endpoint:?}\ntimeout = \"5s\"\n{line}\n"),
        )
        .unwrap();
        let mut fetch = command(&kingpost_bin(), RunAs::Tests, "KILL");
        fetch.env("HOME", &scratch).envs(variables.iter().copied());
        fetch.args(["relay", "fetch", "--dir", "/nowhere", "--archive"]).arg(&archive);
        fetch.arg("000000010000000000000001").arg(scratch.join("no"));
        let output = fetch.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains("hush") && !said.contains("Bearer") && !said.contains("wrong"), "{url} {line}: {said}");
        let requests = asked.lock().unwrap().clone();
        let about: Vec<&str> =
            requests.iter().filter(|(path, ..)| path.contains("bucket")).map(|(_, by, _)| by.as_str()).collect();
        if expected.is_empty() {
            assert!(about.is_empty() && said.contains("refuses to read"), "{requests:?} {said}");
        } else {
            assert!(said.contains("is no archive"), "{url} {line}: {said} {requests:?}");
            assert!(!about.is_empty() && about.iter().all(|by| by.starts_with(expected)), "{url} {line}: {requests:?}");
        }
    }
}
