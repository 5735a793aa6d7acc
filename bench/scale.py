"""`bench/run --only scale`: how the proxy's cost of a read grows with clients, idle clients, workers, pools and texts, and what a statement costs
the client, the proxy and the server.

Costs are CPU time of the proxy and context switches of its threads, a statement; they hold on a machine with few cores, too, where rates do not.

- clients, idle clients and workers: `pgbench -S -M prepared`; beside idle clients 64 that work
- pools and texts: a load of this file, 64 statements at a time, each of another user, or with another text (a simple query): few at a time, so
  compare its rows with each other and not with pgbench's. PgBouncer knows one user here, so it has no row of pools
"""

import os
import time
from contextlib import ExitStack
from statistics import median

from bench import counters, pgwire, plan
from bench.cluster import DATABASE, USER, Cluster
from bench.errors import BenchError, PeerUnavailable, RunFailed
from bench.peers import Terms, running
from bench.process import raise_open_file_limit
from bench.window import measure, save

CLIENTS = (1, 4, 16, 64, 256, 1000, 3000)
IDLE = (0, 1000, 10_000, 100_000)
WORKERS = (1, 2, 4, 8, 16, 32, 64)
POOLS = (1, 10, 100, 500)
TEXTS = (10, 100, 1000, 10_000, 50_000)
# Clients where something else grows, and statements at a time.
SOME = 64
# Idle clients from one address of loopback: fewer than it has ports.
FROM_ONE_ADDRESS = 20_000
# Open files of a proxy beside its idle clients.
SPARE_FILES = 10_000
# pgbench's loads whose cost is told by program: its script, and the statements of a transaction.
PARTS = {"reads": ("-b select-only", 1), "TPC-B": ("-b tpcb-like", 7)}


def run(options, inventory, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    chosen = plan.chosen(inventory, ("kingpost", "pgbouncer"), options.targets or ["kingpost", "pgbouncer"])
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-scale", ""
    idle = raise_open_file_limit() - SPARE_FILES
    with Cluster(pg_bin, workspace, max(POOLS) + 2 * options.pool + 50) as cluster:
        cluster.load_pgbench(10, 300)
        for number in range(max(POOLS)):
            cluster.query(f"CREATE ROLE pool{number} LOGIN SUPERUSER")
        for repetition in range(options.repetitions):
            for grows, values, one in (
                ("parts", PARTS, _parts),
                ("clients", CLIENTS, _clients),
                ("idle clients", [number for number in IDLE if number <= idle], _idle),
                ("workers", WORKERS, _workers),
                ("pools", POOLS, _pools),
                ("texts", TEXTS, _texts),
            ):
                for value in values:
                    for target in chosen:
                        if grows in ("parts", "workers", "pools") and not target.name.startswith("kingpost"):
                            continue
                        try:
                            figures = one(target, inventory, workspace, cluster, value, options)
                        except (PeerUnavailable, RunFailed, BenchError, OSError, pgwire.ProtocolError) as error:
                            say(f"{value} {grows}, without {target.name}: {error}")
                            continue
                        say(f"{value} {grows}, {target.name}: {figures['us']:.1f} µs, {figures['switches']:.2f} switches")
                        rows.append((target.name, repetition, grows, value, figures))
                        text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _clients(target, inventory, workspace, cluster, clients, options):
    return _pgbench(target, inventory, workspace, cluster, clients, options.workers, options)


def _idle(target, inventory, workspace, cluster, clients, options):
    return _pgbench(target, inventory, workspace, cluster, SOME, options.workers, options, idle=clients)


def _parts(target, inventory, workspace, cluster, load, options):
    script, statements = PARTS[load]
    return _pgbench(target, inventory, workspace, cluster, SOME, options.workers, options, script, statements)


def _workers(target, inventory, workspace, cluster, workers, options):
    return _pgbench(target, inventory, workspace, cluster, SOME, workers, options)


def _pgbench(target, inventory, workspace, cluster, clients, workers, options, script="-b select-only", statements=1, idle=0):
    terms = Terms(options.pool, workers, clients + idle + 100)
    with running(target, inventory, workspace, cluster, terms) as endpoint, ExitStack() as stack:
        for number in range(idle):
            source = f"127.0.0.{2 + number // FROM_ONE_ADDRESS}"
            stack.enter_context(pgwire.Connection(endpoint.port, USER, DATABASE, source=source))
        directory = workspace.directory(f"scale-{time.monotonic_ns()}")
        before, began = counters.process(endpoint.pid), time.monotonic()
        watched = {"proxy": endpoint.pid, "servers": cluster.postmasters[0]}
        found = measure(cluster, workspace, directory, script, endpoint.port, clients, options.seconds, watched)
        after = counters.process(endpoint.pid)
        # The switches are of the whole run, the rest of its window.
        switches = (after.switches - before.switches) / (time.monotonic() - began) / found["tps"]
        cpu = found["cpu"]
        rate = found["tps"] * statements
        return {
            "us": cpu["proxy"] / statements,
            "switches": switches / statements,
            "server_us": cpu["servers"] / statements,
            "machine_us": found["busy"] * (os.cpu_count() or 1) * 1e6 / rate,
            "rate": rate,
        }


def _pools(target, inventory, workspace, cluster, pools, options):
    users = [f"pool{number % pools}" for number in range(max(SOME, pools))]
    # One server connection a pool is enough for one statement at a time; the small pools share as many as one large pool has.
    size = max(1, options.pool // pools)
    return _own(target, inventory, workspace, cluster, users, lambda _: "SELECT 1", size, options)


def _texts(target, inventory, workspace, cluster, texts, options):
    text = lambda number: f"SELECT a{number % texts} FROM (VALUES (1)) AS t (a{number % texts})"  # noqa: E731
    return _own(target, inventory, workspace, cluster, [USER] * SOME, text, options.pool, options)


def _own(target, inventory, workspace, cluster, users, text, size, options):
    """Statements in rounds: on the next `SOME` connections one each, then their answers."""
    terms = Terms(size, options.workers, len(users) + 100)
    with running(target, inventory, workspace, cluster, terms) as endpoint:
        connections = [pgwire.Connection(endpoint.port, user, DATABASE) for user in users]
        try:
            done = _rounds(connections, text, 0, options.seconds / 4)
            before, began = counters.process(endpoint.pid), time.monotonic()
            count = _rounds(connections, text, done, options.seconds)
            after, took = counters.process(endpoint.pid), time.monotonic() - began
        finally:
            for connection in connections:
                connection.close()
    cpu = after.user_us + after.system_us - before.user_us - before.system_us
    return {"us": cpu / count, "switches": (after.switches - before.switches) / count, "rate": count / took}


def _rounds(connections, text, first, seconds):
    """Runs rounds for so long; returns the number of statements. The first one is number `first`."""
    until, done = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        start = done % len(connections)
        some = [connections[(start + at) % len(connections)] for at in range(min(SOME, len(connections)))]
        for at, connection in enumerate(some):
            connection.send(text(first + done + at))
        for connection in some:
            connection.receive()
        done += len(some)
    return done


# What a table shows of each target, with its digits; of the parts of a statement more.
SHOWN = (("us", "µs", 1), ("switches", "switches", 2))
SHOWN_PARTS = (("us", "proxy, µs", 1), ("server_us", "server, µs", 1), ("machine_us", "all with pgbench, µs", 1), ("switches", "switches", 2))


def markdown(rows):
    """Medians over the repetitions: a table for each thing that grows."""
    lines = []
    for grows in dict.fromkeys(row[2] for row in rows):
        targets = list(dict.fromkeys(row[0] for row in rows if row[2] == grows))
        shown = SHOWN_PARTS if grows == "parts" else SHOWN
        lines.append(f"| {grows} | " + " | ".join(f"{target}, {title}" for target in targets for _, title, _ in shown) + " |")
        lines.append("|---:|" + "---:|" * len(targets) * len(shown))
        for value in dict.fromkeys(row[3] for row in rows if row[2] == grows):
            cells = []
            for target in targets:
                found = [figures for name, _, of, at, figures in rows if (name, of, at) == (target, grows, value)]
                cells += [f"{median(run[key] for run in found):.{digits}f}" if found else "" for key, _, digits in shown]
            lines.append(f"| {value} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)
