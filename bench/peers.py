"""The processes that are measured: how each is configured, started and asked whether it is ready.

Equal terms: transaction pooling, trust, the same number of server connections a node, loopback TCP on both sides, no
TLS, no query log. Every proxy that has threads gets one a core; PgBouncer has one process, as it is.
"""

import http.client
import pathlib
import re
import shutil
import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from bench import pgwire
from bench.cluster import DATABASE, USER, program_version
from bench.errors import BenchError, PeerUnavailable
from bench.process import free_port, tail

READY_SECONDS = 20
# Targets that need a name of their own, since they are a peer in front of all nodes.
KINGPOST_SPLIT, HAPROXY_NODES = "kingpost-split", "haproxy-3"
# Traffic rules that count each statement, twice if it writes, and refuse none.
TRAFFIC_RULES = (
    *("", "[[proxy.traffic]]", 'name = "each"', 'each = ["user", "database"]', 'rate = "1000000/s"', "concurrency = 10000"),
    *("", "[[proxy.traffic]]", 'name = "writes"', 'access = "write"', "concurrency = 10000"),
)
# Our own with other settings than its defaults: keys of [proxy] and of [proxy.pool], and tables behind them, as TOML.
KINGPOST_VARIANTS = {
    "kingpost-epoll": (('driver = "epoll"',), ()),
    "kingpost-unnamed": ((), ('unnamed = "shared"',)),
    "kingpost-traffic": ((), TRAFFIC_RULES),
}
START_ATTEMPTS = 3
NEWEST = pathlib.Path(__file__).resolve().parent.parent / "target" / "newest"
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Terms:
    """What is equal for every peer."""

    pool: int
    workers: int
    max_clients: int


@dataclass(frozen=True)
class Nodes:
    """Ports of the database servers a peer stands in front of; the first is the primary's."""

    ports: tuple
    socket_directory: object = None  # of the servers' Unix sockets; None: by TCP


class Peer:
    """A kind of proxy. A subclass says how to configure and start it."""

    kind = ""
    programs = ()
    tested = True
    version_arguments = ("--version",)
    # Whether clients share server connections. One that doesn't cannot be asked to hold thousands of idle clients.
    pools = True
    # Whether it is measured with Unix sockets on both sides.
    sockets = False

    def __init__(self, binary):
        self.binary = binary

    @cached_property
    def version(self):
        """What the program says of itself."""
        return program_version([str(self.binary), *self.version_arguments]) or "version unknown"

    def refuses(self, mode):
        """Why this version cannot do a mode (`simple`, `extended`, `prepared`); None when it can."""
        return None

    def command(self, workspace, directory, port, nodes, terms):
        """Writes the configuration into `directory`; returns the command that serves in the foreground."""
        raise NotImplementedError

    def ready(self, directory):
        """A further condition, beyond answering a query."""
        return True


class Kingpost(Peer):
    """Our own."""

    kind = "kingpost"
    programs = ("kingpost",)
    # None but where asked for: an older one compared with does not know them.
    proxy_settings, pool_settings = (), ()
    sockets = True

    def command(self, workspace, directory, port, nodes, terms):
        self._metrics = free_port()
        listen = [f'"127.0.0.1:{port}"']
        if nodes.socket_directory:
            # The servers' own sockets are found by the proxy.
            listen.append(f'"{directory}/.s.PGSQL.{port}"')
        lines = [
            "[proxy]",
            f"listen = [{', '.join(listen)}]",
            f"workers = {terms.workers}",
            *self.proxy_settings,
            'auth = "trust"',
            f"max_clients = {terms.max_clients}",
            "",
            "[proxy.pool]",
            'mode = "transaction"',
            f"size = {terms.pool}",
            *self.pool_settings,
            "",
            "[metrics]",
            f'listen = "127.0.0.1:{self._metrics}"',
            "",
            "[cluster]",
            'name = "bench"',
            f'user = "{USER}"',
            f'database = "{DATABASE}"',
        ]
        for number, node in enumerate(nodes.ports):
            lines += ["", "[[cluster.nodes]]", f'name = "node{number}"', f'address = "127.0.0.1:{node}"']
        config = workspace.write(directory / "kingpost.toml", "\n".join(lines) + "\n")
        return [self.binary, "proxy", "--config", config]

    def ready(self, directory):
        connection = http.client.HTTPConnection("127.0.0.1", self._metrics, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


class PgBouncer(Peer):
    """Single-threaded pooler in C."""

    kind = "pgbouncer"
    programs = ("pgbouncer",)
    sockets = True

    def _number(self):
        found = re.search(r"(\d+)\.(\d+)", self.version)
        return tuple(int(part) for part in found.groups()) if found else (0, 0)

    def refuses(self, mode):
        if mode == "prepared" and self._number() < (1, 21):
            return "no prepared statements in transaction mode before PgBouncer 1.21"
        return None

    def command(self, workspace, directory, port, nodes, terms):
        users = workspace.write(directory / "users.txt", f'"{USER}" ""\n')
        lines = [
            "[databases]",
            f"{DATABASE} = host={nodes.socket_directory or '127.0.0.1'} port={nodes.ports[0]} dbname={DATABASE}",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {port}",
            f"unix_socket_dir = {directory if nodes.socket_directory else ''}".rstrip(),
            "auth_type = trust",
            f"auth_file = {users}",
            "pool_mode = transaction",
            f"default_pool_size = {terms.pool}",
            f"max_client_conn = {terms.max_clients}",
            "ignore_startup_parameters = extra_float_digits",
            "log_connections = 0",
            "log_disconnections = 0",
            "log_stats = 0",
        ]
        if self._number() >= (1, 21):
            lines.append("max_prepared_statements = 500")
        return [self.binary, workspace.write(directory / "pgbouncer.ini", "\n".join(lines) + "\n")]


class HAProxy(Peer):
    """TCP balancer: a server connection for each client, the protocol not looked at."""

    kind = "haproxy"
    programs = ("haproxy",)
    version_arguments = ("-v",)
    pools = False

    def command(self, workspace, directory, port, nodes, terms):
        lines = [
            "global",
            f"  maxconn {terms.max_clients}",
            f"  nbthread {terms.workers}",
            "defaults",
            "  mode tcp",
            "  timeout connect 10s",
            "  timeout client 1h",
            "  timeout server 1h",
            "listen postgresql",
            f"  bind 127.0.0.1:{port}",
            "  balance roundrobin",
        ]
        lines += [f"  server node{number} 127.0.0.1:{node}" for number, node in enumerate(nodes.ports)]
        return [self.binary, "-db", "-f", workspace.write(directory / "haproxy.cfg", "\n".join(lines) + "\n")]


class Odyssey(Peer):
    """Multi-threaded pooler in C."""

    kind = "odyssey"
    programs = ("odyssey",)
    tested = False

    def command(self, workspace, directory, port, nodes, terms):
        text = f"""daemonize no
log_to_stdout yes
log_format "%p %t %l [%i %s] (%c) %m\\n"
log_debug no
log_config no
log_session no
log_query no
log_stats no
unix_socket_dir "{directory}"
unix_socket_mode "0600"
locks_dir "{directory}"
workers {terms.workers}
resolvers 1
cache_coroutine 2048
nodelay yes
client_max {terms.max_clients}
listen {{
	host "127.0.0.1"
	port {port}
	backlog 1024
}}
storage "primary" {{
	type "remote"
	host "127.0.0.1"
	port {nodes.ports[0]}
}}
database default {{
	user default {{
		authentication "none"
		storage "primary"
		pool "transaction"
		pool_size {terms.pool}
		pool_timeout 0
		pool_ttl 600
		pool_discard no
		pool_cancel yes
		pool_rollback yes
		pool_reserve_prepared_statement yes
	}}
}}
"""
        return [self.binary, workspace.write(directory / "odyssey.conf", text)]


class PgCat(Peer):
    """Pooler in Rust, on tokio."""

    kind = "pgcat"
    programs = ("pgcat",)
    tested = False

    def command(self, workspace, directory, port, nodes, terms):
        text = f"""[general]
host = "127.0.0.1"
port = {port}
enable_prometheus_exporter = false
connect_timeout = 10000
idle_timeout = 600000
worker_threads = {terms.workers}
admin_username = "admin"
admin_password = "admin"

[pools.{DATABASE}]
pool_mode = "transaction"
default_role = "primary"
query_parser_enabled = false
prepared_statements_cache_size = 500

[pools.{DATABASE}.users.0]
username = "{USER}"
password = ""
auth_type = "trust"
pool_size = {terms.pool}

[pools.{DATABASE}.shards.0]
servers = [["127.0.0.1", {nodes.ports[0]}, "primary"]]
database = "{DATABASE}"
"""
        return [self.binary, workspace.write(directory / "pgcat.toml", text)]


class PgDog(Peer):
    """Pooler and sharder in Rust, on tokio."""

    kind = "pgdog"
    programs = ("pgdog",)
    tested = False

    def command(self, workspace, directory, port, nodes, terms):
        config = f"""[general]
host = "127.0.0.1"
port = {port}
workers = {terms.workers}
default_pool_size = {terms.pool}
pooler_mode = "transaction"
auth_type = "trust"
prepared_statements = "extended"
checkout_timeout = 60000
idle_timeout = 600000

[[databases]]
name = "{DATABASE}"
host = "127.0.0.1"
port = {nodes.ports[0]}
role = "primary"
"""
        users = f'[[users]]\nname = "{USER}"\ndatabase = "{DATABASE}"\npassword = "trust"\n'
        return [
            self.binary,
            "--config",
            workspace.write(directory / "pgdog.toml", config),
            "--users",
            workspace.write(directory / "users.toml", users),
        ]


def newest(program):
    """The path of a program that tests/newest/setup has unpacked; None if it has not."""
    found = (NEWEST / program / "root" / "usr" / directory / program for directory in ("sbin", "bin"))
    return next((str(path) for path in found if path.is_file()), None)


KINDS = {peer.kind: peer for peer in (Kingpost, PgBouncer, HAProxy, Odyssey, PgCat, PgDog)}


@dataclass(frozen=True)
class Target:
    """Something a load is pointed at. `peer` names an entry of the inventory, None for the primary itself."""

    name: str
    peer: str | None
    split: bool = False
    about: str = ""


@dataclass
class Inventory:
    """Which peers are here, and why the others are not. Names are `kind` or `kind-anything` (`pgbouncer-1.25`)."""

    found: dict = field(default_factory=dict)
    missing: dict = field(default_factory=dict)

    @staticmethod
    def look(workspace, kingpost, given):
        """Looks for what tests/newest/setup has unpacked, then on PATH; `kingpost` is our own binary's path, `given` maps names to paths."""
        inventory = Inventory()
        given = dict(given)
        given.setdefault("kingpost", kingpost)
        for variant in KINGPOST_VARIANTS:
            given.setdefault(variant, given["kingpost"])
        newer = shutil.which("pgbouncer-new")
        if newer:
            given.setdefault("pgbouncer-new", newer)
        for kind, peer in KINDS.items():
            if kind not in given:
                found = (newest(name) or shutil.which(name) or shutil.which(name, path=SYSTEM) for name in peer.programs)
                path = next(filter(None, found), None)
                if path:
                    given[kind] = path
                else:
                    inventory.missing[kind] = "not found on PATH"
        for name, path in given.items():
            kind = name.split("-", 1)[0]
            if kind not in KINDS or name in (KINGPOST_SPLIT, HAPROXY_NODES):
                raise BenchError(
                    f"--peer {name}=…: the name must be one of {', '.join(KINDS)}, or one with -something after it "
                    f"that is not {KINGPOST_SPLIT} or {HAPROXY_NODES}."
                )
            if not pathlib.Path(path).is_file():
                built = kind == "kingpost"
                inventory.missing[name] = "not built: cargo build --release" if built else "no such file"
                continue
            peer = inventory.found[name] = KINDS[kind](workspace.adopt(path, name))
            # Also of another binary: kingpost-epoll-before.
            variant = next((of for of in KINGPOST_VARIANTS if f"{name}-".startswith(f"{of}-")), None)
            if variant:
                peer.proxy_settings, peer.pool_settings = KINGPOST_VARIANTS[variant]
        return inventory


@dataclass
class Endpoint:
    """Where a target can be reached while it runs; `pid` is None when there is no process between. `login_seconds` is
    what a number of clients last took to log in."""

    port: int
    pid: int | None
    host: str = "127.0.0.1"  # or the directory of its Unix socket
    login_seconds: dict = field(default_factory=dict)


@contextmanager
def running(target, inventory, workspace, cluster, terms, label=""):
    """The target, started and answering queries, for as long as the `with` block. Raises PeerUnavailable."""
    if target.peer is None:
        yield Endpoint(cluster.primary, None, *([str(cluster.socket_directory)] if cluster.sockets else []))
        return
    peer = inventory.found.get(target.peer)
    if not peer:
        raise PeerUnavailable(inventory.missing.get(target.peer, "not found"))
    if cluster.sockets and not peer.sockets:
        raise PeerUnavailable("measured by TCP only")
    nodes = Nodes(tuple(cluster.ports) if target.split else (cluster.primary,), cluster.socket_directory)
    with ExitStack() as stack:
        for attempt in range(START_ATTEMPTS):
            directory = workspace.directory(f"{target.name}{label}-{attempt}-{time.monotonic_ns()}")
            log, port = directory / "output.log", free_port()
            command = peer.command(workspace, directory, port, nodes, terms)
            process = stack.enter_context(workspace.server(command, log, signal.SIGTERM))
            if _becomes_ready(peer, process, port, directory):
                break
        else:
            raise PeerUnavailable(f"does not start: {tail(log, 3) or 'it said nothing'}")
        yield Endpoint(port, process.pid, *([str(directory)] if cluster.sockets else []))


def _becomes_ready(peer, process, port, directory):
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if peer.ready(directory):
                with pgwire.Connection(port, USER, DATABASE, 5.0) as connection:
                    if connection.query("SELECT 1") == [["1"]]:
                        return True
        except (OSError, pgwire.ProtocolError):
            pass
        time.sleep(0.05)
    return False
