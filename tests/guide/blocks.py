"""What becomes of each block that the README and the guide print.

A block is named by its page and the beginning of its first line. Blocks that run do so in a world (worlds.py), in the order in which they stand here.
"""

import dataclasses
import json
import os
import pathlib
import re

import pages
from pages import ROOT, Block
from worlds import PASSWORD, Failed, Run, World, listens


@dataclasses.dataclass
class Plan:
    runs: list[tuple[str, list[Run]]]
    problems: list[str]
    not_run: list[tuple[Block, str]]
    elsewhere: int
    shown: int


# === what checks look at ===


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(what)


def nodes(world: World) -> list[dict]:
    return json.loads(world.shell("kingpost status --json"))["nodes"]


def primary(world: World) -> dict:
    found = [node for node in nodes(world) if node["role"] == "primary"]
    expect(len(found) == 1, f"there are {len(found)} primaries")
    return found[0]


def is_up(world: World) -> bool:
    return "self-check" in world.said() and world.answers("psql -h 127.0.0.1 -p 6432 -U postgres postgres -Atc 'select 1'", "1")


PSQL = "psql -h 127.0.0.1 -p 6432 -U postgres postgres -At -v ON_ERROR_STOP=1"
CONSOLE = "psql -h 127.0.0.1 -p 6432 -U postgres kingpost -At -v ON_ERROR_STOP=1"


def has_the_row(world: World, output: str) -> None:
    expect("1|hello" in output.splitlines(), f"the row is not there: {output}")


def ran_where_it_says(world: World, output: str) -> None:
    ports = [int(line) for line in output.splitlines() if line.isdigit()]
    first = int(primary(world)["address"].rsplit(":", 1)[1])
    expect(len(ports) == 3 and ports[0] == ports[2] == first != ports[1], f"the primary listens on {first}, and statements ran on {ports}")


def reads_go_on(world: World, output: str) -> None:
    for _ in range(20):
        expect("1|hello" in world.shell(PSQL, "select * from notes").splitlines(), "a read has failed")


def kill_the_primary(world: World) -> None:
    node = primary(world)["name"]
    world.former = node
    world.shell(f"kill -9 $(head -n 1 .kingpost/nodes/{node}/postmaster.pid)")


def has_failed_over(world: World, output: str) -> None:
    world.shell(PSQL, "insert into notes (text) values ('after')")
    expect(primary(world)["name"] != world.former, "the primary is who it was")
    world.wait("the old primary is a replica", lambda: any(node["name"] == world.former and node["role"] == "replica" for node in nodes(world)))


def node1_leads_again(world: World, output: str) -> None:
    world.wait("node1 is primary", lambda: primary(world)["name"] == "node1")
    world.shell(PSQL, "create table after_all (id int)")


def is_answered(world: World, output: str) -> None:
    expect("kingpost_clients" in output, "no metrics")
    expect(output.splitlines()[-1] == "ok", f"/readyz: {output[-300:]}")


def has_no_rule(world: World, output: str) -> None:
    rules = world.shell(CONSOLE, "SHOW TRAFFIC")
    expect("bad-release" not in rules and "reports|operator" in rules and "search|operator" in rules, rules)


def local_mariadb(world: World) -> str:
    """The client as `kingpost up` prints it."""
    line = next(line for line in world.said().splitlines() if line.startswith("try"))
    return line.removeprefix("try").strip()


def has_variables(world: World, output: str) -> None:
    for name, value in (("rpl-semi-sync-master-timeout", "4294967295"), ("rpl-semi-sync-master-wait-no-slave", "TRUE"), ("rpl-semi-sync-master-wait-point", "AFTER_SYNC")):
        expect(re.search(rf"^{name}\s+{value}$", output, re.MULTILINE) is not None, f"{name} is not {value}")


# --- the README's own servers ---


def first_toml(page: pathlib.Path) -> str:
    return page.read_text().split("```toml\n")[1].split("```")[0]


def own_servers(world: World) -> None:
    world.write("kingpost.toml", first_toml(ROOT / "README.md"))
    pathlib.Path("/etc/kingpost/app.password").write_text(PASSWORD + "\n")
    os.chmod("/etc/kingpost/app.password", 0o600)


APP = f"PGPASSWORD='{PASSWORD}' psql -h 127.0.0.1 -p 6432 -U app app -At -v ON_ERROR_STOP=1"


def serves_app(world: World) -> bool:
    return world.answers(f"{APP} -c 'select 1'", "1")


def is_reloaded(world: World, output: str) -> None:
    """SIGHUP drops no client."""
    pid = world.beside[-1].pid
    told = world.shell(f"{APP} -c 'select 1' -c '\\! kill -HUP {pid}' -c 'select 2'")
    expect(told.split() == ["1", "2"], told)


def with_upgrade_socket(world: World) -> None:
    own_servers(world)
    text = (world.directory / "kingpost.toml").read_text()
    world.write("kingpost.toml", text.replace("[proxy]\n", '[proxy]\nupgrade_socket = "/run/kingpost/upgrade.sock"\n', 1))
    world.start("kingpost proxy --config kingpost.toml")
    world.wait("the proxy serves", lambda: serves_app(world) and os.path.exists("/run/kingpost/upgrade.sock"))
    world.old = world.beside[-1]


def old_pid(world: World) -> str:
    return str(world.old.pid)


def successor_serves(world: World) -> None:
    world.wait("the old process has ended, and the one that it has started serves", lambda: world.old.poll() is not None and serves_app(world))


def was_taken_over(world: World, output: str) -> None:
    world.wait("the process that was started by hand serves", lambda: "has taken over" in world.said() and serves_app(world))


def with_profiles(world: World) -> None:
    own_servers(world)
    world.write("kingpost.toml", (world.directory / "kingpost.toml").read_text() + '\n[metrics]\nprofiler_token = "of-the-guide-and-long"\n')
    world.start("kingpost proxy --config kingpost.toml")
    world.wait("the proxy serves", lambda: serves_app(world))


def has_profiles(world: World, output: str) -> None:
    expect((world.directory / "cpu.pb.gz").read_bytes()[:2] == b"\x1f\x8b", "cpu.pb.gz is not compressed")
    expect("<svg" in (world.directory / "flame.svg").read_text(), "flame.svg is no picture")


# --- configurations ---


def wrong_configuration(world: World) -> None:
    world.write("kingpost.toml", '[proxy]\nauth = "trust"\n\nwrokers = 3\n\n\n\n[proxy.pool]\nsize = "many"\n[[cluster.nodes]]\nname = "a"\naddress = "db1:5432"\n')
    world.environment["KINGPOST__LOG__FORMAT"] = "xml"


def is_right_again(world: World, output: str) -> None:
    del world.environment["KINGPOST__LOG__FORMAT"]


# --- the registry ---


def registry_configuration(world: World) -> None:
    world.write(
        "kingpost.toml",
        f'[registry]\nauth = "none"\nstore = "sqlite:{world.directory}/registry.sqlite"\nlisten = "127.0.0.1:8632"\nconsul_listen = "127.0.0.1:8500"\n[registry.dns]\nlisten = "127.0.0.1:8600"\n',
    )


def registry_listens(world: World) -> None:
    world.wait("the registry listens", lambda: listens(8632))


def is_registered(world: World, output: str) -> None:
    world.wait("the stream tells of the instance", lambda: '"host":"10.0.0.1","port":8080' in world.said())
    expect("10.0.0.1" in world.shell("kingpost registry ls shop"), "not in the list")


def polaris_took_it(world: World, output: str) -> None:
    expect('"code":200000' in output.replace(" ", ""), output)


def polaris_has_it(world: World, output: str) -> None:
    polaris_took_it(world, output)
    expect("10.0.0.1" in output, output)


def dns_answers(world: World, output: str) -> None:
    expect("10.0.0.1\n" in output and "8080 0a000001.addr.consul." in output, output)


def bootstrap_is_json(world: World, output: str) -> None:
    expect(json.loads((world.directory / "bootstrap.json").read_text())["node"]["id"] == "checkout-1", "bootstrap.json")


# --- files of other programs ---

PGBOUNCER = """[databases]
shop = host=db1 port=5432 dbname=shop
books = host=db1 port=5432 dbname=books
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = 6432
auth_type = scram-sha-256
auth_file = /etc/pgbouncer/userlist.txt
pool_mode = transaction
"""
PGCAT = """[general]
host = "127.0.0.1"
port = 6432
admin_username = "admin"
admin_password = "of the console"
[pools.shop]
pool_mode = "transaction"
[pools.shop.users.0]
username = "ann"
password = "of ann"
pool_size = 5
[pools.shop.shards.0]
servers = [["db1", 5432, "primary"], ["db2", 5432, "replica"]]
database = "shop"
"""
PGDOG = """[general]
host = "127.0.0.1"
port = 6432
[[databases]]
name = "shop"
host = "db1"
role = "primary"
[[databases]]
name = "shop"
host = "db2"
role = "replica"
"""
PGDOG_USERS = """[[users]]
name = "ann"
database = "shop"
password = "of ann"
"""
PGPOOL = """listen_addresses = '127.0.0.1'
port = 9999
backend_hostname0 = 'db1'
backend_port0 = 5432
backend_weight0 = 1
backend_hostname1 = 'db2'
backend_port1 = 5432
backend_weight1 = 1
load_balance_mode = on
enable_pool_hba = off
"""


def files(*of: tuple[str, str]):
    def write(world: World) -> None:
        for path, text in of:
            pathlib.Path(path).write_text(text)
            os.chmod(path, 0o600)
        for path in pathlib.Path("/etc/kingpost").glob("*"):
            path.unlink()

    return write


def is_translated(world: World, output: str) -> None:
    text = pathlib.Path("/etc/kingpost/kingpost.toml").read_text()
    expect("db1:5432" in text and os.stat("/etc/kingpost/kingpost.toml").st_mode & 0o777 == 0o600, text)


# --- a relay's directory ---


def relay_directory(world: World) -> None:
    """What the relay of a local cluster has kept."""
    world.start("kingpost up --dir cluster --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --registry-listen 127.0.0.1:0 --console-listen 127.0.0.1:0")
    world.wait("the cluster is there", lambda: "self-check" in world.said() and (world.directory / "cluster/kingpost.toml").exists() and world.answers("kingpost status --dir cluster"))
    world.end()
    found = [path for path in (world.directory / "cluster").rglob("relay") if path.is_dir()]
    expect(len(found) == 1, f"the local cluster's relay has these directories: {found}")
    world.shell(f"rm -rf /var/lib/kingpost/relay; cp -a {found[0]} /var/lib/kingpost/relay")


def is_empty(world: World, output: str) -> None:
    left = [path.name for path in pathlib.Path("/var/lib/kingpost/relay").iterdir() if re.fullmatch("[0-9A-F]{24}", path.name)]
    expect(not left, f"still there: {left}")


# === the table ===

UP = "plain:up"
README, QUICK, OPERATIONS = "README.md", "docs/guide/quickstart.md", "docs/guide/operations.md"
REGISTRY, RELAY, FAULTS = "docs/guide/registry.md", "docs/guide/relay.md", "docs/guide/runbooks/relay-faults.md"
CONFIGURATION = "docs/guide/configuration.md"

RUNS: list[tuple[str, str, str, Run]] = [
    # The first five minutes, as a reader has them.
    (UP, QUICK, "$ kingpost up", Run(until=is_up)),
    (UP, QUICK, "psql -h 127.0.0.1", Run(check=lambda world, output: world.shell("psql -h 127.0.0.1 -p 6432 -U postgres postgres", "\\d\n") and None)),
    (UP, QUICK, "create table notes", Run(into=PSQL, check=has_the_row)),
    # A session of its own for each line: behind the first, which may have written for all that Kingpost knows, a reader types for longer than a replica needs.
    (UP, QUICK, "select inet_server_port();", Run(into=PSQL, by_line=True, check=ran_where_it_says)),
    (UP, OPERATIONS, "psql -h 127.0.0.1 -p 6432 -U alice", Run(check=lambda world, output: expect("database" in output, output))),
    (UP, OPERATIONS, "BLOCK bad-release", Run(into=CONSOLE, by_line=True, check=has_no_rule)),
    (UP, "docs/guide/runbooks/README.md", "kingpost status --config FILE", Run(fills={"FILE": ".kingpost/kingpost.toml"}, check=lambda world, output: expect("node1" in output, output))),
    (UP, QUICK, "kill -9 $(head", Run(check=reads_go_on)),
    (UP, QUICK, "kingpost failover", Run(before=kill_the_primary, again=True, check=has_failed_over)),
    (UP, QUICK, "curl -s http://127.0.0.1:9632/metrics", Run(check=is_answered)),
    ("plain:failover", "docs/guide/failover.md", "kill -9 $(head", Run(before=lambda world: (world.start("kingpost up"), world.wait("the cluster is there", lambda: is_up(world))), again=True, check=node1_leads_again)),
    ("plain:mariadb", "docs/guide/relay-mariadb.md", "$ kingpost up --engine mariadb", Run(until=lambda world: "failover kill" in world.said(), printed=True)),
    (
        "plain:mariadb",
        "docs/guide/relay-mariadb.md",
        "CREATE USER relay@",
        # As any name: the local cluster has a user `relay` itself.
        Run(into="{mariadb} -v", fills={"{mariadb}": local_mariadb, "relay@": "another@"}, check=lambda world, output: expect("GRANT" in output.upper(), output)),
    ),
    ("plain:mariadb", "docs/guide/relay-mariadb.md", "[mariadb]", Run(into="cat > my.cnf; mariadbd --defaults-file=my.cnf --user=mysql --verbose --help", check=has_variables)),
    # The README's configuration, in front of a primary and a replica.
    ("servers:own", README, "kingpost check --config", Run(before=own_servers, beside=("kingpost proxy",), check=lambda world, output: (world.wait("the proxy serves", lambda: serves_app(world)), is_reloaded(world, output)) and None)),
    ("servers:upgrade", OPERATIONS, "kill -USR2 PID", Run(before=with_upgrade_socket, fills={"PID": old_pid}, beside=("kingpost proxy",), between=successor_serves, check=was_taken_over)),
    (
        "servers:profile",
        OPERATIONS,
        "curl -H 'Authorization: Bearer",
        Run(before=with_profiles, fills={"Bearer …": "Bearer of-the-guide-and-long", "seconds=10": "seconds=1", " && go tool pprof cpu.pb.gz": ""}, check=has_profiles),
    ),
    ("plain:configuration", CONFIGURATION, "$ kingpost check", Run(before=wrong_configuration, code=3, printed=True, check=is_right_again)),
    ("plain:configuration", "docs/guide/console.md", "$ kingpost console token dba", Run(printed=True)),
    # The registry.
    ("plain:registry", REGISTRY, "kingpost registry --config", Run(before=registry_configuration, beside=("kingpost registry --config", "kingpost registry watch"), between=registry_listens, check=is_registered)),
    ("plain:registry", REGISTRY, "curl -d '{\"service\"", Run(check=polaris_has_it)),
    ("plain:registry", REGISTRY, "curl -d '[{\"name\": \"pay\"", Run(check=polaris_took_it)),
    ("plain:registry", REGISTRY, "cat > bootstrap.json", Run(check=bootstrap_is_json)),
    ("plain:registry", REGISTRY, "kingpost registry register shop", Run(check=dns_answers)),
    # From other programs.
    ("plain:moving", "docs/guide/moving.md", "kingpost config from-pgcat", Run(before=files(("/etc/pgcat/pgcat.toml", PGCAT)), check=is_translated)),
    (
        "plain:moving",
        "docs/guide/pgbouncer.md",
        "kingpost config from-pgbouncer",
        Run(before=files(("/etc/pgbouncer/pgbouncer.ini", PGBOUNCER), ("/etc/pgbouncer/userlist.txt", '"ann" "of ann"\n"bob" "of bob"\n')), check=is_translated),
    ),
    ("plain:moving", "docs/guide/pgcat.md", "kingpost config from-pgcat", Run(before=files(("/etc/pgcat/pgcat.toml", PGCAT)), check=is_translated)),
    ("plain:moving", "docs/guide/pgdog.md", "kingpost config from-pgdog", Run(before=files(("/etc/pgdog/pgdog.toml", PGDOG), ("/etc/pgdog/users.toml", PGDOG_USERS)), check=is_translated)),
    ("plain:moving", "docs/guide/pgpool.md", "kingpost config from-pgpool", Run(before=files(("/etc/pgpool2/pgpool.conf", PGPOOL), ("/etc/pgpool2/pool_passwd", "ann:TEXTof-ann\n")), check=is_translated)),
    # A relay that has to begin anew.
    ("plain:relay", RELAY, "kingpost relay reset", Run(before=relay_directory, check=is_empty)),
    ("plain:relay", FAULTS, "systemctl stop kingpost-relay", Run(before=relay_directory, left_out={"systemctl": "packaging: scripts/try-dist"}, check=is_empty)),
]

# Commands that something else runs: the file that does, and words that have to be in there. Nothing compares the block with that file: a wrong flag in such
# a block is not noticed.
ELSEWHERE: list[tuple[str, str, str, list[str]]] = [
    (README, "make up", "scripts/test", ["up --once"]),
    ("docs/guide/installing.md", "apt install ./kingpost", "scripts/try-dist", ["dpkg -i", "check --config /etc/kingpost/kingpost.toml"]),
    ("docs/guide/installing.md", "editor /etc/kingpost/relay.toml", "scripts/try-units", ["kingpost-relay", "kingpost-registry"]),
    ("docs/guide/installing.md", "tar -xzf", "scripts/try-dist", ["-xzf", "bin/kingpost config default"]),
    ("docs/guide/kubernetes.md", "helm install", "scripts/charts", ["helm", "template", "packaging/helm/kingpost"]),
    ("docs/guide/kubernetes.md", "# kingpost.yaml", "scripts/charts", ["packaging/helm/kingpost"]),
    ("docs/guide/containers.md", "docker run --read-only", "scripts/try-image", ["readonly"]),
    ("docs/guide/relay-mariadb.md", "CHANGE MASTER TO", "tests/harness/mariadb.rs", ["CHANGE MASTER TO", "slave_pos"]),
    (RELAY, "primary_conninfo =", "tests/harness/node.rs", ["primary_conninfo"]),
    (RELAY, "synchronous_standby_names", "tests/e2e/relay_failover.rs", ["synchronous_standby_names"]),
    (RELAY, "restore_command = 'kingpost relay fetch %f %p'      #", "tests/e2e/relay.rs", ["restore_command"]),
    (RELAY, "restore_command = 'kingpost relay fetch %f %p --from", "tests/e2e/relay_fetch.rs", ["--from", "--password-file", "restore_command"]),
    (FAULTS, "kingpost relay fetch", "tests/e2e/relay_fetch.rs", ["fetch", "--from"]),
    (FAULTS, "restore_command", "tests/e2e/relay_fetch.rs", ["--from", "restore_command"]),
    (REGISTRY, "grpcurl", "tests/e2e/registry_races.rs", []),
    (REGISTRY, "kingpost registry import", "tests/e2e/registry_source.rs", []),
    ("docs/guide/tikv.md", "tests/tikv/setup --up", "tests/tikv/setup", ["--up", "--registry"]),
    ("docs/guide/failover.md", "etcdctl role add", "tests/e2e/watch.rs", []),
]

# What nobody here can run, and why.
NOT_RUN: list[tuple[str, str, str]] = [
    ("docs/guide/containers.md", "docker load", "there is no Docker here; `make try-image` runs the image with runc"),
    ("docs/guide/containers.md", "cd packaging/compose", "there is no Docker here; `make try-image` runs what compose.yaml starts"),
]

# What is nothing to type: pictures, forms of files, lines of a log.
SHOWN: list[tuple[str, str]] = [
    (README, "services ──HTTP──▶"),
    (CONFIGURATION, "[[proxy.users]]"),
    (CONFIGURATION, "[[proxy.users]]"),
    (CONFIGURATION, "# map"),
    (CONFIGURATION, "hostssl all all 10.0.0.0/8 ldap"),
    (CONFIGURATION, "hostssl all all 10.0.0.0/8 pam"),
    (CONFIGURATION, "host all all 10.0.0.0/8 gss"),
    (CONFIGURATION, "hostssl all all 10.0.0.0/8 oauth"),
    (CONFIGURATION, "KINGPOST__PROXY__POOL__SIZE"),
    ("docs/guide/failover.md", "kingpost failover   [--to"),
    ("docs/guide/failover.md", "FATAL:"),
    (OPERATIONS, "INFO kingpost::slow"),
    (OPERATIONS, "[proxy.tracing]"),
    (OPERATIONS, "[metrics.otlp]"),
    (OPERATIONS, ".kingpost/"),
    (REGISTRY, "scrape_configs:"),
    (REGISTRY, '{"time_ms"'),
    ("docs/guide/relay-mariadb.md", "source ──binlog──▶"),
    ("docs/guide/relay-mariadb.md", "/var/lib/kingpost/binlog/"),
    (RELAY, "primary ──WAL──▶"),
    (RELAY, "max_slot_wal_keep_size"),
    ("docs/guide/strong-reads.md", "client ──read──▶"),
    ("docs/guide/strong-reads.md", "client A"),
]


def plan(found: list[Block]) -> Plan:
    """Finds the entry of each block, and the block of each entry."""
    left = list(found)
    problems: list[str] = []

    def take(page: str, begin: str) -> list[Block]:
        of_page = [block for block in left if block.page == ROOT / page and block.first.startswith(begin)]
        if not of_page:
            problems.append(f"blocks.py: no block of {page} begins with {begin!r}")
        # One entry, one block: a second one that begins alike needs an entry of its own.
        for block in of_page[:1]:
            left.remove(block)
        return of_page[:1]

    worlds: dict[str, list[Run]] = {}
    for world, page, begin, run in RUNS:
        for block in take(page, begin):
            worlds.setdefault(world, []).append(dataclasses.replace(run, block=block))
    elsewhere = 0
    for page, begin, file, words in ELSEWHERE:
        elsewhere += len(take(page, begin))
        text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
        problems += [f"blocks.py: {page}: {begin!r} should be run by {file}, which has no {word!r}" for word in words if word not in text]
        if not text:
            problems.append(f"blocks.py: there is no {file}")
    not_run = [(block, why) for page, begin, why in NOT_RUN for block in take(page, begin)]
    shown = sum(len(take(page, begin)) for page, begin in SHOWN)
    problems += [f"{block}: nothing runs this block: {block.first!r}; say in tests/guide/blocks.py what does" for block in left]
    return Plan(list(worlds.items()), problems, not_run, elsewhere, shown)
