"""Blocks about relays, on real servers: db1 is the primary; a relay as relay.md configures it; relay1 and relay2 with TLS; standbys that follow, and servers that
are restored, through what the page prints. Then watchers of failover.md, with their lock in an etcd that knows users."""

import contextlib
import pathlib
import re
import signal
import subprocess
from collections.abc import Iterator

import pages
from servers import Server, owned
from worlds import HOSTS, PASSWORD, Inside, World, expect, listens, plain

RELAY = "docs/guide/relay.md"
FAILOVER = "docs/guide/failover.md"
ETC = pathlib.Path("/etc/kingpost")
KEPT = pathlib.Path("/var/lib/kingpost/relay")
OF_REPLICATOR = ETC / "replicator.password"


def secret(name: str) -> None:
    (ETC / name).write_text(PASSWORD + "\n")
    owned(ETC / name)


def certificates(world: World) -> None:
    """A CA, and certificates of hosts and of a client, in /etc/kingpost."""
    world.shell(f"cd {ETC}; openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem 2>&1")
    for host in ["db1", "relay1", "relay2", "etcd-server", "etcd-client"]:
        # As failover.md says of etcd: without a common name.
        names = ",".join(f"DNS:{name}" for name in (HOSTS if host == "etcd-server" else [host]))
        request = f"openssl req -newkey rsa:2048 -nodes -subj / -keyout {host}.key -out {host}.csr 2>&1"
        sign = f"openssl x509 -req -in {host}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile {host}.ext -out {host}.crt 2>&1"
        world.shell(f"cd {ETC}; echo subjectAltName={names} > {host}.ext; {request}; {sign}")
        owned(ETC / f"{host}.key")


@contextlib.contextmanager
def relays(inside: Inside, name: str) -> Iterator[World]:
    with plain(inside, name) as world:
        world.server = {name: Server(world, name) for name in ["db1", "db2", "db3"]}
        world.relay = {}
        try:
            for password in ["replication.password", "replicator.password", "relay.password", "failover.password", "etcd.password"]:
                secret(password)
            certificates(world)
            # Who is whom to relays and servers: libpq's own file.
            world.write(".pgpass", f"*:*:*:replicator:{PASSWORD}\n")
            owned(world.directory / ".pgpass")
            world.environment["HOME"] = str(world.directory)
            world.environment["PGPASSFILE"] = str(world.directory / ".pgpass")
            db1 = world.server["db1"]
            db1.init("--wal-segsize=1")
            db1.configure(f"ssl = on\nssl_cert_file = '{ETC}/db1.crt'\nssl_key_file = '{ETC}/db1.key'\nwal_keep_size = '1GB'\nwal_retrieve_retry_interval = '200ms'\n")
            db1.start()
            db1.sql("create user kingpost", f"create user replicator replication password '{PASSWORD}'", "create table kept (what text)")
            yield world
        finally:
            world.end()
            for server in world.server.values():
                server.stop()


def relay_starts(world: World, name: str, port: int = 6442) -> None:
    world.relay[name] = world.start(f"kingpost relay --config {name}.toml", user="postgres")
    world.wait(f"{name} receives", lambda: world.server["db1"].says(f"select count(*) from pg_stat_replication where application_name = '{application(name)}'", "1"))
    world.wait(f"{name} listens", lambda: listens(port, HOSTS[name]))


def application(name: str) -> str:
    return "kingpost_relay" if name == "relay" else name


def relay_stops(world: World, name: str) -> None:
    world.relay[name].send_signal(signal.SIGTERM)
    expect(world.relay[name].wait(30) == 0, f"{name} has not ended well")


def written(world: World, what: str) -> None:
    world.server["db1"].sql(f"insert into kept values ('{what}')")


def has(world: World, name: str, what: str) -> bool:
    return world.server[name].says(f"select count(*) from kept where what = '{what}'", "1")


# --- a relay, and a standby behind it ---


def the_pages_relay(world: World) -> None:
    """As relay.md has it, address and port included. It runs as the servers' user, who is to recover from its files."""
    KEPT.mkdir()
    owned(KEPT, 0o700)
    world.write("relay.toml", pages.of(pages.ROOT / RELAY)[1].text)
    relay_starts(world, "relay")


def slot_is_made(world: World, output: str) -> None:
    expect(re.search(r"replica1 +\| ", output) is not None, output)


def base_backup(world: World) -> None:
    world.server["db2"].copy(world.server["db1"], "-X", "stream")


def standby_follows(world: World, output: str) -> None:
    db2 = world.server["db2"]
    db2.signal_file("standby.signal")
    db2.start()
    written(world, "behind the relay")
    world.wait(f"the standby has what was committed\n{db2.log()}", lambda: has(world, "db2", "behind the relay"))
    receives = db2.sql("select sender_host, sender_port, slot_name from pg_stat_wal_receiver")
    expect(receives == "relay|6442|replica1", f"the standby receives from {receives}")


# --- commits that wait ---


def commits_wait_for_the_relay(world: World, output: str) -> None:
    db1 = world.server["db1"]
    db1.reload()
    world.wait("the relay is what commits wait for", lambda: db1.says("select application_name from pg_stat_replication where sync_state = 'sync'", "kingpost_relay"))
    written(world, "with the relay")
    world.relay["relay"].send_signal(signal.SIGSTOP)
    try:
        insert = world.start("psql -qh db1 -U postgres -c \"insert into kept values ('without the relay')\"")
        world.wait("a commit waits", lambda: db1.says("select count(*) from pg_stat_activity where wait_event = 'SyncRep'", "1"))
        expect(insert.poll() is None and not has(world, "db1", "without the relay"), "a commit has ended without the relay")
    finally:
        world.relay["relay"].send_signal(signal.SIGCONT)
    expect(insert.wait(30) == 0, "the commit did not end when the relay was back")
    world.wait("the standby has it", lambda: has(world, "db2", "without the relay"))


def slots_have_a_limit(world: World, output: str) -> None:
    db1 = world.server["db1"]
    db1.reload()
    world.wait("the limit is in force", lambda: db1.says("show max_slot_wal_keep_size", "50GB"))


# --- servers that are restored ---


def backup_without_wal(world: World) -> None:
    """A base backup that lacks the WAL that it needs, and a table that only WAL has, up to a restore point."""
    db1, db3 = world.server["db1"], world.server["db3"]
    db3.stop()
    subprocess.run(["rm", "-rf", str(db3.data)], check=True)
    db3.copy(db1, "-X", "none")
    db1.sql("create table restored ()", "select pg_create_restore_point('guide')", "drop table restored", "select pg_switch_wal()")
    # The point is behind what every relay has made durable once a later commit is.
    written(world, "later")
    position = db1.sql("select pg_current_wal_lsn()")
    names = "', '".join(application(name) for name, process in world.relay.items() if process.poll() is None)
    behind = f"select count(*) from pg_stat_replication where application_name in ('{names}') and flush_lsn < '{position}'"
    world.wait("the relays have it", lambda: db1.says(behind, "0"))
    db3.configure("recovery_target_name = 'guide'\nrecovery_target_action = 'promote'\n")
    db3.signal_file("recovery.signal")


def is_restored(world: World, output: str) -> None:
    db3 = world.server["db3"]
    db3.start()
    world.wait("the server has recovered", lambda: db3.says("select pg_is_in_recovery()", "f"))
    expect(db3.says("select count(*) from restored", "0"), f"the table is not there:\n{db3.log()}")
    expect("restored log file" in db3.log(), f"restore_command was not used:\n{db3.log()}")


def two_relays(world: World) -> None:
    """With TLS; the second one takes who comes without, too: the runbook's command for a damaged file says nothing of it. The first one then goes."""
    for name in ["relay1", "relay2"]:
        (world.directory / name).mkdir()
        owned(world.directory / name, 0o700)
        world.write(
            f"{name}.toml",
            f"""[relay]
dir = "{world.directory}/{name}"
listen = ["{HOSTS[name]}:6442"]
[relay.upstream]
address = "db1:5432"
user = "replicator"
password_file = "{ETC}/replication.password"
application_name = "{name}"
slot = "{name}"
[relay.tls]
mode = "{'require' if name == 'relay1' else 'allow'}"
cert_file = "{ETC}/{name}.crt"
key_file = "{ETC}/{name}.key"
[[relay.users]]
name = "replicator"
password_file = "{OF_REPLICATOR}"
[metrics]
listen = ""
""",
        )
        relay_starts(world, name)
    backup_without_wal(world)
    relay_stops(world, "relay1")


# --- the runbook ---


def damaged_segment(world: World) -> None:
    """The relay is stopped, and has lost a segment that another relay has."""
    relay_stops(world, "relay")
    kept = {path.name for path in (world.directory / "relay2").iterdir()} & {path.name for path in KEPT.iterdir()}
    world.segment = min(name for name in kept if re.fullmatch("[0-9A-F]{24}", name))
    (KEPT / world.segment).unlink()


def relay_starts_again(world: World, output: str) -> None:
    of_the_primary = (world.server["db1"].data / "pg_wal" / world.segment).read_bytes()
    expect((KEPT / world.segment).read_bytes() == of_the_primary, "the segment is not the primary's")
    relay_starts(world, "relay")
    written(world, "after the damage")


def end_the_relay(world: World) -> None:
    """What the primary writes then the relay has not got."""
    relay_stops(world, "relay")
    for _ in range(2):
        world.server["db1"].sql("select pg_create_restore_point('away')", "select pg_switch_wal()")


def start_the_relay(world: World) -> None:
    relay_starts(world, "relay")


def relay_is_reset(world: World, output: str) -> None:
    left = [path.name for path in KEPT.iterdir() if path.name.startswith("given-up-")]
    expect(len(left) == 1, f"what was given up is in {left}")
    written(world, "after a reset")
    db2 = world.server["db2"]
    world.wait("the standby is too far behind", lambda: "has already been removed" in db2.log())


def primary_alone(world: World) -> None:
    """Of those whom the runbook's command asks only the last one is there."""
    relay_stops(world, "relay2")


def is_not_behind(world: World, output: str) -> None:
    db2 = world.server["db2"]
    db2.reload()
    world.wait("the standby has what was committed", lambda: has(world, "db2", "after a reset"))
    world.wait("the standby receives from the relay again", lambda: db2.says("select sender_host from pg_stat_wal_receiver where status = 'streaming'", "relay"))


def is_empty(world: World, output: str) -> None:
    left = [path.name for path in KEPT.iterdir() if re.fullmatch("[0-9A-F]{24}", path.name)]
    expect(not left, f"still there: {left}")


# --- watchers, under a lock in etcd ---

CLUSTER = f"""
[cluster]
user = "kingpost"
[[cluster.nodes]]
name = "db1"
address = "db1:5432"
[[cluster.nodes]]
name = "db2"
address = "db2:5432"
[failover]
user = "postgres"
password_file = "{ETC}/failover.password"
[[failover.relays]]
name = "kingpost_relay"
address = "relay:6442"
user = "kingpost"
password_file = "{ETC}/relay.password"
"""


def etcd_with_users(world: World) -> None:
    """An etcd with TLS, certificates of clients and access control, at the three addresses of the page. Whoever administers it gives other users their roles, too."""
    ca, key = f"{ETC}/etcd-ca.crt", f"--cert-file {ETC}/etcd-server.crt --key-file {ETC}/etcd-server.key"
    world.shell(f"cp {ETC}/ca.pem {ca}")
    listen = ",".join(f"https://{HOSTS[name]}:2379" for name in ["etcd1", "etcd2", "etcd3"])
    urls = f"--listen-client-urls {listen} --advertise-client-urls https://etcd1:2379 --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380"
    # Owned by the servers' user, whom watchers run as.
    world.start(f"etcd --data-dir etcd --initial-cluster default=http://127.0.0.1:2380 {urls} {key} --client-cert-auth --trusted-ca-file {ca}")
    world.environment |= {
        "ETCDCTL_API": "3",
        "ETCDCTL_ENDPOINTS": "https://etcd1:2379",
        "ETCDCTL_CACERT": ca,
        "ETCDCTL_CERT": f"{ETC}/etcd-client.crt",
        "ETCDCTL_KEY": f"{ETC}/etcd-client.key",
    }
    world.wait("etcd answers", lambda: world.answers("etcdctl endpoint health"))
    world.shell("etcdctl user add root:of-root; etcdctl user grant-role root root; etcdctl auth enable")
    world.environment["ETCDCTL_USER"] = "root:of-root"
    world.shell(f"etcdctl user add 'ann:{PASSWORD}'; etcdctl role add others; etcdctl role grant-permission others --prefix=true readwrite /others/; etcdctl user grant-role ann others")


def configuration_of(user: str) -> str:
    of_etcd = pages.text(FAILOVER, "[failover.etcd]")
    return CLUSTER + of_etcd.replace('"kingpost" ', f'"{user}" ')


def watcher_has_its_lock(world: World, output: str) -> None:
    relay_starts_for_failovers(world)
    db1, db2 = world.server["db1"], world.server["db2"]
    db2.configure("synchronous_standby_names = 'kingpost_relay'\n")
    db2.reload()
    for user in ["kingpost", "ann"]:
        world.write(f"{user}.toml", configuration_of(user))
    said = world.shell("kingpost check --online --config ann.toml", code=None, user="postgres")
    expect("permission denied" in said, f"another user may have the lock as well:\n{said}")
    world.shell("kingpost check --online --config kingpost.toml", user="postgres")
    seen = world.start("etcdctl watch --prefix /kingpost/failover/"), world.outputs[-1]
    world.start("kingpost watch --config kingpost.toml --etcd --after 1s", user="postgres")
    world.wait("the watcher sees the primary", lambda: "db1 is the primary" in world.said())
    written(world, "before the failover")
    db1.stop()
    world.wait("the watcher has promoted db2", lambda: db2.says("select pg_is_in_recovery()", "f"))
    expect(has(world, "db2", "before the failover"), "db2 lacks what was acknowledged")
    expect("PUT\n/kingpost/failover/" in seen[1].read_text(), "the watcher had no lock in etcd")


def relay_starts_for_failovers(world: World) -> None:
    """With a user who may fence it. The standby has to follow before the primary is lost."""
    file = world.directory / "relay.toml"
    file.write_text(file.read_text() + f'\n[[relay.users]]\nname = "kingpost"\noperator = true\npassword_file = "{ETC}/relay.password"\n')
    relay_starts(world, "relay")
    written(world, "behind the relay again")
    world.wait("the standby follows", lambda: has(world, "db2", "behind the relay again"))
