"""`bench/run --only workers`: what a transaction costs in wake-ups when a pool has fewer connections than the proxy has workers.

`pgbench -S` by 48 clients over a pool of 8, with 2, 8, 16 and 48 workers. What is counted are system calls, by `strace`, which slows everything
down: so no times are shown. Counts hold on a machine with two cores, too:

- letters: writes to another worker's eventfd (a client waits for a connection that another worker has, a connection goes to another worker)
- turns: `epoll_wait`, one a turn of a worker's loop
"""

import os
import re
import time
from statistics import median

from bench import plan, traced
from bench.cluster import Cluster
from bench.errors import PeerUnavailable
from bench.peers import Terms, running
from bench.window import save

CLIENTS = 48
POOL = 8
WORKERS = (2, 8, 16, 48)
CALLS = "write,epoll_wait,epoll_pwait,epoll_pwait2"


def run(options, inventory, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    traced.require_strace()
    chosen = plan.chosen(inventory, "kingpost", options.targets or list(inventory.found))
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-workers", ""
    with Cluster(pg_bin, workspace, CLIENTS + POOL + 50) as cluster:
        cluster.load_pgbench(1, 300)
        for repetition in range(options.repetitions):
            for workers in WORKERS:
                for target in chosen:
                    try:
                        counts = _count(target, inventory, workspace, cluster, workers, options.seconds)
                    except PeerUnavailable as error:
                        say(f"without {target.name}: {error}")
                        continue
                    say(f"{target.name}, {workers} workers: {counts['letters']:.3f} letters, {counts['turns']:.2f} turns")
                    rows.append((target.name, repetition, workers, counts))
                    text = save(out, name, options.command, cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


def _count(target, inventory, workspace, cluster, workers, seconds):
    """Letters and turns a transaction."""
    with running(target, inventory, workspace, cluster, Terms(POOL, workers, 200)) as endpoint:
        trace = ["-e", f"trace={CALLS}"]
        log, transactions = traced.pgbench(cluster, workspace, endpoint, trace, ["-S"], CLIENTS, seconds)
        letters, turns = _calls(log, _eventfds(endpoint.pid))
        return {"letters": letters / transactions, "turns": turns / transactions, "transactions": transactions}


def _eventfds(pid):
    """Descriptors of a process that are eventfds."""
    folder = f"/proc/{pid}/fd"
    return {fd for fd in os.listdir(folder) if "eventfd" in os.readlink(f"{folder}/{fd}")}


def _calls(log, eventfds):
    """Writes to eventfds, and waits, in strace's log."""
    letters = turns = 0
    with open(log, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            write = re.search(r"\bwrite\((\d+),", line)
            if write:
                letters += write[1] in eventfds
            elif "epoll_" in line and "resumed" not in line:
                turns += 1
    return letters, turns


def markdown(rows):
    """Medians over the repetitions."""
    lines = ["| target | workers | letters a transaction | turns a transaction | letters, of 2 workers | turns, of 2 workers |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    names = list(dict.fromkeys(row[0] for row in rows))
    for name in names:
        base = None
        for workers in WORKERS:
            found = [counts for target, _, at, counts in rows if (target, at) == (name, workers)]
            if not found:
                continue
            letters, turns = (median(counts[key] for counts in found) for key in ("letters", "turns"))
            base = base or (letters, turns)
            ratio = [f"{now / then:.2f}" if then else "" for now, then in zip((letters, turns), base, strict=True)]
            lines.append(f"| {name} | {workers} | {letters:.3f} | {turns:.2f} | {ratio[0]} | {ratio[1]} |")
    return "\n".join(lines)
