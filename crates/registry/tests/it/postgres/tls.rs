//! Stores whose server requires TLS for connections over TCP, and one whose server has none. Encryption is verified on the server, in pg_stat_ssl.

use super::*;
use crate::common::authority::Authority;

/// A server with databases of the users `a` and `b`, who have passwords; and a user who logs in by certificate alone.
struct Encrypted {
    server: Server,
    authority: Authority,
}

impl Encrypted {
    /// Starts a server with a certificate for 127.0.0.1 and no other host.
    async fn start() -> Encrypted {
        let (server, authority) = (Server::start(), Authority::new());
        let setup = "CREATE ROLE a LOGIN PASSWORD 'sesame-a'; CREATE ROLE b LOGIN PASSWORD 'sesame-b';
            CREATE ROLE shown LOGIN";
        let admin = server.admin().await;
        admin.batch_execute(setup).await.unwrap();
        for user in ["a", "b", "shown"] {
            admin.batch_execute(&format!("CREATE DATABASE {user} OWNER {user}")).await.unwrap();
        }
        let data = server.directory.path().join("data");
        authority.issue("server", &["127.0.0.1"], &data);
        std::fs::copy(authority.ca(), data.join("ca.crt")).unwrap();
        let hba = "local all postgres trust\n\
            hostssl shown shown 127.0.0.1/32 cert\n\
            hostssl a a 127.0.0.1/32 scram-sha-256\n\
            hostssl b b 127.0.0.1/32 scram-sha-256\n";
        std::fs::write(data.join("pg_hba.conf"), hba).unwrap();
        let file = data.join("postgresql.auto.conf");
        let settings = std::fs::read_to_string(&file).unwrap()
            + &format!(
                "unix_socket_directories = '{}'\nssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\n\
                 ssl_ca_file = 'ca.crt'\n",
                server.directory.path().display()
            );
        std::fs::write(&file, settings).unwrap();
        if let Some((uid, gid)) = server.user {
            for name in ["server.crt", "server.key", "ca.crt", "pg_hba.conf", "postgresql.auto.conf"] {
                std::os::unix::fs::chown(data.join(name), Some(uid), Some(gid)).unwrap();
            }
        }
        drop(admin);
        run(server.command("pg_ctl").args(["-w", "-t", "30", "-D", "data", "-l", "log", "-m", "fast", "restart"]));
        Encrypted { server, authority }
    }

    /// Returns the address of database `name`, for the user of this name.
    fn address(&self, name: &str, host: &str, query: &str) -> String {
        format!("postgres://{name}:sesame-{name}@{host}:{}/{name}?{query}", self.server.port)
    }

    /// Returns the number of the registry's connections to this database, and of the encrypted ones among them.
    async fn connections(&self, database: &str) -> (i64, i64) {
        let mut config = tokio_postgres::Config::new();
        config.host_path(self.server.directory.path()).port(self.server.port).user("postgres").dbname("postgres");
        let (client, connection) = config.connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql =
            "SELECT count(*), count(*) FILTER (WHERE s.ssl) FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid)
            WHERE a.datname = $1 AND a.backend_type = 'client backend'";
        let row = client.query_one(sql, &[&database]).await.unwrap();
        (row.get(0), row.get(1))
    }
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
    let full = format!("sslmode=verify-full&sslrootcert={}", encrypted.authority.ca());
    let mut nodes = Vec::new();
    for (n, name) in ["a", "b"].into_iter().enumerate() {
        let store = store::open(&encrypted.address(name, "127.0.0.1", &full)).await.unwrap();
        let node = open(&store).await;
        node.register(vec![registration(n, name)]).await.pop().unwrap().unwrap();
        nodes.push(node);
    }
    for (n, node) in nodes.iter().enumerate() {
        assert!(node.instance(&id(n)).is_some());
        assert!(node.instance(&id(1 - n)).is_none(), "what is in the other database");
    }
    for name in ["a", "b"] {
        let (all, encrypted) = encrypted.connections(name).await;
        assert!(all >= 2, "one writes and one listens, at least: {all}");
        assert_eq!(encrypted, all, "connections of {name} that are encrypted");
    }
    for node in nodes {
        node.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn modes_are_as_libpq_has_them() {
    let encrypted = Encrypted::start().await;
    let other = Authority::new();
    let (ca, wrong) = (encrypted.authority.ca(), other.ca());
    for query in [
        String::new(),
        "sslmode=prefer".into(),
        "sslmode=require".into(),
        "sslmode=require&channel_binding=require".into(),
        format!("sslmode=verify-ca&sslrootcert={ca}"),
    ] {
        // This name is not in the certificate: only verify-full rejects that.
        for host in ["127.0.0.1", "localhost"] {
            let _store = store::open(&encrypted.address("a", host, &query)).await.unwrap();
            let (all, encrypted) = encrypted.connections("a").await;
            assert!(all > 0 && all == encrypted, "{query} at {host}: {encrypted} of {all} connections are encrypted");
        }
    }
    // A certificate may be for an address without a name.
    let bare = format!("hostaddr=127.0.0.1&port={}&sslmode=verify-full&sslrootcert={ca}", encrypted.server.port);
    store::open(&format!("postgres://a:sesame-a@/a?{bare}")).await.unwrap();

    let plain = refused(&encrypted.address("a", "127.0.0.1", "sslmode=disable")).await;
    assert!(plain.contains("no encryption"), "{plain}");
    for query in ["sslmode=verify-full", "sslmode=verify-ca", "sslmode=require", "sslmode=prefer"] {
        let said = refused(&encrypted.address("a", "127.0.0.1", &format!("{query}&sslrootcert={wrong}"))).await;
        assert!(said.contains("TLS") && said.contains("certificate"), "{query}: {said}");
    }
    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    let said = refused(&encrypted.address("a", "localhost", &full)).await;
    assert!(said.contains("certificate") && said.contains("name"), "{said}");
    store::open(&encrypted.address("a", "127.0.0.1", &full)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_shown_to_a_server_that_asks_for_one() {
    let encrypted = Encrypted::start().await;
    let own = &encrypted.authority;
    let query = |name: &str| {
        let [cert, key] = own.client(name);
        format!("sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}", own.ca(), cert, key)
    };
    let _store = store::open(&encrypted.address("shown", "127.0.0.1", &query("shown"))).await.unwrap();
    // With another user's certificate, and with none.
    refused(&encrypted.address("shown", "127.0.0.1", &query("b"))).await;
    refused(&encrypted.address("shown", "127.0.0.1", "sslmode=require")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_where_tls_is_wanted() {
    let server = Server::start();
    let authority = Authority::new();
    let ca = authority.ca();
    for query in [
        "sslmode=require".to_owned(),
        format!("sslmode=verify-ca&sslrootcert={ca}"),
        format!("sslmode=verify-full&sslrootcert={ca}"),
    ] {
        let said = refused(&format!("postgres://postgres:sesame@127.0.0.1:{}/postgres?{query}", server.port)).await;
        assert!(said.contains("server does not support TLS"), "{query}: {said}");
    }
    let sql = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'registry%'";
    let tables: i64 = server.admin().await.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(tables, 0, "nothing was done without TLS");
    for query in ["sslmode=prefer", "sslmode=disable", ""] {
        store::open(&format!("{}?{query}", server.address())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_for_each_connection() {
    let encrypted = Encrypted::start().await;
    let (right, wrong) = (std::fs::read(encrypted.authority.ca()), std::fs::read(Authority::new().ca()));
    let file = encrypted.authority.file("changing.crt");
    std::fs::write(&file, right.as_ref().unwrap()).unwrap();
    let query = format!("sslmode=verify-full&sslrootcert={}", file.display());
    let store = store::open(&encrypted.address("a", "127.0.0.1", &query)).await.unwrap();
    store.resolve(1).await.unwrap();
    std::fs::write(&file, wrong.unwrap()).unwrap();
    let said = store.resolve(1).await.unwrap_err().to_string();
    assert!(said.contains("certificate"), "{said}");
    std::fs::write(&file, right.unwrap()).unwrap();
    store.resolve(1).await.unwrap();
}
