"""Carries a plan out: starts what it needs, runs it case by case, repetition by repetition, target by target."""

import datetime
import os
import pathlib
import platform
import shutil
import subprocess
import time
from contextlib import ExitStack

from bench import counters, loads
from bench.cluster import DATABASE, USER, Cluster, free_bytes, program_version
from bench.errors import BenchError, PeerUnavailable, RunFailed
from bench.peers import Terms, running
from bench.plan import rotated

FORMAT = 1
BACKGROUND_SECONDS = 0.15
IDLE_SECONDS = 120
LOAD_SECONDS = 900
ROOT = pathlib.Path(__file__).resolve().parent.parent


class Fleet:
    """The targets of a plan while they run: started when first needed, started again after a failure."""

    def __init__(self, inventory, workspace, cluster, terms):
        self._means = (inventory, workspace, cluster, terms)
        self._running = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for name in list(self._running):
            self.stop(name)

    def endpoint(self, target):
        """Where the target answers. Raises PeerUnavailable."""
        if target.name not in self._running:
            stack = ExitStack()
            endpoint = stack.enter_context(running(target, *self._means))
            self._running[target.name] = (stack, endpoint)
        return self._running[target.name][1]

    def stop(self, name):
        """Ends a target: the next `endpoint` starts it anew."""
        stack, _ = self._running.pop(name, (ExitStack(), None))
        stack.close()


class Progress:
    """One line a run, with an estimate of the time left from how long runs have taken."""

    def __init__(self, total, guess, out):
        self.total, self.done, self.spent, self.guess, self._out = total, 0, 0.0, guess, out

    def note(self, text):
        """A line that is not a run's."""
        self._out(text)

    def finished(self, what, seconds, text):
        """A run is over; it took `seconds`."""
        self.done += 1
        self.spent += seconds
        self._out(f"[{self.done:>3}/{self.total}] {what:<52} {text}  ({left(self.left())} left)")

    def skipped(self, runs):
        """That many runs will not take place."""
        self.total -= runs

    def left(self):
        """Estimated seconds to the end."""
        mean = self.spent / self.done if self.done else self.guess
        return (self.total - self.done) * mean


def left(seconds):
    """`45 s`, `12 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def execute(planned, inventory, workspace, pg_bin, options, out, save):
    """Runs everything. `options`: seconds, repetitions, pool, workers, scale, table_size, jobs, command. `save` gets
    the results after every case. Returns them."""
    busiest = max((case.clients for case in planned if case.family != "idle"), default=1)
    terms = Terms(options.pool, options.workers, busiest + 200)
    peers = {target.peer for case in planned for target in case.targets if target.peer}
    families = {case.family for case in planned}
    replicas = any(target.split for case in planned for target in case.targets)
    _check_space(workspace.path, options, replicas)

    results = {
        "format": FORMAT,
        "complete": False,
        "started": _now(),
        "command": options.command,
        "machine": describe_machine(),
        "commit": _commit(),
        "versions": {name: inventory.found[name].version for name in sorted(peers)},
        "untested": sorted(name for name in peers if not inventory.found[name].tested),
        "missing": inventory.missing,
        "settings": {
            "pool": options.pool,
            "workers": options.workers,
            "seconds": options.seconds,
            "repetitions": options.repetitions,
            "pgbench_scale": options.scale,
            "pgbench_jobs": options.jobs,
            "sockets": options.sockets,
            "sysbench": sysbench_options(options) if "sysbench" in families else [],
            "targets": {target.name: target.about for case in planned for target in case.targets},
        },
        "cases": [],
    }
    # A case's connections may still be ending when the next one's begin: twice, and every peer's pool.
    connections = 2 * busiest + options.pool * (len(peers) + 2) + 50
    with Cluster(pg_bin, workspace, connections, options.sockets) as cluster:
        out(f"PostgreSQL primary on port {cluster.primary}: loading data …")
        results["versions"]["postgresql"] = cluster.version()
        results["versions"]["pgbench"] = program_version([str(pg_bin / "pgbench"), "--version"])
        results["settings"]["postgresql"] = cluster.settings()
        if families & {"select", "tpcb"}:
            cluster.load_pgbench(options.scale, LOAD_SECONDS)
        if "sysbench" in families:
            results["versions"]["sysbench"] = program_version(["sysbench", "--version"])
            cluster.load_sysbench("sysbench", sysbench_options(options), LOAD_SECONDS)
        if replicas:
            cluster.start_replicas()
            out(f"two replicas on ports {cluster.ports[1]} and {cluster.ports[2]}: caught up")
        runs = sum(len(case.targets) for case in planned) * options.repetitions
        progress = Progress(runs, options.seconds + loads.WARM_UP_SECONDS + 1, out)
        out(f"{runs} runs, about {left(progress.left())}")
        with Fleet(inventory, workspace, cluster, terms) as fleet:
            for case in planned:
                record = {"id": case.id, "family": case.family, "script": case.script, "mode": case.mode}
                record |= {"clients": case.clients, "targets": [target.name for target in case.targets]}
                record |= {"runs": [], "skipped": {}}
                results["cases"].append(record)
                run_case(case, record, fleet, inventory, workspace, cluster, terms, options, progress)
                save(results)
    results["complete"] = True
    results["finished"] = _now()
    save(results)
    return results


def run_case(case, record, fleet, inventory, workspace, cluster, terms, options, progress):
    """All repetitions of a case. A target that cannot do it, or fails twice in a row, is left out of the rest."""
    failures = {}
    for repetition in range(options.repetitions):
        for target in rotated(case.targets, repetition):
            if target.name in record["skipped"]:
                continue
            what = f"{case.id} {target.name} {repetition + 1}/{options.repetitions}"
            remaining = options.repetitions - repetition
            refusal = _refusal(target, case, inventory)
            if refusal:
                record["skipped"][target.name] = refusal
                progress.skipped(remaining)
                progress.note(f"          {what}: left out: {refusal}")
                continue
            started = time.monotonic()
            run = {"target": target.name, "repetition": repetition}
            try:
                cluster.settle(options.pool * (len(inventory.found) + 2) + 10)
                if case.family == "tpcb":
                    cluster.vacuum_pgbench()
                run["background"] = counters.background(BACKGROUND_SECONDS)
                run |= run_once(case, target, fleet, inventory, workspace, cluster, terms, options)
                failures[target.name] = 0
                text = describe(run)
            except PeerUnavailable as error:
                record["skipped"][target.name] = str(error)
                progress.skipped(remaining)
                progress.note(f"          {what}: left out: {error}")
                continue
            except RunFailed as error:
                run["error"] = str(error)
                text = f"FAILED: {error}"
                fleet.stop(target.name)
                failures[target.name] = failures.get(target.name, 0) + 1
                if failures[target.name] == 2:
                    record["skipped"][target.name] = f"failed twice: {error}"
                    progress.skipped(remaining - 1)
            record["runs"].append(run)
            progress.finished(what, time.monotonic() - started, text)


def run_once(case, target, fleet, inventory, workspace, cluster, terms, options):
    """One run's figures."""
    if case.family == "idle":
        idle_terms = Terms(terms.pool, terms.workers, case.clients + 200)
        # A process of its own: what an earlier load left in the allocator would hide the cost.
        with running(target, inventory, workspace, cluster, idle_terms, "-idle") as endpoint:
            return loads.idle(endpoint, case.clients, IDLE_SECONDS)
    endpoint = fleet.endpoint(target)
    if case.family == "sysbench":
        common, prepared = sysbench_options(options), case.mode == "prepared"
        return loads.sysbench("sysbench", common, endpoint, case.script, prepared, case.clients, options.seconds)
    load = (case.script, case.mode, case.clients, options.seconds, options.jobs)
    return loads.pgbench(cluster, endpoint, workspace, *load)


def _refusal(target, case, inventory):
    if not target.peer:
        return None
    peer = inventory.found.get(target.peer)
    return peer.refuses(case.mode) if peer else inventory.missing.get(target.peer, "not found")


def describe(run):
    """A run in half a line."""
    if "idle_rss_kib" in run:
        return f"{run['idle_rss_kib']:.2f} KiB a client, {run['queried_rss_kib']:.2f} after a query"
    proxy = f"{run['proxy_us']:6.1f} µs/q proxy" if "proxy_us" in run else " " * 16
    failed = f" {run['failed']} failed" if run["failed"] else ""
    return f"{run['qps']:>9,.0f} qps  p99 {run['p99_ms'] or 0:7.2f} ms  {proxy}{failed}"


def sysbench_options(options):
    """What is the same for every sysbench command."""
    return [
        "--db-driver=pgsql",
        "--pgsql-host=127.0.0.1",
        f"--pgsql-user={USER}",
        f"--pgsql-db={DATABASE}",
        "--tables=4",
        f"--table-size={options.table_size}",
        "--rand-type=uniform",
    ]


def describe_machine():
    """What the figures were measured on."""
    model = memory = None
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), None)
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1])
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        system = None
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_kib": memory,
        "kernel": platform.release(),
        "system": system,
        "python": platform.python_version(),
    }


def _check_space(path, options, replicas):
    # pgbench needs 15 MiB a unit of scale, on each node; WAL up to max_wal_size on each; the rest is small.
    needed = (options.scale * 15 + 4 * options.table_size // 4000 + 1500) * (3 if replicas else 1) << 20
    if free_bytes(path) < needed:
        raise BenchError(
            f"The temporary directory has {free_bytes(path) >> 20} MiB left, about {needed >> 20} are needed: give "
            "another with --dir DIR, or a smaller --scale."
        )


def _now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _commit():
    if not shutil.which("git"):
        return None
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return None
    status = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True)
    return head.stdout.strip() + (" with changes" if status.stdout.strip() else "")
