"""`bench/run --only gate`: what a commit costs that is durable on another host when its client hears of it.

One transaction (insert a row, update it) by logical clients, with these in the place where the waiting is done:

- `local`: nothing waits: what the same pool does without any durability elsewhere
- `native-16`, `native-64`: PostgreSQL's synchronous replication with the relay as standby, behind a pool of so many
- `native-direct`: the same, each client with a back end of its own
- `receivewal-16`: the same with pg_receivewal in the relay's place
- `gate-16`: the proxy's commit gate over the relay

Between the primary and whoever receives its log lies a forwarder that takes half of the round trip each way.
"""

import heapq
import selectors
import socket
import threading
import time
from contextlib import ExitStack

from bench import counters
from bench.cluster import DATABASE, USER, Cluster
from bench.errors import BenchError
from bench.peers import Kingpost
from bench.process import free_port, tail
from bench.stats import percentile

CLIENTS = (64, 256, 800)
ROUND_TRIPS_MS = (0.0, 2.5)
ARMS = ("local", "native-16", "native-64", "native-direct", "receivewal-16", "gate-16")
STANDBY = "bench_standby"
READY_SECONDS = 30
WARM_UP_SECONDS = 1
# A row of its own for each client's turn: found by its key.
SCRIPT = (
    "\\set id random(1, 9000000000000000)\nBEGIN;\nINSERT INTO gate VALUES (:id, 0);\n"
    "UPDATE gate SET n = n + 1 WHERE id = :id;\nCOMMIT;\n"
)


class Delay(threading.Thread):
    """A TCP forwarder to a port of this machine; each byte arrives `seconds` later, in its order."""

    CHUNK = 256 << 10

    def __init__(self, target, seconds):
        super().__init__(daemon=True, name="delay")
        self._target, self._seconds = target, seconds
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ended, self._peers = False, {}
        self._due, self._order = [], 0

    def run(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ended:
                wait = 0.2 if not self._due else max(0.0, min(0.2, self._due[0][0] - time.monotonic()))
                for key, _ in selector.select(wait):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    else:
                        self._read(selector, key.fileobj)
                now = time.monotonic()
                while self._due and self._due[0][0] <= now:
                    _, _, peer, data = heapq.heappop(self._due)
                    try:
                        # Blocking: what is kept is bounded by the receiver's pace.
                        peer.sendall(data) if data else peer.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass

    def end(self):
        self._ended = True
        self.join(2)
        for peer in [self._listener, *self._peers]:
            peer.close()

    def _accept(self, selector):
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _read(self, selector, peer):
        try:
            data = peer.recv(self.CHUNK)
        except OSError:
            data = b""
        if not data:
            selector.unregister(peer)
        self._order += 1
        heapq.heappush(self._due, (time.monotonic() + self._seconds, self._order, self._peers[peer], data))


class Durable(Cluster):
    """A primary whose commits reach its disk."""

    def settings(self):
        return super().settings() | {"fsync": "on", "full_page_writes": "on"}


def run(options, binary, workspace, pg_bin, say):
    """Measures all arms; returns the table as markdown."""
    clients = options.clients or CLIENTS
    arms = options.targets or ARMS
    unknown = sorted(set(arms) - set(ARMS))
    if unknown:
        raise BenchError(f"no such target of the gate: {', '.join(unknown)}; there are {', '.join(ARMS)}")
    rows = []
    with Durable(pg_bin, workspace, max(clients) + 80) as cluster:
        cluster.query("CREATE TABLE gate (id bigint PRIMARY KEY, n int)")
        for round_trip in ROUND_TRIPS_MS:
            for count in clients:
                for repetition in range(options.repetitions or 1):
                    for arm in arms:
                        figures = _arm(cluster, workspace, binary, arm, count, round_trip, options.seconds)
                        say(f"{round_trip} ms, {count} clients, {arm}: {figures['tps']:.0f} TPS")
                        rows.append((round_trip, count, repetition, arm, figures))
    return markdown(rows)


def _arm(cluster, workspace, binary, arm, clients, round_trip, seconds):
    kind, _, size = arm.partition("-")
    directory = workspace.directory(f"gate-{time.monotonic_ns()}")
    cluster.query("TRUNCATE gate")
    with ExitStack() as stack:
        stack.callback(_synchronous, cluster, "")
        watched = {"primary": cluster.postmasters[0]}
        relay = None
        if kind != "local":
            delay = Delay(cluster.primary, round_trip / 2000)
            delay.start()
            stack.callback(delay.end)
            if kind == "receivewal":
                process = stack.enter_context(_receivewal(cluster, workspace, directory, delay.port))
            else:
                process, relay = stack.enter_context(_relay(workspace, directory, binary, delay.port))
            watched["receiver"] = process.pid
            _until_streaming(cluster)
            if kind != "gate":
                _synchronous(cluster, STANDBY)
        port = cluster.primary
        if size != "direct":
            text = _proxy(cluster, directory, int(size or 16), relay if kind == "gate" else None, clients)
            process, port = stack.enter_context(_start_proxy(workspace, directory, binary, text))
            watched["proxy"] = process.pid
        return _pgbench(cluster, workspace, directory, port, clients, seconds, watched)


def _synchronous(cluster, name):
    cluster.query(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    cluster.query("SELECT pg_reload_conf()")
    if name:
        _until(lambda: _one(cluster, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == "1")


def _until_streaming(cluster):
    sql = f"SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name = '{STANDBY}'"
    _until(lambda: _one(cluster, sql) == "1")


def _one(cluster, sql):
    value = cluster.query(sql)[0][0]
    return value.decode() if isinstance(value, bytes) else value


def _until(condition):
    deadline = time.monotonic() + READY_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise BenchError(f"what was started is not ready after {READY_SECONDS} s")
        time.sleep(0.05)


def _receivewal(cluster, workspace, directory, port):
    wal = workspace.directory(f"{directory.name}/wal")
    dsn = f"host=127.0.0.1 port={port} user={USER} application_name={STANDBY}"
    command = [cluster.bin / "pg_receivewal", "-D", wal, "--synchronous", "--no-loop", "-d", dsn]
    return workspace.server(command, directory / "receivewal.log")


class _relay:
    """The relay as a process, and the port that it listens on."""

    def __init__(self, workspace, directory, binary, upstream):
        self._stack, self._port = ExitStack(), free_port()
        text = f"""
[relay]
listen = ["127.0.0.1:{self._port}"]
dir = "{directory}/wal"
auth = "trust"
[relay.upstream]
address = "127.0.0.1:{upstream}"
user = "{USER}"
slot = ""
application_name = "{STANDBY}"
[metrics]
listen = "127.0.0.1:{free_port()}"
"""
        config = workspace.write(directory / "relay.toml", text)
        self._server = workspace.server([binary, "relay", "--config", config], directory / "relay.log")

    def __enter__(self):
        return self._stack.enter_context(self._server), self._port

    def __exit__(self, *_):
        self._stack.close()


def _proxy(cluster, directory, pool, relay, clients):
    text = f"""
[proxy]
auth = "trust"
max_clients = {clients + 20}
[proxy.pool]
size = {pool}
wait_timeout = "120s"
[cluster]
user = "{USER}"
database = "{DATABASE}"
[[cluster.nodes]]
name = "primary"
address = "127.0.0.1:{cluster.primary}"
"""
    if relay:
        text += f'[[cluster.relays]]\nname = "relay"\naddress = "127.0.0.1:{relay}"\n'
        text += '[proxy.gate]\ncommit_durability = "relay"\n'
    return text


class _start_proxy:
    """The proxy as a process, and its port."""

    def __init__(self, workspace, directory, binary, text):
        self._stack, self._directory = ExitStack(), directory
        self._port, self._peer = free_port(), Kingpost(binary)
        self._peer._metrics = free_port()
        text = text.replace("[proxy]\n", f'[proxy]\nlisten = ["127.0.0.1:{self._port}"]\n', 1)
        text += f'[metrics]\nlisten = "127.0.0.1:{self._peer._metrics}"\n'
        config = workspace.write(directory / "proxy.toml", text)
        self._server = workspace.server([binary, "proxy", "--config", config], directory / "proxy.log")

    def __enter__(self):
        process = self._stack.enter_context(self._server)
        try:
            _until(lambda: process.poll() is None and self._peer.ready(self._directory))
        except BenchError:
            self._stack.close()
            raise BenchError(f"the proxy is not ready:\n{tail(self._directory / 'proxy.log')}") from None
        return process, self._port

    def __exit__(self, *_):
        self._stack.close()


def _pgbench(cluster, workspace, directory, port, clients, seconds, watched):
    script = workspace.write(directory / "gate.sql", SCRIPT)
    prefix = directory / "latencies"
    command = [cluster.bin / "pgbench", "-h", "127.0.0.1", "-p", port, "-U", USER, "-n", "-f", script]
    command += ["-M", "prepared", "-c", clients, "-j", 2, "-T", seconds + WARM_UP_SECONDS]
    command += ["-l", f"--log-prefix={prefix}", DATABASE]
    before = {name: _cpu(pid) for name, pid in watched.items()}
    output = workspace.call(command, seconds * 3 + 120)
    after = {name: _cpu(pid) for name, pid in watched.items()}
    done = next((float(line.split("=")[1].split()[0]) for line in output.splitlines() if line.startswith("tps")), None)
    if not done:
        raise BenchError(f"pgbench says no TPS:\n{output[-500:]}")
    latencies = []
    for path in sorted(prefix.parent.glob(prefix.name + ".*")):
        with open(path) as file:
            latencies += [int(line.split()[2]) / 1000 for line in file]
        path.unlink()
    latencies.sort()
    figures = {"tps": done, "p50": percentile(latencies, 0.5), "p99": percentile(latencies, 0.99)}
    transactions = max(len(latencies), 1)
    figures["cpu"] = {name: (after[name] - before[name]) * 1e6 / transactions for name in watched}
    return figures


def _cpu(pid):
    """Seconds of CPU of a process and all that it has started."""
    return sum(_seconds(one) for one in counters.family(pid))


def _seconds(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, and those of children that have ended.
    return sum(int(fields[at]) for at in (11, 12, 13, 14)) / 100


def markdown(rows):
    """The table: medians over repetitions, and the ratio to the native arm of the same pool."""
    groups = {}
    for round_trip, clients, _, arm, figures in rows:
        groups.setdefault((round_trip, clients, arm), []).append(figures)
    median = lambda values: sorted(values)[len(values) // 2]  # noqa: E731
    lines = ["| round trip ms | clients | target | TPS | of native-16 | p50 ms | p99 ms | CPU µs a transaction |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for (round_trip, clients, arm), all_figures in groups.items():
        tps = median([figures["tps"] for figures in all_figures])
        native = groups.get((round_trip, clients, "native-16"))
        ratio = f"{tps / median([figures['tps'] for figures in native]):.2f}" if native else ""
        p50, p99 = (median([figures[key] for figures in all_figures]) for key in ("p50", "p99"))
        cpu = ", ".join(
            f"{name} {median([figures['cpu'][name] for figures in all_figures]):.0f}" for name in all_figures[0]["cpu"]
        )
        lines.append(f"| {round_trip} | {clients} | {arm} | {tps:.0f} | {ratio} | {p50:.1f} | {p99:.1f} | {cpu} |")
    return "\n".join(lines)
