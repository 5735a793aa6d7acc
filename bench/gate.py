"""`bench/run --only gate`, `hot-row`: what a commit costs that is durable on another host when its client hears of it.

One transaction by logical clients (`gate`: inserts a row and updates it; `hot-row`: all of them update the same row), with these in the
place where the waiting is done; the number is that of the proxy's server connections:

- `local-16`: nobody waits: what the same pool does without any durability elsewhere
- `native-16`, `native-64`: PostgreSQL's synchronous replication with the relay as standby, behind the proxy
- `native-direct`: the same, each client with a back end of its own and no proxy
- `receivewal-16`: as `native-16`, with pg_receivewal in the relay's place
- `gate-16`, `gate-64`: the proxy's commit gate over the relay
- `flush-16`, `flush-64`: the same with one flush of the primary for all commits of a batch
- `gate-16-uring`, `flush-16-uring`, `flush-64-uring`: the proxy waits for its sockets by io_uring

Where there is a round trip, a forwarder takes half of it each way between the primary and whoever receives its log, and also between the
proxy and the relay: the proxy stands beside the primary.
"""

import time
from contextlib import ExitStack
from fnmatch import fnmatchcase

from bench.cluster import DATABASE, USER, Cluster
from bench.delay import Network
from bench.errors import BenchError
from bench.peers import Kingpost
from bench.plan import rotated
from bench.process import free_port, tail
from bench.stats import paired_ratio, summary
from bench.window import measure, save

CLIENTS = {"gate": (1, 64, 256, 800), "hot-row": (64,)}
ROUND_TRIPS_MS = {"gate": (0.0, 2.5), "hot-row": (2.5,)}
ARMS = {
    "gate": (
        "local-16",
        "native-16",
        "native-64",
        "native-direct",
        "receivewal-16",
        "gate-16",
        "gate-64",
        "flush-16",
        "flush-64",
        "gate-16-uring",
        "flush-16-uring",
        "flush-64-uring",
    ),
    "hot-row": ("local-16", "native-16", "native-64", "gate-16", "gate-64", "flush-16"),
}
STANDBY = "bench_standby"
READY_SECONDS = 30
SCRIPTS = {
    # A row of its own for each turn: found by its key.
    "gate": "\\set id random(1, 9000000000000000)\nBEGIN;\nINSERT INTO gate VALUES (:id, 0);\n"
    "UPDATE gate SET n = n + 1 WHERE id = :id;\nCOMMIT;\n",
    "hot-row": "UPDATE gate SET n = n + 1 WHERE id = 0;\n",
}


class Durable(Cluster):
    """A primary whose commits reach its disk."""

    def settings(self):
        return super().settings() | {"fsync": "on", "full_page_writes": "on"}


def cases(options):
    """What `options` choose: load, round trip in ms, clients."""
    found = []
    for load in CLIENTS:
        for round_trip in ROUND_TRIPS_MS[load]:
            for clients in options.clients or CLIENTS[load]:
                case = f"{load}/{round_trip:g}/{clients}"
                if any(fnmatchcase(case, glob) or f"{case}/".startswith(glob.rstrip("/") + "/") for glob in options.only):
                    found.append((load, round_trip, clients))
    return found


def run(options, binary, workspace, pg_bin, say, out):
    """Measures what the options choose; writes and returns the tables as markdown."""
    chosen = cases(options)
    if not chosen:
        raise BenchError("nothing to run; there are gate/0, gate/2.5 and hot-row/2.5, each with /CLIENTS")
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-gate", ""
    with Durable(pg_bin, workspace, max(clients for _, _, clients in chosen) + 100) as cluster:
        cluster.query("CREATE TABLE gate (id bigint PRIMARY KEY, n int)")
        network = Network(workspace) if any(round_trip for _, round_trip, _ in chosen) else None
        for load, round_trip, clients in chosen:
            arms = tuple(arm for arm in ARMS[load] if not options.targets or any(fnmatchcase(arm, glob) for glob in options.targets))
            if not arms:
                raise BenchError(f"no such target of {load}; there are {', '.join(ARMS[load])}")
            for repetition in range(options.repetitions):
                for arm in rotated(arms, repetition):
                    figures = _arm(cluster, workspace, network, binary, load, arm, clients, round_trip, options.seconds)
                    say(f"{load} {round_trip:g} ms, {clients} clients, {arm}: {figures['tps']:.0f} TPS, p50 {figures['p50']:.2f} ms")
                    rows.append([load, round_trip, clients, repetition, arm, figures])
                    # Also of a run that is ended early.
                    text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _arm(cluster, workspace, network, binary, load, arm, clients, round_trip, seconds):
    kind, size, *driver = arm.split("-")
    directory = workspace.directory(f"gate-{time.monotonic_ns()}")
    cluster.query("TRUNCATE gate")
    cluster.query("INSERT INTO gate VALUES (0, 0)")
    cluster.query("CHECKPOINT", timeout=60)
    with ExitStack() as stack:
        stack.callback(_synchronous, cluster, "")
        watched, relay, metrics = {"primary": cluster.postmasters[0]}, None, None

        def far(port):
            return stack.enter_context(network.link(port, round_trip / 2000)) if round_trip else port

        if kind != "local":
            upstream = far(cluster.primary)
            if kind == "receivewal":
                process = stack.enter_context(_receivewal(cluster, workspace, directory, upstream))
            else:
                process, relay = stack.enter_context(start_relay(workspace, directory, binary, upstream))
            watched["receiver"] = process.pid
            until(lambda: _streaming(cluster, "application_name", STANDBY))
            if kind in ("native", "receivewal"):
                _synchronous(cluster, STANDBY)
        port = cluster.primary
        if size != "direct":
            text = _proxy(cluster, int(size), clients, "io_uring" if driver else "epoll")
            if kind in ("gate", "flush"):
                text += _gate(far(relay), kind == "flush")
            process, port, metrics = stack.enter_context(start_proxy(workspace, directory, binary, text))
            watched["proxy"] = process.pid
        return measure(cluster, workspace, directory, SCRIPTS[load], port, clients, seconds, watched, metrics)


def _synchronous(cluster, name):
    cluster.query(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    cluster.query("SELECT pg_reload_conf()")
    if name:
        until(lambda: _streaming(cluster, "sync_state", "sync"))


def _streaming(cluster, column, value):
    rows = cluster.query(f"SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND {column} = '{value}'")
    return len(rows) == 1


def until(condition):
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


class start_relay:
    """The relay as a process, and the port that it listens on."""

    def __init__(self, workspace, directory, binary, upstream, name=STANDBY):
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
application_name = "{name}"
[metrics]
listen = "127.0.0.1:{free_port()}"
"""
        config = workspace.write(directory / "relay.toml", text)
        self._server = workspace.server([binary, "relay", "--config", config, "--new"], directory / "relay.log")

    def __enter__(self):
        return self._stack.enter_context(self._server), self._port

    def __exit__(self, *_):
        self._stack.close()


def _proxy(cluster, pool, clients, driver):
    return f"""
[proxy]
auth = "trust"
driver = "{driver}"
max_clients = {clients + 20}
[proxy.pool]
size = {pool}
wait_timeout = "120s"
[cluster]
user = "{USER}"
database = "{DATABASE}"
[proxy.routing]
# There is no replica: nobody's reads are to be sent there, and nobody asks where the primary is but for the gate.
consistency = "eventual"
[[cluster.nodes]]
name = "primary"
address = "127.0.0.1:{cluster.primary}"
"""


def _gate(relay, flush):
    return (
        f'[[cluster.relays]]\nname = "relay"\naddress = "127.0.0.1:{relay}"\n[proxy.gate]\ncommit_durability = "relay"\n'
        # Also on servers that can do it only by a transaction: it is named in the results which one was measured.
        + ('flush = "batch-transaction"\n' if flush else "")
    )


class start_proxy:
    """The proxy as a process, its port and that of its metrics."""

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
            until(lambda: process.poll() is None and self._peer.ready(self._directory))
        except BenchError:
            self._stack.close()
            raise BenchError(f"the proxy is not ready:\n{tail(self._directory / 'proxy.log')}") from None
        return process, self._port, self._peer._metrics

    def __exit__(self, *_):
        self._stack.close()


HEADER = (
    "| clients | target | TPS | ± | of native, same pool | of the best native | p50 ms | p99 ms | primary µs | receiver µs | proxy µs "
    "| machine busy | batches/s | commits a batch | waited ms | round trip ms | held ms |\n" + "|---:|---|" + "---:|" * 15
)


def markdown(rows):
    """One table a load and round trip: medians over repetitions; ratios are taken within a repetition."""
    tables = {}
    for load, round_trip, clients, repetition, arm, figures in rows:
        tables.setdefault((load, round_trip), {}).setdefault(clients, {}).setdefault(arm, {})[repetition] = figures
    parts = []
    for (load, round_trip), by_clients in tables.items():
        parts.append(f"**{load}, round trip {round_trip:g} ms**\n\n{HEADER}")
        for clients, arms in by_clients.items():
            parts[-1] += "".join(f"\n| {clients} | {arm} | {_cells(arms, arm)} |" for arm in arms)
    return "\n\n".join(parts)


def _cells(arms, arm):
    of = arms[arm]
    tps = {repetition: figures["tps"] for repetition, figures in of.items()}
    natives = {name: {r: f["tps"] for r, f in runs.items()} for name, runs in arms.items() if name.startswith("native")}
    best = {r: max(runs[r] for runs in natives.values() if r in runs) for r in tps if any(r in runs for runs in natives.values())}
    same = natives.get("native-" + arm.split("-")[1], {})
    all_tps = summary(tps.values())
    cells = [f"{all_tps['median']:.0f}", f"{(all_tps['max'] - all_tps['min']) / 2 / all_tps['median']:.0%}" if all_tps["n"] > 1 else ""]
    for other in (same, best):
        ratio = paired_ratio(tps, other) if not arm.startswith("native") else None
        cells.append(f"{ratio:.2f}" if ratio else "")

    def middle(digits, *path):
        values = []
        for figures in of.values():
            for key in path:
                figures = (figures or {}).get(key)
            values.append(figures)
        found = summary(values)
        return f"{found['median']:.{digits}f}" if found else ""

    cells += [middle(2, "p50"), middle(1, "p99")]
    cells += [middle(0, "cpu", name) for name in ("primary", "receiver", "proxy")]
    busy = summary(figures["busy"] for figures in of.values())
    cells.append(f"{busy['median']:.0%}")
    cells += [middle(0, "oracle", "batches"), middle(1, "oracle", "size")]
    cells += [middle(2, "oracle", name) for name in ("wait_ms", "round_trip_ms", "held_ms")]
    return " | ".join(cells)
