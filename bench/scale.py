"""`bench/run --only scale`: how the proxy's cost of a read grows with clients, workers, pools and texts.

Costs are CPU time of the proxy and context switches of its threads, a statement; they hold on a machine with few cores, too, where rates do not.

- clients and workers: `pgbench -S -M prepared`
- pools and texts: a load of this file, 64 statements at a time, each of another user, or with another text (a simple query): few at a time, so
  compare its rows with each other and not with pgbench's. PgBouncer knows one user here, so it has no row of pools
"""

import time
from statistics import median

from bench import counters, pgwire, plan
from bench.cluster import DATABASE, USER, Cluster
from bench.errors import BenchError, PeerUnavailable, RunFailed
from bench.peers import Terms, running
from bench.window import measure, save

CLIENTS = (1, 4, 16, 64, 256, 1000, 3000)
WORKERS = (1, 2, 4, 8, 16, 32, 64)
POOLS = (1, 10, 100, 500)
TEXTS = (10, 100, 1000, 10_000, 50_000)
# Clients where something else grows, and statements at a time.
SOME = 64


def run(options, inventory, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    chosen = plan.chosen(inventory, ("kingpost", "pgbouncer"), options.targets or ["kingpost", "pgbouncer"])
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-scale", ""
    with Cluster(pg_bin, workspace, max(POOLS) + 2 * options.pool + 50) as cluster:
        cluster.load_pgbench(10, 300)
        for number in range(max(POOLS)):
            cluster.query(f"CREATE ROLE pool{number} LOGIN SUPERUSER")
        for repetition in range(options.repetitions):
            for grows, values, one in (
                ("clients", CLIENTS, _clients),
                ("workers", WORKERS, _workers),
                ("pools", POOLS, _pools),
                ("texts", TEXTS, _texts),
            ):
                for value in values:
                    for target in chosen:
                        if grows in ("workers", "pools") and not target.name.startswith("kingpost"):
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


def _workers(target, inventory, workspace, cluster, workers, options):
    return _pgbench(target, inventory, workspace, cluster, SOME, workers, options)


def _pgbench(target, inventory, workspace, cluster, clients, workers, options):
    with running(target, inventory, workspace, cluster, Terms(options.pool, workers, clients + 100)) as endpoint:
        directory = workspace.directory(f"scale-{time.monotonic_ns()}")
        switches = counters.process(endpoint.pid).switches
        before = time.monotonic()
        watched = {"proxy": endpoint.pid}
        found = measure(cluster, workspace, directory, "-b select-only", endpoint.port, clients, options.seconds, watched)
        # The switches are of the whole run, the rest of its window.
        rate = (counters.process(endpoint.pid).switches - switches) / (time.monotonic() - before)
        return {"us": found["cpu"]["proxy"], "switches": rate / found["tps"], "rate": found["tps"]}


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


def markdown(rows):
    """Medians over the repetitions: a table for each thing that grows."""
    lines = []
    for grows in dict.fromkeys(row[2] for row in rows):
        targets = list(dict.fromkeys(row[0] for row in rows if row[2] == grows))
        lines.append(f"| {grows} | " + " | ".join(f"{target}, µs | switches" for target in targets) + " |")
        lines.append("|---:|" + "---:|---:|" * len(targets))
        for value in dict.fromkeys(row[3] for row in rows if row[2] == grows):
            cells = []
            for target in targets:
                found = [figures for name, _, of, at, figures in rows if (name, of, at) == (target, grows, value)]
                cells += [f"{median(run[key] for run in found):.{digits}f}" if found else "" for key, digits in (("us", 1), ("switches", 2))]
            lines.append(f"| {value} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)
