//! Messages and results larger than any buffer.

use futures_util::{StreamExt, TryStreamExt, pin_mut};
use kingpost_tests::raw::{Raw, query};
use kingpost_tests::{Kingpost, Subject};
use tokio::io::AsyncReadExt;

use crate::common::{shared, value};

/// Most growth of the proxy's memory by the largest results: buffers are bounded for each connection, so this is far below the transferred volume.
const GROWTH_KIB: u64 = 40 << 10;

/// Returns the resident memory of the proxy; 0 for a stand-in without a process.
fn rss(kingpost: &Kingpost) -> u64 {
    if kingpost.subject() == Subject::Direct { 0 } else { kingpost.process().rss_kib() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_megabytes_are_streamed() {
    let (shared, _logs) = shared().await;
    // A proxy of its own, as other tests would show in its memory.
    let kingpost = Kingpost::of(&shared.cluster).start().await;
    let client = kingpost.connect().await;
    assert_eq!(value(&client, "SELECT 1").await, "1");
    let before = rss(&kingpost);
    let sql = "SELECT n, repeat(chr(97 + n % 26), 10000) FROM generate_series(1, 20000) n";
    let rows = client.query_raw(sql, std::iter::empty::<i32>()).await.unwrap();
    pin_mut!(rows);
    let (mut bytes, mut expected, mut highest) = (0, 0, before);
    while let Some(row) = rows.try_next().await.unwrap() {
        expected += 1;
        let (n, fill): (i32, &str) = (row.get(0), row.get(1));
        let letter = char::from(b'a' + (n % 26) as u8);
        assert!(n == expected && fill.len() == 10_000 && fill.starts_with(letter) && fill.ends_with(letter), "row {n}");
        bytes += fill.len();
        if n % 500 == 0 {
            highest = highest.max(rss(&kingpost));
        }
    }
    assert_eq!(bytes, 200_000_000);
    assert!(highest <= before + GROWTH_KIB, "memory grew from {before} to {highest} KiB");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_buffered_for() {
    let (shared, _logs) = shared().await;
    let kingpost = Kingpost::of(&shared.cluster).start().await;
    let mut slow = Raw::login(kingpost.port()).await;
    let before = rss(&kingpost);
    let marker = format!("slow_{}", kingpost_tests::unique());
    let rows = 20_000;
    slow.send(&query(&format!("SELECT repeat('x', 10000) AS {marker} FROM generate_series(1, {rows})"))).await;
    // Nothing is read until the server blocks on its output.
    let blocked = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND query LIKE '%{marker}%' AND pid <> pg_backend_pid()"
    );
    shared
        .cluster
        .wait("the server to be blocked by a client that does not read", async || {
            for node in shared.cluster.nodes() {
                if node.query(&blocked).await == "1" {
                    return Some(());
                }
            }
            None
        })
        .await;
    let grown = rss(&kingpost);
    assert!(grown <= before + GROWTH_KIB, "memory grew from {before} to {grown} KiB");
    let other = kingpost.connect().await;
    assert_eq!(value(&other, "SELECT 7").await, "7", "others are served meanwhile");
    let mut bytes = 0u64;
    let mut buffer = vec![0; 1 << 20];
    while bytes < rows * 10_000 {
        let n = slow.stream.read(&mut buffer).await.unwrap();
        assert!(n > 0, "closed after {bytes} bytes");
        bytes += n as u64;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forty_megabyte_parameter() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let large: String = (0..40_000_000).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    let row = client.query_one("SELECT length($1::text), md5($1::text), $1::text", &[&large]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 40_000_000);
    assert!(row.get::<_, &str>(2) == large, "40 MB come back changed");
    assert_eq!(value(&client, "SELECT 7").await, "7");
}

#[tokio::test]
async fn a_twenty_megabyte_statement() {
    let (shared, _logs) = shared().await;
    let client = shared.kingpost.connect().await;
    let large = "y".repeat(20_000_000);
    assert_eq!(value(&client, &format!("SELECT length('{large}')")).await, "20000000");
    // Extended, unnamed and far beyond `max_statement_bytes`.
    let rows =
        client.query_typed_raw(&format!("SELECT length('{large}')"), std::iter::empty::<(i32, _)>()).await.unwrap();
    pin_mut!(rows);
    assert_eq!(rows.next().await.unwrap().unwrap().get::<_, i32>(0), 20_000_000);
    assert_eq!(value(&client, "SELECT 7").await, "7");
}
