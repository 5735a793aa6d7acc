"""`bench/run --only calls`: the system calls of a transaction, by name, of each proxy.

`strace -c` counts them, and slows everything down: so no times are shown. A transaction of TPC-B is seven texts, so the least that a proxy needs
without batches is a receive and a send for each on either side: 28. Batches need fewer.
"""

import re
import time
from statistics import median

from bench import plan, traced
from bench.cluster import Cluster
from bench.errors import BenchError, PeerUnavailable, RunFailed
from bench.peers import Terms, running
from bench.window import save

CLIENTS = 64
# pgbench's script and protocol.
LOADS = {"TPC-B simple": ("tpcb-like", "simple"), "TPC-B prepared": ("tpcb-like", "prepared"), "-S simple": ("select-only", "simple")}
# Calls below this number a transaction are one row.
FEW = 0.02


def run(options, inventory, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    traced.require_strace()
    chosen = plan.chosen(inventory, ("kingpost", "pgbouncer"), options.targets or ["kingpost", "kingpost-epoll", "pgbouncer"])
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-calls", ""
    with Cluster(pg_bin, workspace, CLIENTS + options.pool + 50, options.sockets) as cluster:
        cluster.load_pgbench(20, 300)
        for repetition in range(options.repetitions):
            for load in LOADS:
                for target in chosen:
                    try:
                        calls = _count(target, inventory, workspace, cluster, load, options)
                    except (PeerUnavailable, RunFailed, BenchError) as error:
                        say(f"{load}, without {target.name}: {error}")
                        continue
                    say(f"{load}, {target.name}: {sum(calls.values()):.2f} calls")
                    rows.append((target.name, repetition, load, calls))
                    text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _count(target, inventory, workspace, cluster, load, options):
    """Calls a transaction, by name."""
    script, mode = LOADS[load]
    terms = Terms(options.pool, options.workers, CLIENTS + 100)
    with running(target, inventory, workspace, cluster, terms) as endpoint:
        pgbench = ["-b", script, "-M", mode]
        log, transactions = traced.pgbench(cluster, workspace, endpoint, ["-c"], pgbench, CLIENTS, options.seconds)
    return {call: count / transactions for call, count in counts(log.read_text(encoding="utf-8")).items()}


def counts(table):
    """The calls in a table of `strace -c`."""
    rows = re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", table, re.MULTILINE)
    return {call: int(number) for number, call in rows if call != "total"}


def markdown(rows):
    """Medians over the repetitions: a table for each load, a column for each target."""
    lines = []
    for load in LOADS:
        targets = list(dict.fromkeys(row[0] for row in rows if row[2] == load))
        if not targets:
            continue
        of = {target: [row[3] for row in rows if (row[0], row[2]) == (target, load)] for target in targets}
        mid = {
            target: {call: median(run.get(call, 0) for run in runs) for call in {call for run in runs for call in run}}
            for target, runs in of.items()
        }
        calls = sorted({call for found in mid.values() for call in found}, key=lambda call: -max(found.get(call, 0) for found in mid.values()))
        lines += [f"| {load} | {' | '.join(targets)} |", "|---|" + "---:|" * len(targets)]
        kept = [call for call in calls if max(found.get(call, 0) for found in mid.values()) >= FEW]
        for call in kept:
            lines.append(f"| `{call}` | " + " | ".join(f"{mid[target].get(call, 0):.2f}" for target in targets) + " |")
        lines.append("| all | " + " | ".join(f"{sum(mid[target].values()):.2f}" for target in targets) + " |")
        lines.append("")
    return "\n".join(lines)
