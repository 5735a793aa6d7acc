"""`bench/run --only lanes`: reads over shared server connections, before servers of which each wants another number of them.

Targets, all of them Kingpost:

- `off`: no server connection is shared
- `two`: each worker shares from two on, and never looks for a better number
- `found`: the default

Servers:

- `here`: PostgreSQL on the cores that everybody shares; `pgbench -S -M prepared`
- `busy`: the same beside 16 processes that compute
- `far`: the same with a round trip of 1 ms
- `50us`, `200us`, `1000us`: a model of a server with a core for each connection, on which every statement takes so long and needs no core
"""

import time
from contextlib import ExitStack
from statistics import median

from bench.cluster import DATABASE, USER, Cluster
from bench.delay import Network
from bench.errors import BenchError, PeerUnavailable
from bench.peers import Kingpost, Terms, running
from bench.plan import Target, rotated
from bench.stats import paired_ratio
from bench.window import measure, save

ARMS = {"off": ('lanes = "off"',), "two": ("lane_width_most = 2",), "found": ()}
SERVERS = ("here", "busy", "far", "50us", "200us", "1000us")
CLIENTS = (1, 2, 4, 64)
BUSY_PROCESSES = 16
ROUND_TRIP = 0.001
FIXED = "SELECT 'fixed';\n"


class Before:
    """A cluster as a proxy sees it that reaches the primary by another port."""

    def __init__(self, cluster, port):
        self._cluster, self.primary, self.ports = cluster, port, (port,)

    def __getattr__(self, name):
        return getattr(self._cluster, name)


class Found:
    """The targets, each a Kingpost with settings of its own."""

    missing = {}

    def __init__(self, binary, wanted):
        self.found = {}
        for name, settings in ARMS.items():
            if not wanted or name in wanted:
                self.found[name] = peer = Kingpost(binary)
                peer.pool_settings = settings
        if not self.found:
            raise BenchError(f"none of {', '.join(wanted)} is a target: {', '.join(ARMS)}")


def run(options, inventory, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    if "kingpost" not in inventory.found:
        raise BenchError(f"without kingpost: {inventory.missing.get('kingpost', 'not found')}")
    targets = Found(inventory.found["kingpost"].binary, options.targets)
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-lanes", ""
    network = Network(workspace)
    with Cluster(pg_bin, workspace, 2 * max(CLIENTS) + (len(ARMS) + 1) * options.pool + 50) as cluster:
        cluster.load_pgbench(options.scale, 300)
        for repetition in range(options.repetitions):
            for server in SERVERS:
                with ExitStack() as stack:
                    port = _server(server, cluster, network, workspace, stack)
                    for clients in options.clients or CLIENTS:
                        for target in rotated(tuple(targets.found), repetition):
                            try:
                                figures = _one(targets, target, Before(cluster, port), server, clients, workspace, options)
                            except (PeerUnavailable, BenchError) as error:
                                say(f"{server}, {clients} clients, without {target}: {error}")
                                continue
                            say(f"{server}, {clients} clients, {target}: {figures['tps']:,.0f} QPS, {figures['cpu']['proxy']:.1f} µs")
                            rows.append((target, repetition, server, clients, figures))
                            text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _server(server, cluster, network, workspace, stack):
    """Brings the server about; returns its port."""
    if server.endswith("us"):
        return stack.enter_context(network.model(cluster.primary, int(server[:-2]) / 1e6))
    if server == "far":
        return stack.enter_context(network.link(cluster.primary, ROUND_TRIP / 2))
    if server == "busy":
        for _ in range(BUSY_PROCESSES):
            stack.enter_context(workspace.server(["sh", "-c", "while :; do :; done"], workspace.path / "busy.log"))
    return cluster.primary


def _one(targets, target, cluster, server, clients, workspace, options):
    terms = Terms(options.pool, options.workers, clients + 100)
    with running(Target(target, target), targets, workspace, cluster, terms) as endpoint:
        directory = workspace.directory(f"lanes-{time.monotonic_ns()}")
        model = server.endswith("us")
        script, mode = (FIXED, "simple") if model else ("-b select-only", "prepared")
        return measure(cluster, workspace, directory, script, endpoint.port, clients, options.seconds, {"proxy": endpoint.pid}, mode=mode)


def markdown(rows):
    """Medians over the repetitions, and ratios within them."""
    targets = [target for target in ARMS if any(row[0] == target for row in rows)]
    ratios = [target for target in targets if target != "off"] if "off" in targets else []
    head = ["server", "clients", *(f"{target}, QPS | µs" for target in targets), *(f"{target} of off" for target in ratios)]
    lines = ["| " + " | ".join(head) + " |", "|---|---:|" + "---:|---:|" * len(targets) + "---:|" * len(ratios)]
    for server, clients in dict.fromkeys((row[2], row[3]) for row in rows):
        runs = {
            target: {row[1]: row[4] for row in rows if (row[0], row[2], row[3]) == (target, server, clients)}
            for target in targets
        }
        cells = [server, str(clients)]
        for target in targets:
            found = list(runs[target].values())
            cells.append(f"{median(run['tps'] for run in found):,.0f}" if found else "")
            cells.append(f"{median(run['cpu']['proxy'] for run in found):.1f}" if found else "")
        for target in ratios:
            rate = {name: {at: run["tps"] for at, run in runs[name].items()} for name in (target, "off")}
            ratio = paired_ratio(rate[target], rate["off"])
            cells.append("" if ratio is None else f"{ratio:.2f}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
