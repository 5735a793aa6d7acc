//! Method `pam`: PostgreSQL itself and the proxy ask the same services of PAM by the same rules, and decide the same.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kingpost_tests::{Cluster, Kingpost, Port, ShowLogs, kingpost_bin, new_dir, skipped, wait_until};
use tokio_postgres::{Config, NoTls};

use crate::common::only_kingpost;
use crate::ldap::{readable, table, who, who_is};

/// Users and passwords of the two services that have some. No user has the same password in both.
const FIRST: &[(&str, &str)] =
    &[("ann", "anns-first"), ("ben", "bens-first"), ("gone", "gones-first"), ("stray", "strays-first")];
const SECOND: &[(&str, &str)] = &[("ann", "anns-second"), ("ben", "bens-second")];
/// Error of a client whose password PAM could not verify.
const UNKNOWN: &str = "08006 PAM could not be asked about the password: try again";

/// Files in `/etc/pam.d`, removed at the end.
struct Services(Vec<PathBuf>);

impl Services {
    /// Returns the name of a service that only this test uses.
    fn name(of: &str) -> String {
        format!("kingpost-test-{}-{of}", std::process::id())
    }

    fn add(&mut self, of: &str, lines: &str) {
        let path = Path::new("/etc/pam.d").join(Services::name(of));
        readable(&path, lines);
        self.0.push(path);
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn executable(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// True if tests can create services here, with the modules that they need.
fn can_have_services() -> bool {
    let module = |name: &str| {
        let places = ["/usr/lib/x86_64-linux-gnu/security", "/usr/lib/aarch64-linux-gnu/security", "/lib64/security"];
        places.iter().any(|place| Path::new(place).join(name).exists())
    };
    let probe = Path::new("/etc/pam.d").join(Services::name("probe"));
    let can = module("pam_exec.so") && module("pam_listfile.so") && std::fs::write(&probe, "").is_ok();
    let _ = std::fs::remove_file(&probe);
    if !can {
        skipped("no pam_exec, or /etc/pam.d can't be written to (only root can)");
    }
    can
}

/// Makes a directory in which modules find users' passwords: a file `NAME` for each table, and `in-table`, which searches one.
fn tables(name: &str, of: &[(&str, &[(&str, &str)])]) -> PathBuf {
    let dir = new_dir(name);
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    for (name, pairs) in of {
        let lines: String = pairs.iter().map(|(user, password)| format!("{user} {password}\n")).collect();
        readable(&dir.join(name), &lines);
    }
    executable(
        &dir.join("in-table"),
        "#!/bin/sh\npassword=$(/usr/bin/tr -d '\\000')\nexec /bin/grep -qxF -- \"$PAM_USER $password\" \"$1\"\n",
    );
    dir
}

/// Returns the processes below `parent`.
fn descendants(parent: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut next = vec![parent];
    while let Some(of) = next.pop() {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{of}/task")) else { continue };
        for task in tasks.flatten() {
            let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
                if found.insert(child) {
                    next.push(child);
                }
            }
        }
    }
    found
}

/// True if a process has ended; a process without its parent cannot be waited for.
fn has_ended(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// Logs in over TCP: the user's name, or the error's code and text.
async fn over_tcp(port: u16, database: &str, user: &str, password: &str) -> Result<String, String> {
    let mut config = Config::new();
    config.host("127.0.0.1").port(port).dbname(database).user(user).password(password);
    who_is(&config).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pam_lets_in_whom_postgresql_lets_in_by_it() {
    if only_kingpost() {
        return;
    }
    if !can_have_services() {
        return;
    }
    let helper = kingpost_bin().with_file_name("kingpost-pam");
    assert!(helper.exists(), "no {}: build it (cargo build -p kingpost-pam)", helper.display());

    // The binary itself runs on machines without libpam.
    let libraries = Command::new(kingpost_bin()).env("LD_TRACE_LOADED_OBJECTS", "1").output().unwrap();
    let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
    assert!(libraries.contains("libc.so") && !libraries.contains("libpam"), "{libraries}");

    let dir = tables("pam", &[("first", FIRST), ("second", SECOND)]);
    let at = dir.display().to_string();
    readable(&dir.join("expired"), "gone\n");
    executable(&dir.join("from-host"), "#!/bin/sh\n[ \"$PAM_RHOST\" = \"$1\" ]\n");
    // Reports its process id, and never ends.
    executable(&dir.join("hang"), "#!/bin/sh\n/usr/bin/tr -d '\\000' >/dev/null\nexec /bin/sleep 1000\n");
    let mut services = Services(Vec::new());
    for name in ["first", "second"] {
        services.add(
            name,
            &format!(
                "auth required pam_exec.so expose_authtok quiet {at}/in-table {at}/{name}\n\
                 account required pam_listfile.so item=user sense=deny onerr=fail file={at}/expired\n"
            ),
        );
    }
    services.add("permit", "auth required pam_permit.so\naccount required pam_permit.so\n");
    services.add("deny", "auth required pam_deny.so\naccount required pam_permit.so\n");
    services.add("noaccount", "auth required pam_permit.so\naccount required pam_deny.so\n");
    let host =
        |name: &str| format!("auth required pam_permit.so\naccount required pam_exec.so quiet {at}/from-host {name}\n");
    services.add("address", &host("127.0.0.1"));
    services.add("named", &host("localhost"));
    services.add(
        "hang",
        &format!("auth required pam_exec.so expose_authtok quiet {at}/hang\naccount required pam_permit.so\n"),
    );

    // A database for each service. Behind the proxy those with rules for TCP are the database postgres, where the proxy is trusted.
    let local = ["first", "second", "permit", "deny", "noaccount", "missing"];
    let tcp = [("address", "address", 0), ("byname", "named", 1), ("unnamed", "named", 0)];
    let mut lines = String::new();
    for database in local {
        lines += &format!("local {database} all pam pamservice={}\n", Services::name(database));
    }
    for (database, service, by_name) in tcp {
        let service = Services::name(service);
        lines += &format!("host {database} all 127.0.0.1/32 pam pamservice={service} pam_use_hostname={by_name}\n");
    }
    let cluster = Cluster::builder()
        .hba(&format!("{lines}host all,replication all 127.0.0.1/32 trust\nlocal all all trust\n"))
        .setting("unix_socket_directories", &at)
        .start()
        .await;
    let _logs = ShowLogs(cluster.dir());
    let roles = ["ann", "ben", "gone"];
    for role in roles.iter().chain(&["other"]) {
        cluster.primary().execute(&format!("CREATE ROLE {role} LOGIN")).await;
    }
    for database in local.iter().chain(tcp.iter().map(|(database, ..)| database)) {
        cluster.primary().execute(&format!("CREATE DATABASE {database}")).await;
    }
    let rules = dir.join("rules");
    let hanging = Services::name("hang");
    readable(
        &rules,
        &format!(
            "{lines}local hang all pam pamservice={hanging}\nlocal all other scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
        ),
    );
    let port = Port::reserve();
    let socket = dir.join(format!(".s.PGSQL.{}", port.number()));
    let mut kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.hba_file", rules.display().to_string())
        .set("proxy.pam.max_checks", 4)
        .add("proxy.listen", table(&[("address", &socket.display().to_string()), ("mode", "0777")]))
        .add("proxy.users", table(&[("name", "other"), ("password", "of-other")]))
        .add("proxy.databases", table(&[("name", "*")]))
        .add("proxy.databases", table(&[("name", "hang"), ("dbname", "postgres")]));
    for (database, ..) in tcp {
        kingpost = kingpost.add("proxy.databases", table(&[("name", database), ("dbname", "postgres")]));
    }
    for role in roles {
        kingpost = kingpost.add("proxy.users", table(&[("name", role)]));
    }
    let kingpost = kingpost.start().await;
    let (direct, proxied) = (cluster.primary().port(), port.number());

    let mut let_in = Vec::new();
    for database in local {
        for role in roles {
            for password in ["anns-first", "bens-first", "gones-first", "anns-second", "bens-second", ""] {
                // A service without its own file is `other`, whose modules take seconds to refuse.
                if database == "missing" && (role, password) != ("ann", "anns-first") {
                    continue;
                }
                let directly = who(&dir, direct, database, role, password).await;
                let through = who(&dir, proxied, database, role, password).await;
                let what = format!("{role} in {database} with {password:?}");
                if database == "permit" && password.is_empty() {
                    // No module asks for a password, so PostgreSQL does not ask its client either. The proxy always does.
                    assert_eq!(directly.as_deref(), Ok(role), "{what}");
                    assert!(through.unwrap_err().starts_with("28P01"), "{what}");
                    continue;
                }
                if password.is_empty() && ["deny", "noaccount"].contains(&database) {
                    assert!(directly.is_err() && through.unwrap_err().starts_with("28P01"), "{what}");
                    continue;
                }
                assert_eq!(through, directly, "{what}");
                match through {
                    Ok(name) => {
                        assert_eq!(name, role);
                        let_in.push(format!("{database} {role} {password}"));
                    }
                    Err(said) if password.is_empty() => assert!(said.starts_with("28P01"), "{what}: {said}"),
                    Err(said) => assert_eq!(said, format!("28000 PAM authentication failed for user {role:?}")),
                }
            }
        }
    }
    // A user with an expired account cannot log in by a service that checks it.
    let mut expected: Vec<String> =
        ["first ann anns-first", "first ben bens-first", "second ann anns-second", "second ben bens-second"]
            .map(str::to_owned)
            .to_vec();
    for role in roles {
        for password in ["anns-first", "bens-first", "gones-first", "anns-second", "bens-second"] {
            expected.push(format!("permit {role} {password}"));
        }
    }
    assert_eq!(let_in, expected);
    // PAM knows this user; the proxy does not.
    let said = who(&dir, proxied, "first", "stray", "strays-first").await.unwrap_err();
    assert_eq!(said, "28000 PAM authentication failed for user \"stray\"");

    // The client's host: by address, and by name.
    let proxied_tcp = kingpost.port();
    for (database, good) in [("address", true), ("byname", true), ("unnamed", false)] {
        let directly = over_tcp(direct, database, "ann", "any").await;
        let through = over_tcp(proxied_tcp, database, "ann", "any").await;
        assert_eq!(through, directly, "{database}");
        assert_eq!(through.is_ok(), good, "{database}: {through:?}");
    }

    // Modules that hang, and more logins than may ask at a time: no other login waits, no process shows a password to others, and in the end all
    // processes are gone.
    let pid = kingpost.process().pid();
    assert_eq!(descendants(pid), BTreeSet::new());
    let hung: Vec<_> = (0..6)
        .map(|_| {
            let dir = dir.clone();
            tokio::spawn(async move { who(&dir, proxied, "hang", "ann", "anns-secret-there").await })
        })
        .collect();
    let asleep = wait_until("four modules to hang", kingpost_tests::SOON, cluster.dir(), async || {
        let all = descendants(pid);
        let name = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let asleep = all.iter().filter(|pid| name(pid).trim() == "sleep").count();
        assert!(asleep <= 4, "{asleep} at a time");
        (asleep == 4).then_some(all)
    })
    .await;
    for pid in &asleep {
        for file in ["cmdline", "environ"] {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(!text.contains("anns-secret-there"), "{pid}'s {file}: {text}");
        }
    }
    assert_eq!(who(&dir, proxied, "postgres", "other", "of-other").await.as_deref(), Ok("other"));
    for login in hung {
        assert_eq!(login.await.unwrap().unwrap_err(), UNKNOWN);
    }
    cluster.wait("the modules to be gone", async || descendants(pid).is_empty().then_some(())).await;
    for pid in &asleep {
        cluster.wait(&format!("process {pid} to be gone"), async || has_ended(*pid).then_some(())).await;
    }
    assert_eq!(who(&dir, proxied, "first", "ann", "anns-first").await.as_deref(), Ok("ann"));

    // Without an answer of the helper the login fails, however the helper ends.
    let log = || std::fs::read_to_string(kingpost.process().log()).unwrap_or_default();
    for (broken, says) in [
        ("/bin/true", "/bin/true gave no answer"),
        ("/bin/echo", "/bin/echo gave no answer"),
        ("/nowhere/kingpost-pam", "cannot start /nowhere/kingpost-pam"),
        ("/bin/false", "/bin/false gave no answer"),
    ] {
        kingpost.reload("proxy.pam.helper", broken);
        // Until the reload takes effect the earlier helper is asked, which is also broken: a login that succeeds is too early.
        let refused = async || {
            let said = who(&dir, proxied, "first", "ann", "anns-first").await;
            said.err().filter(|said| said == UNKNOWN && log().contains(says))
        };
        cluster.wait("the other helper to count", refused).await;
        assert_eq!(who(&dir, proxied, "first", "ann", "anns-first").await.unwrap_err(), UNKNOWN);
    }

    // No log has a password.
    let log = log();
    assert!(log.contains("PAM refuses a user"), "{log}");
    for (_, password) in FIRST.iter().chain(SECOND).chain(&[("ann", "anns-secret-there")]) {
        assert!(!log.contains(password), "the log has {password}");
    }

    // The asking process is killed: the modules end as well.
    kingpost.reload("proxy.pam.helper", helper.display().to_string());
    let works = async || who(&dir, proxied, "first", "ben", "bens-first").await.ok();
    cluster.wait("the right helper to count again", works).await;
    let asking = {
        let dir = dir.clone();
        tokio::spawn(async move {
            let mut config = Config::new();
            config.host_path(&dir).port(proxied).dbname("hang").user("ben").password("bens-first");
            config.connect(NoTls).await.map(drop).unwrap_err()
        })
    };
    let asleep = wait_until("a module to hang", kingpost_tests::SOON, cluster.dir(), async || {
        descendants(pid)
            .into_iter()
            .find(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep"))
    })
    .await;
    kingpost.kill9().await;
    asking.await.unwrap();
    cluster.wait("the module to be gone", async || has_ended(asleep).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_user_logs_in_by_pam_without_rules() {
    if only_kingpost() || !can_have_services() {
        return;
    }
    let dir = tables("pam-user", &[("first", FIRST)]);
    let at = dir.display();
    let mut services = Services(Vec::new());
    services.add(
        "user",
        &format!(
            "auth required pam_exec.so expose_authtok quiet {at}/in-table {at}/first\naccount required pam_permit.so\n"
        ),
    );
    let cluster = Cluster::builder().hba("host all,replication all 127.0.0.1/32 trust\n").start().await;
    let _logs = ShowLogs(cluster.dir());
    for role in ["ann", "ben"] {
        cluster.primary().execute(&format!("CREATE ROLE {role} LOGIN")).await;
        cluster.primary().execute(&format!("CREATE DATABASE of_{role}")).await;
    }
    let port = Port::reserve();
    let socket = dir.join(format!(".s.PGSQL.{}", port.number()));
    let _kingpost = Kingpost::of(&cluster)
        .set("proxy.auth", "scram-sha-256")
        .set("proxy.pam.options", format!("pamservice={}", Services::name("user")))
        .add("proxy.listen", table(&[("address", &socket.display().to_string()), ("mode", "0777")]))
        .add("proxy.users", table(&[("name", "ann"), ("auth", "pam")]))
        .add("proxy.users", table(&[("name", "ben"), ("password", "bens-scram")]))
        .start()
        .await;
    for database in ["of_ann", "of_ben"] {
        for (user, password, expected) in [
            ("ann", "anns-first", Ok("ann")),
            ("ann", "bens-first", Err("28000 PAM authentication failed for user \"ann\"")),
            ("ann", "bens-scram", Err("28000 PAM authentication failed for user \"ann\"")),
            ("ben", "bens-scram", Ok("ben")),
            ("ben", "bens-first", Err("28P01 password authentication failed for user \"ben\"")),
            ("ben", "anns-first", Err("28P01 password authentication failed for user \"ben\"")),
        ] {
            let came = who(&dir, port.number(), database, user, password).await;
            assert_eq!(came.as_deref().map_err(String::as_str), expected, "{user} with {password} in {database}");
        }
    }
}
