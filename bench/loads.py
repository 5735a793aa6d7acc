"""The loads: what runs against a target, and the figures one run gives.

pgbench and sysbench report once a second; at each report the kernel's counters are sampled. The figures are those of
the window between the first report after the warm-up and the last one in time: no login, no warm-up, no end.
"""

import os
import re
import select
import subprocess
import time

from bench import counters, pgwire
from bench.cluster import DATABASE, USER
from bench.errors import RunFailed
from bench.process import client_environment, die_with_parent, stop
from bench.stats import histogram_percentile, percentile

# Logging in, and finishing the last transactions, may take this long on top of the run itself.
GRACE_SECONDS = 60
WARM_UP_SECONDS = 1
# Reports come at whole seconds: one that is this long after the logins ends the warm-up.
WARM_ENOUGH_SECONDS = 0.5
# A first guess of what a client's login takes; and the least part of the wanted time that a window must have.
LOGIN_GUESS_SECONDS = 0.004
SHORTEST_WINDOW = 0.6
QUERIES_PER_TPCB = 7

PROGRESS = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps, lat (\S+) ms stddev (\S+?)(?:,|$)")
SYSBENCH_PROGRESS = re.compile(r"^\[ (\d+)s \] thds: \d+ tps: ([\d.]+) qps: ([\d.]+) ")
SYSBENCH_BUCKET = re.compile(r"^\s*([\d.]+) \|\**\s+(\d+)$")


def pgbench(cluster, endpoint, workspace, script, mode, clients, seconds, jobs=2):
    """One run of pgbench. `script` is `select` or `tpcb`, `mode` pgbench's -M. Returns the run's figures.

    pgbench's -T begins before its clients log in, which takes seconds when there are a thousand: that time is added,
    and the run made once more when it was guessed too short."""
    for _ in range(2):
        login = endpoint.login_seconds.get(clients, clients * LOGIN_GUESS_SECONDS)
        duration = seconds + WARM_UP_SECONDS + round(login)
        figures = _pgbench(cluster, endpoint, workspace, script, mode, clients, seconds, duration, jobs)
        if figures:
            return figures
    raise RunFailed(
        f"{clients} clients took {endpoint.login_seconds.get(clients, 0):.1f} s to log in, and too few reports came in "
        f"the {duration} s of the run: give it more --seconds"
    )


def _pgbench(cluster, endpoint, workspace, script, mode, clients, seconds, duration, jobs):
    """One run with that -T; None when its window is too short."""
    select_only = script == "select"
    prefix = workspace.path / f"pgbench-{time.monotonic_ns()}"
    command = [
        cluster.bin / "pgbench",
        *("-h", endpoint.host, "-p", endpoint.port, "-U", USER),
        *("-n", "-b", "select-only" if select_only else "tpcb-like", "-M", mode),
        *("-c", clients, "-j", jobs, "-T", duration, "-P", 1),
        # Every transaction in the log would cost the client as much as some proxies cost: a tenth is plenty.
        *("-l", f"--log-prefix={prefix}", *(["--sampling-rate=0.1"] if select_only else [])),
        DATABASE,
    ]
    logs = lambda: sorted(prefix.parent.glob(prefix.name + ".*"))  # noqa: E731
    try:
        output, reports = observe(command, endpoint, PROGRESS, duration)
        logins = (line for line in output if line.startswith("initial connection time"))
        login = next((float(line.split()[4]) / 1000 for line in logins), 0.0)
        endpoint.login_seconds[clients] = login
        lines = [pgbench_report(match) for match, _ in reports]
        window = pgbench_window(lines, login + WARM_ENOUGH_SECONDS, duration, seconds)
        if not window:
            return None
        begin, end = reports[window["first"]][1], reports[window["last"]][1]
        latencies = []
        for path in logs():
            with open(path) as file:
                latencies += pgbench_latencies(file, begin.epoch, end.epoch)
    finally:
        for path in logs():
            path.unlink()
    failures = (line for line in output if line.startswith("number of failed transactions"))
    failed = next((int(line.split(":")[1].split()[0]) for line in failures), 0)
    aborted = sum("aborted" in line for line in output)
    latencies.sort()
    figures = {
        "tps": window["tps"],
        "qps": window["tps"] * (1 if select_only else QUERIES_PER_TPCB),
        "mean_ms": window["mean_ms"],
        "p50_ms": _ms(percentile(latencies, 0.50)),
        "p99_ms": _ms(percentile(latencies, 0.99)),
        "latencies_seen": len(latencies),
        "login_s": login,
        "failed": failed + aborted,
    }
    return figures | costs(begin, end, figures["qps"])


def sysbench(program, options, endpoint, script, prepared, threads, seconds):
    """One run of a sysbench OLTP script; latencies are a transaction's. Returns the run's figures."""
    command = [
        program,
        script,
        *options,
        f"--pgsql-port={endpoint.port}",
        f"--threads={threads}",
        f"--time={seconds + WARM_UP_SECONDS}",
        "--report-interval=1",
        "--histogram=on",
        "--percentile=99",
        f"--db-ps-mode={'auto' if prepared else 'disable'}",
        "run",
    ]
    output, reports = observe(command, endpoint, SYSBENCH_PROGRESS, seconds + WARM_UP_SECONDS)
    if len(reports) < 2:
        raise RunFailed(f"fewer than two reports: {_last(output)}")
    window = sysbench_window([match for match, _ in reports])
    buckets = sysbench_histogram(output)
    average = next((float(line.split()[1]) for line in output if re.match(r"^\s+avg:\s", line)), None)
    ignored = next((int(line.split()[2]) for line in output if line.strip().startswith("ignored errors:")), 0)
    figures = {
        "tps": window["tps"],
        "qps": window["qps"],
        "mean_ms": average,
        "p50_ms": histogram_percentile(buckets, 0.50),
        "p99_ms": histogram_percentile(buckets, 0.99),
        "latencies_seen": sum(count for _, count in buckets),
        "failed": ignored,
    }
    return figures | costs(reports[0][1], reports[-1][1], figures["qps"])


def idle(endpoint, clients, seconds):
    """Memory that each idle, logged-in client costs the proxy, and each that has once run a query. A limit of
    `seconds` for all of it. The memory that the kernel uses for sockets is not in it."""
    deadline = time.monotonic() + seconds
    connections = []
    try:
        # The first few make the pools and the allocator's first arenas: they are nobody's cost.
        for _ in range(8):
            connections.append(pgwire.Connection(endpoint.port, USER, DATABASE))
            connections[-1].query("SELECT 1")
        before = counters.memory(endpoint.pid)
        for _ in range(clients):
            connections.append(pgwire.Connection(endpoint.port, USER, DATABASE))
            _in_time(deadline, f"{clients} logins")
        logged_in = counters.memory(endpoint.pid)
        for connection in connections:
            connection.query("SELECT 1")
            _in_time(deadline, f"{clients} queries")
        queried = counters.memory(endpoint.pid)
    except (OSError, pgwire.ProtocolError) as error:
        raise RunFailed(f"client {len(connections) + 1}: {error}") from None
    finally:
        for connection in connections:
            connection.close()
    return {
        "clients": clients,
        "idle_rss_kib": (logged_in.rss_kib - before.rss_kib) / clients,
        "idle_dirty_kib": (logged_in.private_dirty_kib - before.private_dirty_kib) / clients,
        "queried_rss_kib": (queried.rss_kib - before.rss_kib) / clients,
        "queried_dirty_kib": (queried.private_dirty_kib - before.private_dirty_kib) / clients,
        "base_rss_kib": before.rss_kib,
    }


def _in_time(deadline, what):
    if time.monotonic() > deadline:
        raise RunFailed(f"{what} took too long")


def costs(begin, end, qps):
    """CPU and switches a query between two samples."""
    if qps <= 0:
        raise RunFailed("no query was answered")
    return counters.per_query(begin, end, qps)


def observe(command, endpoint, pattern, duration):
    """Runs a load to its end, bounded in time; returns its output's lines and, for each that matches `pattern`, the
    match and a sample taken when the line arrived. Raises RunFailed."""
    output, reports, rest = [], [], ""
    limit = duration + GRACE_SECONDS
    deadline = time.monotonic() + limit
    process = subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=client_environment(),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise RunFailed(f"did not end within {limit} s: {_last(output)}")
            data = os.read(process.stdout.fileno(), 65536)
            if not data:
                break
            *lines, rest = (rest + data.decode("utf-8", "replace")).split("\n")
            for line in lines:
                output.append(line)
                match = pattern.match(line)
                if match:
                    try:
                        reports.append((match, counters.sample(endpoint.pid)))
                    except ProcessLookupError:
                        raise RunFailed("the proxy died") from None
        try:
            status = process.wait(10)
        except subprocess.TimeoutExpired:
            raise RunFailed("closed its output and did not end") from None
    finally:
        stop(process, seconds=2)
        process.stdout.close()
    if status != 0:
        raise RunFailed(f"status {status}: {_last(output)}")
    return output, reports


def _last(output):
    errors = [line for line in output if "error" in line.lower() or "fatal" in line.lower()]
    return (errors or output or ["no output"])[0][:200]


def _ms(microseconds):
    return None if microseconds is None else microseconds / 1000


def pgbench_report(match):
    """`(seconds since the start, tps, mean latency in ms)` of a progress line."""
    return tuple(float(word) for word in match.groups()[:3])


def pgbench_window(reports, earliest, latest, seconds):
    """Rate and mean latency between the first report that is not before `earliest` and the one about `seconds` later,
    or the last that is not after `latest`, with their places in `reports`; None when that is too short. Each report
    speaks of the time since the one before it. Reports after the end of -T speak of clients that finish their last
    transactions."""
    slack = 0.2
    inside = [place for place, (at, _, _) in enumerate(reports) if earliest <= at <= latest + slack]
    inside = [place for place in inside if reports[place][0] <= reports[inside[0]][0] + seconds + slack]
    if not inside or reports[inside[-1]][0] - reports[inside[0]][0] < SHORTEST_WINDOW * seconds:
        return None
    first, last = inside[0], inside[-1]
    transactions = weighted = 0.0
    for place in range(first + 1, last + 1):
        at, tps, latency = reports[place]
        count = tps * (at - reports[place - 1][0])
        transactions += count
        weighted += 0.0 if latency != latency else latency * count  # NaN when nothing ended in the interval
    return {
        "first": first,
        "last": last,
        "tps": transactions / (reports[last][0] - reports[first][0]),
        "mean_ms": weighted / transactions if transactions else None,
    }


def pgbench_latencies(lines, begin, end):
    """Latencies in µs of the logged transactions that ended between two wall-clock times."""
    latencies = []
    for line in lines:
        fields = line.split()
        if len(fields) < 6 or not fields[2].isdigit():
            continue  # cut short, or a failed transaction
        if begin <= int(fields[4]) + int(fields[5]) / 1e6 <= end:
            latencies.append(int(fields[2]))
    return latencies


def sysbench_window(matches):
    """Rates between the first report and the last."""
    reports = [tuple(float(word) for word in match.groups()) for match in matches]
    passed = reports[-1][0] - reports[0][0]
    pairs = list(zip(reports, reports[1:]))
    return {
        "tps": sum(tps * (at - earlier) for (earlier, _, _), (at, tps, _) in pairs) / passed,
        "qps": sum(qps * (at - earlier) for (earlier, _, _), (at, _, qps) in pairs) / passed,
    }


def sysbench_histogram(lines):
    """`(milliseconds, count)` of the latency histogram."""
    found = (SYSBENCH_BUCKET.match(line) for line in lines)
    return [(float(match[1]), int(match[2])) for match in found if match]
