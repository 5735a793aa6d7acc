"""`bench/run --only slow-neighbour`: what clients with quick reads lose when two others beside them are slow.

64 clients run `pgbench -S -M prepared`, alone and beside two more on the same target, in turn:

- `sleep`: these run `SELECT pg_sleep(0.02)`, which costs nobody any CPU
- `range`: these run one read whose cost depends on its parameter: mostly one row, now and then twenty thousand. Nothing but the
  time it takes tells the slow from the quick; they do take CPU time from the others on any target
"""

import time
from contextlib import ExitStack
from statistics import median

from bench import loads
from bench.cluster import DATABASE, USER, Cluster
from bench.errors import BenchError, PeerUnavailable, RunFailed
from bench.peers import Terms
from bench.plan import DIRECT, KINGPOST, Target, rotated
from bench.runner import Fleet
from bench.window import save

CLIENTS = 64
SLOW_CLIENTS = 2
NEIGHBOURS = {
    "sleep": "SELECT pg_sleep(0.02);\n",
    "range": "\\set n random(1, 50)\n\\set rows case when :n = 1 then 20000 else 1 end\n"
    "SELECT count(abalance) FROM pgbench_accounts WHERE aid BETWEEN 1 AND :rows;\n",
}
ALONE = "alone"


def targets(inventory, wanted):
    """Direct, ours, and every PgBouncer that knows prepared statements; `wanted` names some of them, or none for all."""
    others = [
        Target(name, name)
        for name, peer in inventory.found.items()
        if name.startswith("pgbouncer") and not peer.refuses("prepared")
    ]
    found = [DIRECT, *([KINGPOST] if "kingpost" in inventory.found else []), *others]
    chosen = [target for target in found if not wanted or target.name in wanted]
    if not chosen:
        raise BenchError(f"none of {', '.join(wanted)} is here: {', '.join(target.name for target in found)}")
    return chosen


def run(options, inventory, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    clients = (options.clients or (CLIENTS,))[0]
    chosen = targets(inventory, options.targets)
    terms = Terms(options.pool, options.workers, clients + SLOW_CLIENTS + 100)
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-slow-neighbour", ""
    with Cluster(pg_bin, workspace, 2 * clients + (len(chosen) + 1) * options.pool + 50) as cluster:
        cluster.load_pgbench(options.scale, 300)
        scripts = {kind: workspace.write(workspace.path / f"{kind}.sql", sql) for kind, sql in NEIGHBOURS.items()}
        with Fleet(inventory, workspace, cluster, terms) as fleet:
            for repetition in range(options.repetitions):
                for target in rotated(tuple(chosen), repetition):
                    try:
                        endpoint = fleet.endpoint(target)
                    except PeerUnavailable as error:
                        say(f"without {target.name}: {error}")
                        continue
                    for beside in rotated((ALONE, *NEIGHBOURS), repetition):
                        figures = _beside(cluster, endpoint, workspace, scripts.get(beside), clients, options)
                        say(f"{target.name}, {beside}: {figures['qps']:,.0f} QPS, p99 {figures['p99_ms']:.1f} ms")
                        rows.append((target.name, repetition, beside, figures))
                        text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _beside(cluster, endpoint, workspace, script, clients, options):
    """One run of the quick clients, with the slow ones beside them if there is a script."""
    with ExitStack() as stack:
        slow = None
        if script:
            command = [cluster.bin / "pgbench", "-h", "127.0.0.1", "-p", endpoint.port, "-U", USER, "-n", "-f", script]
            command += ["-M", "prepared", "-c", SLOW_CLIENTS, "-j", 1, "-T", 600, DATABASE]
            slow = stack.enter_context(workspace.server(command, workspace.path / "slow.log"))
        time.sleep(0.2)
        figures = loads.pgbench(cluster, endpoint, workspace, "select", "prepared", clients, options.seconds)
        if slow and slow.poll() is not None:
            raise RunFailed(f"the slow neighbour ended by itself with status {slow.returncode}")
        return figures


def markdown(rows):
    """The table: medians over repetitions, the ratio to the run without neighbours of the same repetition."""
    lines = ["| target | beside | QPS | of alone | p99 ms |", "|---|---|---:|---:|---:|"]
    alone = {(target, turn): figures["qps"] for target, turn, beside, figures in rows if beside == ALONE}
    groups = {}
    for target, turn, beside, figures in rows:
        ratio = figures["qps"] / alone[target, turn] if (target, turn) in alone else None
        groups.setdefault((target, beside), []).append((figures["qps"], ratio, figures["p99_ms"]))
    for (target, beside), values in sorted(groups.items()):
        qps, ratio, p99 = (median(sorted(value for value in column if value is not None)) for column in zip(*values))
        lines.append(f"| {target} | {beside} | {qps:,.0f} | {'' if beside == ALONE else f'{ratio:.2f}'} | {p99:.1f} |")
    return "\n".join(lines)
