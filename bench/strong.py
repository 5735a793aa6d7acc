"""`bench/run --only strong`: what it costs that a read on a replica sees every commit acknowledged before it.

Point selects (pgbench -S, prepared) on one primary and two replicas, once while nobody writes and once while a writer commits at a fixed rate:

- `primary`: all reads on the primary
- `eventual`, `session`, `strong`: reads on the replicas, by that consistency
- `strong-proven`: the same with three relays, which say for each batch of reads that their primary was not replaced
"""

import time
from contextlib import ExitStack
from fnmatch import fnmatchcase

from bench.cluster import DATABASE, USER, Cluster
from bench.errors import BenchError
from bench.gate import start_proxy, start_relay, until
from bench.plan import rotated
from bench.stats import paired_ratio, summary
from bench.window import measure, save

ARMS = ("primary", "eventual", "session", "strong", "strong-proven")
RELAYS = 3
CLIENTS = (64,)
# Commits a second while the reads run.
WRITES = (0, 200)
SCALE = 20
LOAD_SECONDS = 300
HEADER = (
    "| clients | commits/s | target | QPS | ± | of reads on the primary | p50 ms | p99 ms | primary µs | proxy µs | machine busy "
    "| batches/s | reads a batch | waited ms | round trip ms | on the primary |\n|---:|---:|---|" + "---:|" * 13
)


def run(options, binary, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    arms = tuple(arm for arm in ARMS if not options.targets or any(fnmatchcase(arm, glob) for glob in options.targets))
    if not arms:
        raise BenchError(f"no such target of strong; there are {', '.join(ARMS)}")
    counts = options.clients or CLIENTS
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-strong", ""
    with Cluster(pg_bin, workspace, max(counts) + 150) as cluster:
        cluster.load_pgbench(SCALE, LOAD_SECONDS)
        cluster.start_replicas()
        cluster.warm()
        for clients in counts:
            for writes in WRITES:
                for repetition in range(options.repetitions):
                    for arm in rotated(arms, repetition):
                        figures = _arm(cluster, workspace, binary, arm, clients, writes, options.seconds)
                        say(f"strong, {clients} clients, {writes} commits/s, {arm}: {figures['tps']:.0f} QPS")
                        rows.append([clients, writes, repetition, arm, figures])
                        text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _arm(cluster, workspace, binary, arm, clients, writes, seconds):
    directory = workspace.directory(f"strong-{time.monotonic_ns()}")
    consistency, *proven = arm.split("-")
    routing = 'route = "primary"' if arm == "primary" else f'consistency = "{consistency}"'
    text = f"""
[proxy]
auth = "trust"
max_clients = {clients + 40}
[proxy.pool]
size = 32
[proxy.routing]
{routing}
[cluster]
user = "{USER}"
database = "{DATABASE}"
"""
    for number, port in enumerate(cluster.ports):
        text += f'[[cluster.nodes]]\nname = "node{number}"\naddress = "127.0.0.1:{port}"\n'
    cluster.wait_for_replicas()
    with ExitStack() as stack:
        for number in range(RELAYS if proven else 0):
            name = f"relay{number}"
            relay = start_relay(workspace, workspace.directory(f"{directory.name}/{name}"), binary, cluster.primary, name)
            _, port = stack.enter_context(relay)
            text += f'[[cluster.relays]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\n'
        if proven:
            until(lambda: _streaming(cluster) == RELAYS)
        process, port, metrics = stack.enter_context(start_proxy(workspace, directory, binary, text))
        if writes:
            # Directly to the primary: what the reads have to see is what counts, not who commits it.
            script = workspace.write(
                directory / "write.sql",
                f"\\set id random(1, {SCALE * 100000})\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :id;\n",
            )
            command = [cluster.bin / "pgbench", "-h", "127.0.0.1", "-p", cluster.primary, "-U", USER, "-n", "-M", "prepared", "-c", 4]
            command += ["-R", writes, "-T", seconds + 120, "-f", script, DATABASE]
            stack.enter_context(workspace.server(command, directory / "writer.log"))
        watched = {"primary": cluster.postmasters[0], "proxy": process.pid}
        return measure(cluster, workspace, directory, "-b select-only", port, clients, seconds, watched, metrics)


def _streaming(cluster):
    return len(cluster.query("SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'relay%'"))


def markdown(rows):
    """Medians over repetitions."""
    groups = {}
    for clients, writes, repetition, arm, figures in rows:
        groups.setdefault((clients, writes), {}).setdefault(arm, {})[repetition] = figures
    lines = [HEADER]
    for (clients, writes), arms in groups.items():
        for arm, of in arms.items():
            tps = {repetition: figures["tps"] for repetition, figures in of.items()}
            primary = {repetition: figures["tps"] for repetition, figures in arms.get("primary", {}).items()}
            ratio = paired_ratio(tps, primary) if arm != "primary" else None
            all_tps = summary(tps.values())
            cells = [str(clients), str(writes), arm, f"{all_tps['median']:.0f}"]
            cells.append(f"{(all_tps['max'] - all_tps['min']) / 2 / all_tps['median']:.0%}" if all_tps["n"] > 1 else "")
            cells.append(f"{ratio:.2f}" if ratio else "")
            first = {key: summary(figures.get(key) for figures in of.values()) for key in ("p50", "p99", "busy", "stayed")}
            cells += [f"{first['p50']['median']:.2f}", f"{first['p99']['median']:.1f}"]
            for name in ("primary", "proxy"):
                cells.append(f"{summary(figures['cpu'][name] for figures in of.values())['median']:.1f}")
            cells.append(f"{first['busy']['median']:.0%}")
            for name, digits in (("batches", 0), ("size", 1), ("wait_ms", 2), ("round_trip_ms", 2)):
                found = summary(figures.get("oracle", {}).get(name) for figures in of.values()) if arm.startswith("strong") else None
                cells.append(f"{found['median']:.{digits}f}" if found else "")
            cells.append(f"{first['stayed']['median']:.0%}" if first["stayed"] and arm.startswith("strong") else "")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
