"""What becomes of each block that the README and the guide print.

A block is named by its page and the beginning of its first line. Blocks that run do so in a world (worlds.py), in the order in which they stand here.
"""

import dataclasses

import configuration
import local
import moving
import own
import registry
import relays
from pages import ROOT, Block
from servers import servers
from worlds import PASSWORD, Run, expect, plain

# The kinds of worlds, by what stands before the colon in the name of one.
WORLDS = {"plain": plain, "servers": servers, "relays": relays.relays}


@dataclasses.dataclass
class Plan:
    # By world.
    runs: dict[str, list[Run]]
    problems: list[str]
    not_run: list[tuple[Block, str]]
    scripts: int
    elsewhere: int
    shown: int


# === the table ===

UP = "plain:up"
README, QUICK, OPERATIONS = "README.md", "docs/guide/quickstart.md", "docs/guide/operations.md"
REGISTRY, REGISTRY_OPERATIONS = "docs/guide/registry.md", "docs/guide/registry-operations.md"
REGISTRY_CONFIG = "docs/guide/registry-config.md"
BACKUP = "docs/guide/backup.md"
RELAY, FAULTS = "docs/guide/relay.md", "docs/guide/runbooks/relay-faults.md"
CONFIGURATION, FAILOVER = "docs/guide/configuration.md", "docs/guide/failover.md"
RELAYS, PIECES = "relays:relays", "plain:configuration"
# A file of a server that is to be restored.
TO_DB3 = "cat >> db3/postgresql.conf"
# What the pages leave to the reader of a call to a relay.
TRUSTED = {"--password-file …": f"--password-file {relays.OF_REPLICATOR}", "--ca-file …": f"--ca-file {relays.ETC}/ca.pem"}

RUNS: list[tuple[str, str, str, Run]] = [
    # The first five minutes, as a reader has them.
    (UP, QUICK, "$ kingpost up", Run(until=local.is_up)),
    (UP, QUICK, "psql -h 127.0.0.1", Run(check=lambda world, output: world.shell("psql -h 127.0.0.1 -p 6432 -U postgres postgres", "\\d\n") and None)),
    (UP, QUICK, "create table notes", Run(into=local.PSQL, check=local.has_the_row)),
    # A session of its own for each line: behind the first, which may have written for all that Kingpost knows, a reader types for longer than a replica needs.
    (UP, QUICK, "select inet_server_port();", Run(into=local.PSQL, by_line=True, check=local.ran_where_it_says)),
    (UP, OPERATIONS, "psql -h 127.0.0.1 -p 6432 -U alice", Run(check=lambda world, output: expect("database" in output, output))),
    (UP, OPERATIONS, "BLOCK bad-release", Run(into=local.CONSOLE, by_line=True, check=local.has_no_rule)),
    (UP, "docs/guide/runbooks/README.md", "kingpost status --config FILE", Run(fills={"FILE": ".kingpost/kingpost.toml"}, check=lambda world, output: expect("node1" in output, output))),
    (UP, QUICK, "kill -9 $(head", Run(check=local.reads_go_on)),
    (UP, QUICK, "kingpost node --pause", Run(before=local.node1_is_primary, again=True, check=local.has_failed_over)),
    (UP, QUICK, "curl -s http://127.0.0.1:9632/metrics", Run(check=local.is_answered)),
    (UP, OPERATIONS, ".kingpost/", Run(into="cat", check=local.has_these_files)),
    ("plain:failover", FAILOVER, "kingpost node --pause", Run(before=local.another_cluster, again=True, check=local.node1_leads_again)),
    ("plain:make", README, "make up", Run(before=local.make, left_out={"make test": "this is a step of it"}, until=local.has_shown_the_loss)),
    ("plain:mariadb", "docs/guide/relay-mariadb.md", "$ kingpost up --engine mariadb", Run(until=lambda world: "failover kill" in world.said(), printed=True)),
    (
        "plain:mariadb",
        "docs/guide/relay-mariadb.md",
        "CREATE USER relay@",
        # As any name: the local cluster has a user `relay` itself.
        Run(into="{mariadb} -v", fills={"{mariadb}": local.local_mariadb, "relay@": "another@"}, check=lambda world, output: expect("GRANT" in output.upper(), output)),
    ),
    ("plain:mariadb", "docs/guide/relay-mariadb.md", "[mariadb]", Run(into="cat > my.cnf; mariadbd --defaults-file=my.cnf --user=mysql --verbose --help", check=local.has_variables)),
    # The README's configuration, in front of a primary and a replica.
    ("servers:own", README, "kingpost check --config", Run(before=own.own_servers, beside=("kingpost proxy",), check=lambda world, output: (world.wait("the proxy serves", lambda: own.serves_app(world)), own.is_reloaded(world, output)) and None)),
    ("servers:upgrade", OPERATIONS, "kill -USR2 PID", Run(before=own.with_upgrade_socket, fills={"PID": own.old_pid}, beside=("kingpost proxy",), between=own.successor_serves, check=own.was_taken_over)),
    (
        "servers:profile",
        OPERATIONS,
        "curl -H 'Authorization: Bearer",
        Run(before=own.with_profiles, fills={"Bearer …": "Bearer of-the-guide-and-long", "seconds=10": "seconds=1", " && go tool pprof cpu.pb.gz": ""}, check=own.has_profiles),
    ),
    (PIECES, CONFIGURATION, "$ kingpost check", Run(before=configuration.wrong_configuration, code=3, printed=True, check=configuration.is_right_again)),
    (PIECES, CONFIGURATION, "[[proxy.users]]", configuration.piece(configuration.NODES)),
    (PIECES, CONFIGURATION, "[[proxy.users]]", configuration.piece(configuration.NODES, fills={"/run/secrets/": "/etc/kingpost/", "/usr/local/bin/": "/etc/kingpost/"})),
    (PIECES, CONFIGURATION, "# map", configuration.name_maps()),
    (PIECES, CONFIGURATION, "hostssl all all 10.0.0.0/8 ldap", configuration.rule("")),
    (PIECES, CONFIGURATION, "hostssl all all 10.0.0.0/8 pam", configuration.rule("")),
    (PIECES, CONFIGURATION, "host all all 10.0.0.0/8 gss", configuration.rule("")),
    (PIECES, CONFIGURATION, "hostssl all all 10.0.0.0/8 oauth", configuration.rule(configuration.OAUTH)),
    (PIECES, CONFIGURATION, "KINGPOST__PROXY__POOL__SIZE", configuration.variables()),
    (PIECES, OPERATIONS, "[proxy.tracing]", configuration.piece(configuration.USERS + configuration.NODES)),
    (PIECES, OPERATIONS, "[metrics.otlp]", configuration.piece(configuration.USERS + configuration.NODES)),
    (PIECES, FAILOVER, "kingpost failover   [--to", Run(into="cat", check=configuration.has_flags)),
    (PIECES, "docs/guide/console.md", "$ kingpost console token dba", Run(printed=True)),
    # The registry.
    ("plain:registry", REGISTRY, "kingpost registry --config", Run(before=registry.registry_configuration, beside=("kingpost registry --config", "kingpost registry watch"), between=registry.registry_listens, check=registry.is_registered)),
    ("plain:registry", REGISTRY, "curl -d '{\"service\"", Run(check=registry.polaris_has_it)),
    ("plain:registry", REGISTRY, "curl -d '[{\"name\": \"pay\"", Run(check=registry.polaris_took_it)),
    ("plain:registry", REGISTRY, "cat > bootstrap.json", Run(check=registry.a_client_finds_the_shop)),
    ("plain:registry", REGISTRY, "kingpost registry register shop", Run(check=registry.dns_answers)),
    # A stand-in for grpcurl (tests/guide/grpcurl), where that is not installed.
    ("plain:registry", REGISTRY, "grpcurl", Run(beside=("grpcurl -plaintext -d '{\"service\"",), check=registry.grpc_registered)),
    ("plain:registry", REGISTRY, "scrape_configs:", Run(into="cat > prometheus.yml; promtool check service-discovery --timeout=2s prometheus.yml services", check=registry.prometheus_finds_it)),
    ("plain:registry", REGISTRY_CONFIG, "curl -X PUT http://127.0.0.1:8632/v1/namespaces", Run(check=registry.has_an_entry)),
    ("plain:registry", REGISTRY_CONFIG, "kingpost registry config ls", Run(check=registry.has_a_version)),
    # From registries of ours that stand for Consul and Eureka: there is no package of either.
    ("plain:registry", REGISTRY_OPERATIONS, "kingpost registry import", Run(before=registry.other_registries, check=registry.both_came)),
    ("plain:registry", REGISTRY_OPERATIONS, '{"time_ms"', Run(into="cat", check=registry.has_the_same_keys)),
    # From other programs.
    ("plain:moving", "docs/guide/moving.md", "kingpost config from-pgcat", Run(before=moving.files(("/etc/pgcat/pgcat.toml", moving.PGCAT)), check=moving.is_translated)),
    (
        "plain:moving",
        "docs/guide/pgbouncer.md",
        "kingpost config from-pgbouncer",
        Run(before=moving.files(("/etc/pgbouncer/pgbouncer.ini", moving.PGBOUNCER), ("/etc/pgbouncer/userlist.txt", '"ann" "of ann"\n"bob" "of bob"\n')), check=moving.is_translated),
    ),
    ("plain:moving", "docs/guide/pgcat.md", "kingpost config from-pgcat", Run(before=moving.files(("/etc/pgcat/pgcat.toml", moving.PGCAT)), check=moving.is_translated)),
    ("plain:moving", "docs/guide/pgdog.md", "kingpost config from-pgdog", Run(before=moving.files(("/etc/pgdog/pgdog.toml", moving.PGDOG), ("/etc/pgdog/users.toml", moving.PGDOG_USERS)), check=moving.is_translated)),
    ("plain:moving", "docs/guide/pgpool.md", "kingpost config from-pgpool", Run(before=moving.files(("/etc/pgpool2/pgpool.conf", moving.PGPOOL), ("/etc/pgpool2/pool_passwd", "ann:TEXTof-ann\n")), check=moving.is_translated)),
    # Relays, standbys behind them, and servers that are restored from them.
    (RELAYS, RELAY, "psql \"host=relay", Run(before=relays.the_pages_relay, check=relays.slot_is_made)),
    (RELAYS, RELAY, "primary_conninfo =", Run(before=relays.base_backup, into="cat >> db2/postgresql.conf", check=relays.standby_follows)),
    (RELAYS, RELAY, "synchronous_standby_names", Run(into="cat >> db1/postgresql.conf", check=relays.commits_wait_for_the_relay)),
    (RELAYS, RELAY, "max_slot_wal_keep_size", Run(into="cat >> db1/postgresql.conf", check=relays.slots_have_a_limit)),
    (RELAYS, RELAY, "restore_command = 'kingpost relay fetch %f %p'      #", Run(before=relays.backup_without_wal, into=TO_DB3, check=relays.is_restored)),
    (RELAYS, RELAY, "restore_command = 'kingpost relay fetch %f %p --from", Run(before=relays.two_relays, into=TO_DB3, check=relays.is_restored)),
    (RELAYS, FAULTS, "kingpost relay fetch", Run(user="postgres", before=relays.damaged_segment, fills={"000000010000000000000042": lambda world: world.segment} | TRUSTED, check=relays.relay_starts_again)),
    (
        RELAYS,
        FAULTS,
        "systemctl stop kingpost-relay",
        Run(user="postgres", done={"systemctl stop kingpost-relay": relays.end_the_relay, "systemctl start kingpost-relay": relays.start_the_relay}, check=relays.relay_is_reset),
    ),
    (RELAYS, FAULTS, "restore_command", Run(before=relays.primary_alone, into="cat >> db2/postgresql.conf", fills=TRUSTED, check=relays.is_not_behind)),
    (RELAYS, RELAY, "kingpost relay reset", Run(user="postgres", before=relays.end_the_relay, check=relays.is_empty)),
    # A failover behind them, under a lock that the page's user may take, and another one may not.
    (RELAYS, FAILOVER, "etcdctl role add", Run(before=relays.etcd_with_users, typed=PASSWORD, check=relays.watcher_has_its_lock)),
]

# Commands that need what `make test` does not make (a package, an image, a chart): a script takes them from the page (pages.py) and runs them.
SCRIPTS: list[tuple[str, str, str]] = [
    ("docs/guide/installing.md", "apt install ./kingpost", "scripts/try-units"),
    ("docs/guide/installing.md", "editor /etc/kingpost/relay.toml", "scripts/try-units"),
    ("docs/guide/installing.md", "tar -xzf", "scripts/try-dist"),
    ("docs/guide/kubernetes.md", "helm install", "scripts/charts"),
    ("docs/guide/kubernetes.md", "# kingpost.yaml", "scripts/charts"),
]

# Commands that something else runs in words of its own: the file that does, and words that have to be in there. Nothing compares the block with that file: a
# wrong flag in such a block is not noticed.
ELSEWHERE: list[tuple[str, str, str, list[str]]] = [
    ("docs/guide/archive.md", "restore_command =", "tests/e2e/archive.rs", ["relay fetch %f %p", "--archive"]),
    ("docs/guide/archive.md", "(umask 077; openssl rand -hex 32", "tests/e2e/backup.rs", ["relay.archive.key_file", "archive.keys"]),
    (QUICK, "kingpost up --tour", "tests/e2e/up.rs", ["\"--tour\"", "tour: the restored server has the table", "tour: node1 is a standby of node2", "it is the primary again"]),
    (BACKUP, "kingpost backup --config /etc/kingpost/relay.toml --incremental", "tests/e2e/backup_incremental.rs", ["\"--incremental\""]),
    (BACKUP, "kingpost backup --config /etc/kingpost/relay.toml --label", "tests/e2e/backup.rs", ["\"backup\", \"--label\"", "\"--max-rate\""]),
    (BACKUP, "kingpost backup list", "tests/e2e/backup.rs", ["\"backup\", \"show\", \"latest\"", "\"backup\", \"verify\"", "\"prune\", \"--keep\""]),
    (BACKUP, "kingpost restore --config", "tests/e2e/backup.rs", ["\"restore\", \"--at\""]),
    ("docs/guide/runbooks/table-dropped.md", "kingpost restore --config", "tests/e2e/backup.rs", ["DROP TABLE", "\"restore\", \"--at\""]),
    ("docs/guide/runbooks/host-burnt-down.md", "kingpost restore --standby", "tests/e2e/backup.rs", ["\"restore\", \"--standby\""]),
    ("docs/guide/runbooks/region-gone.md", "kingpost backup list --config", "tests/e2e/backup.rs", ["\"backup\", \"list\""]),
    ("docs/guide/runbooks/region-gone.md", "kingpost restore --config", "tests/e2e/backup.rs", ["\"--verify\""]),
    ("docs/guide/containers.md", "docker run --read-only", "scripts/try-image", ["readonly"]),
    ("docs/guide/relay-mariadb.md", "CHANGE MASTER TO", "tests/harness/mariadb.rs", ["CHANGE MASTER TO", "slave_pos", "MASTER_SSL=0"]),
    ("docs/guide/relay-mariadb.md", "kingpost relay reset", "tests/e2e/binlog_faults.rs", ["relay.reset("]),
    ("docs/guide/relay-mysql.md", "CREATE USER relay", "tests/harness/mysql.rs", ["CREATE USER", "REPLICATION SLAVE, "]),
    ("docs/guide/relay-mysql.md", "CREATE USER failover", "tests/harness/mysql.rs", ["REPLICATION CLIENT, REPLICATION_SLAVE_ADMIN, SYSTEM_VARIABLES_ADMIN ON *.*"]),
    ("docs/guide/relay-mysql.md", "[mysqld]", "tests/harness/mysql.rs", ["--plugin-load-add=semisync_source.so", "--rpl-semi-sync-source-timeout=4294967295"]),
    ("docs/guide/relay-mysql.md", "CHANGE REPLICATION SOURCE TO", "tests/harness/mysql.rs", ["CHANGE REPLICATION SOURCE TO", "SOURCE_AUTO_POSITION=1"]),
    ("docs/guide/relay-mysql.md", "kingpost up --engine mysql", "tests/e2e/up_mariadb.rs", ["\"--engine\", \"mysql\""]),
    (REGISTRY, "kingpost registry agent", "tests/e2e/registry_agent.rs", ["\"registry\", \"agent\", \"--url\"", "\"--ttl\""]),
    (REGISTRY, "curl -X PUT http://127.0.0.1:8632/v1/acl/bootstrap", "tests/e2e/registry_acl.rs", ["\"/v1/acl/bootstrap\""]),
    (REGISTRY_CONFIG, "kingpost registry config import", "tests/e2e/registry_config.rs", ['"registry", "config", "import"', '"--nacos"']),
    (REGISTRY_CONFIG, "kingpost registry export --configs", "tests/e2e/registry_config.rs", ['"--configs", "--history"', '"registry", "export"']),
    ("docs/guide/node.md", "kingpost scale --config", "tests/e2e/scale.rs", ["\"scale\", \"--dry-run\"", "\"scale\", \"--ttl\""]),
    ("docs/guide/node.md", "kingpost node --config", "tests/e2e/node.rs", ["\"--init\"", "\"--join\"", "\"--name\"", "\"--address\""]),
    ("docs/guide/tikv.md", "tests/tikv/setup --up", "tests/tikv/setup", ["--up", "--registry"]),
]

# What nobody here can run, and why.
NOT_RUN: list[tuple[str, str, str]] = [
    ("docs/guide/containers.md", "docker load", "there is no Docker here; `make try-image` runs the image with runc"),
    ("docs/guide/containers.md", "cd packaging/compose", "there is no Docker here; `make try-image` runs what compose.yaml starts"),
    (RELAY, "primary_conninfo = 'host=relay,db1", "needs PostgreSQL 17, and a worker that takes tens of seconds; tests/e2e/relay.rs has libpq go on to the next host"),
]

# What is nothing to type: pictures, forms of files, lines of a log.
SHOWN: list[tuple[str, str]] = [
    (README, "services ──HTTP──▶"),
    (FAILOVER, "FATAL:"),
    (OPERATIONS, "INFO kingpost::slow"),
    (REGISTRY_CONFIG, "config_prefix"),
    ("docs/guide/relay-mariadb.md", "source ──binlog──▶"),
    ("docs/guide/relay-mariadb.md", "/var/lib/kingpost/binlog/"),
    ("docs/guide/relay-mysql.md", "source ──binlog──▶"),
    (RELAY, "primary ──WAL──▶"),
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
    scripts = 0
    for page, begin, file in SCRIPTS:
        scripts += len(take(page, begin))
        # As a shell calls pages.py, or as Python calls pages.text.
        if not any(call in (ROOT / file).read_text() for call in (f"pages.py {page} '{begin}'", f'pages.text("{page}", "{begin}")')):
            problems.append(f"blocks.py: {file} does not take the block {begin!r} from {page}")
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
    return Plan(worlds, problems, not_run, scripts, elsewhere, shown)
