//! Stores whose server requires TLS, and one whose server has none. Encryption is verified on the server: by users that require TLS, and by its count
//! of handshakes.

use super::*;
use crate::common::authority::Authority;

/// A server with databases of the users `a` and `b`, who have passwords and require TLS; of `free`, who does not; and of `shown`, who needs a
/// certificate of this name.
struct Encrypted {
    server: Server,
    authority: Authority,
}

impl Encrypted {
    /// Starts a server with a certificate for 127.0.0.1 and no other host.
    async fn start() -> Encrypted {
        let authority = Authority::new();
        authority.issue("server", &["127.0.0.1"], authority.directory.path());
        if let Some((uid, gid)) = account() {
            std::os::unix::fs::chown(authority.file("server.key"), Some(uid), Some(gid)).unwrap();
        }
        let file = |name: &str| authority.file(name).display().to_string();
        let server = Server::start_with(&[
            "--skip-name-resolve".into(),
            format!("--ssl-ca={}", authority.ca()),
            format!("--ssl-cert={}", file("server.crt")),
            format!("--ssl-key={}", file("server.key")),
        ]);
        users(
            &server,
            &[("a", "REQUIRE SSL"), ("b", "REQUIRE SSL"), ("free", ""), ("shown", "REQUIRE SUBJECT '/CN=shown'")],
        )
        .await;
        Encrypted { server, authority }
    }

    fn address(&self, name: &str, host: &str, query: &str) -> String {
        address(&self.server, name, host, query)
    }

    /// Returns the number of TLS handshakes that the server has completed.
    async fn handshakes(&self) -> u64 {
        let sql = "SHOW GLOBAL STATUS LIKE 'Ssl_finished_accepts'";
        let row: Option<(String, u64)> = self.server.admin().await.query_first(sql).await.unwrap();
        row.unwrap().1
    }
}

/// Creates users; each has a database of its name, and no rights in another.
async fn users(server: &Server, users: &[(&str, &str)]) {
    let mut admin = server.admin().await;
    for (user, rule) in users {
        for sql in [
            format!("CREATE DATABASE {user}"),
            format!("CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'sesame-{user}' {rule}"),
            format!("GRANT ALL ON {user}.* TO '{user}'@'127.0.0.1'"),
        ] {
            admin.query_drop(sql).await.unwrap();
        }
    }
}

/// Returns the address of database `name`, for the user of this name.
fn address(server: &Server, name: &str, host: &str, query: &str) -> String {
    format!("mysql://{name}:sesame-{name}@{host}:{}/{name}?{query}", server.port)
}

/// Returns the error of an address that is refused; checks that it does not contain the password.
async fn refused(address: &str) -> String {
    let error = store::open(address).await.err().unwrap_or_else(|| panic!("let in"));
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");
    error.to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_registries_over_tls_and_neither_sees_the_other() {
    let encrypted = Encrypted::start().await;
    let full = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={}", encrypted.authority.ca());
    let mut nodes = Vec::new();
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        let before = encrypted.handshakes().await;
        let store = store::open(&encrypted.address(name, "127.0.0.1", &full)).await.unwrap();
        let node = open(&store).await;
        node.register(vec![registration(n, name)]).await.pop().unwrap().unwrap();
        assert!(encrypted.handshakes().await >= before + 2, "one writes and one reads, at least");
        nodes.push(node);
    }
    for (n, node) in nodes.iter().enumerate() {
        assert!(node.instance(&id(n)).is_some());
        assert!(node.instance(&id(1 - n)).is_none(), "what is in the other database");
    }
    for node in nodes {
        node.shutdown().await;
    }
    // With the other user's password; for the other user's database.
    let address = encrypted.address("a", "127.0.0.1", &full);
    refused(&address.replace("sesame-a", "sesame-b")).await;
    refused(&address.replace("/a?", "/b?")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_are_as_mysqls_clients_have_them() {
    let encrypted = Encrypted::start().await;
    let other = Authority::new();
    let (ca, wrong) = (encrypted.authority.ca(), other.ca());
    for query in [
        String::new(),
        "ssl-mode=PREFERRED".into(),
        "ssl-mode=REQUIRED".into(),
        format!("ssl-mode=REQUIRED&ssl-ca={ca}"),
        format!("ssl-mode=VERIFY_CA&ssl-ca={ca}"),
        format!("ssl-ca={ca}"),
    ] {
        // This name is not in the certificate: only VERIFY_IDENTITY rejects that.
        for host in ["127.0.0.1", "localhost"] {
            for user in ["a", "free"] {
                let before = encrypted.handshakes().await;
                let opened = store::open(&encrypted.address(user, host, &query)).await;
                let _store = opened.unwrap_or_else(|error| panic!("{query} at {host}: {error}"));
                assert!(encrypted.handshakes().await > before, "{query} at {host}: not encrypted");
            }
        }
    }
    let plain = refused(&encrypted.address("a", "127.0.0.1", "ssl-mode=DISABLED")).await;
    assert!(plain.contains("Access denied"), "{plain}");
    let before = encrypted.handshakes().await;
    store::open(&encrypted.address("free", "127.0.0.1", "ssl-mode=DISABLED")).await.unwrap();
    assert_eq!(encrypted.handshakes().await, before);

    // The user who may log in without TLS is refused as well.
    for query in ["ssl-mode=VERIFY_IDENTITY&", "ssl-mode=VERIFY_CA&", "ssl-mode=REQUIRED&", "ssl-mode=PREFERRED&", ""] {
        for user in ["a", "free"] {
            let said = refused(&encrypted.address(user, "127.0.0.1", &format!("{query}ssl-ca={wrong}"))).await;
            assert!(said.contains("TLS") && said.contains("certificate is not of a CA"), "{query}: {said}");
        }
    }
    let full = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}");
    let said = refused(&encrypted.address("free", "localhost", &full)).await;
    assert!(said.contains("certificate") && said.contains("\"localhost\""), "{said}");
    store::open(&encrypted.address("free", "127.0.0.1", &full)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let encrypted = Encrypted::start().await;
    let own = &encrypted.authority;
    let query = |name: &str| {
        let [cert, key] = own.client(name);
        format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={}&ssl-cert={}&ssl-key={}", own.ca(), cert, key)
    };
    let shown = query("shown");
    let _store = store::open(&encrypted.address("shown", "127.0.0.1", &shown)).await.unwrap();
    // With another user's certificate, and with none.
    for query in [query("b"), "ssl-mode=REQUIRED".into()] {
        let said = refused(&encrypted.address("shown", "127.0.0.1", &query)).await;
        assert!(said.contains("Access denied"), "{said}");
    }
    std::fs::set_permissions(own.file("shown.key"), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let said = refused(&encrypted.address("shown", "127.0.0.1", &shown)).await;
    assert!(said.contains("reading ssl-key") && said.contains("others may use it"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_for_each_connection() {
    let encrypted = Encrypted::start().await;
    let (right, wrong) = (std::fs::read(encrypted.authority.ca()), std::fs::read(Authority::new().ca()));
    let file = encrypted.authority.file("changing.crt");
    std::fs::write(&file, right.as_ref().unwrap()).unwrap();
    let query = format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={}", file.display());
    let store = store::open(&encrypted.address("a", "127.0.0.1", &query)).await.unwrap();
    store.resolve(1).await.unwrap();
    std::fs::write(&file, wrong.unwrap()).unwrap();
    let said = store.resolve(1).await.unwrap_err().to_string();
    assert!(said.contains("certificate is not of a CA"), "{said}");
    std::fs::write(&file, right.unwrap()).unwrap();
    store.resolve(1).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_where_tls_is_wanted() {
    // MySQL's own server enables TLS unless every version is disabled.
    let without = if mysqld().is_some() { "--tls-version=" } else { "--skip-ssl" };
    let server = Server::start_with(&["--skip-name-resolve".into(), without.into()]);
    users(&server, &[("a", ""), ("b", "")]).await;
    let authority = Authority::new();
    let ca = authority.ca();
    for query in [
        "ssl-mode=REQUIRED".to_owned(),
        format!("ssl-mode=VERIFY_CA&ssl-ca={ca}"),
        format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}"),
        format!("ssl-ca={ca}"),
    ] {
        let said = refused(&address(&server, "a", "127.0.0.1", &query)).await;
        assert!(said.contains("server does not support TLS"), "{query}: {said}");
    }
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'a'";
    let tables: Option<i64> = server.admin().await.query_first(tables).await.unwrap();
    assert_eq!(tables, Some(0), "nothing was done without TLS");
    for (user, query) in [("a", "ssl-mode=PREFERRED"), ("a", "ssl-mode=DISABLED"), ("b", "")] {
        store::open(&address(&server, user, "127.0.0.1", query)).await.unwrap();
    }
}
