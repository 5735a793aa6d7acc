"""One run of a pgbench script, and what happened in the middle of it: no login, no warm-up and no end is in the figures."""

import http.client
import json
import os
import time
from dataclasses import dataclass

from bench import counters
from bench.cluster import DATABASE, USER
from bench.errors import BenchError
from bench.loads import pgbench_latencies
from bench.process import tail
from bench.stats import percentile

WARM_UP_SECONDS = 1
# Between the window and the end, so that all clients are there until it closes.
SPARE_SECONDS = 1
# What a client's login may take where each has a back end of its own.
LOGIN_SECONDS = 0.006
ANSWER_SECONDS = 60


@dataclass(frozen=True)
class Sample:
    """One moment: seconds of the wall clock, the machine's busy time in µs, CPU µs of each process that is watched, the proxy's metrics."""

    epoch: float
    busy: int
    cpu: dict
    metrics: dict


def measure(cluster, workspace, directory, script, port, clients, seconds, watched, metrics=None, mode="prepared"):
    """Runs pgbench's `script` (its text, or `-b` and a name) for so long. `watched` are process ids by name, whose CPU time is told with all
    children; `metrics` is the port of the proxy's metrics. Returns the figures of the window."""
    prefix, log = directory / "latencies", directory / "pgbench.log"
    command = [cluster.bin / "pgbench", "-h", "127.0.0.1", "-p", port, "-U", USER, "-n", "-M", mode, "-c", clients, "-j", min(2, clients)]
    if script.startswith("-b"):
        command += script.split()
    else:
        command += ["-f", workspace.write(directory / "load.sql", script)]
    length = WARM_UP_SECONDS + seconds + SPARE_SECONDS + 1 + round(clients * LOGIN_SECONDS)
    command += ["-T", length, "-P", 1, "-l", f"--log-prefix={prefix}", DATABASE]
    logs = lambda: sorted(prefix.parent.glob(prefix.name + ".*"))  # noqa: E731
    try:
        with workspace.server(command, log) as pgbench:
            _reports(log, pgbench, WARM_UP_SECONDS)
            before = _sample(watched, metrics)
            time.sleep(seconds)
            after = _sample(watched, metrics)
            if pgbench.poll() is not None:
                raise BenchError(f"pgbench ended early:\n{tail(log)}")
            try:
                status = pgbench.wait(length + ANSWER_SECONDS)
            except TimeoutError as error:
                raise BenchError(f"pgbench does not end: {error}:\n{tail(log)}") from None
        if status:
            raise BenchError(f"pgbench ended with status {status}:\n{tail(log)}")
        latencies = []
        for path in logs():
            with open(path) as file:
                latencies += _latencies(file, before.epoch, after.epoch)
    finally:
        for path in logs():
            path.unlink()
    return figures(before, after, latencies)


def figures(before, after, latencies):
    """Of the window between two samples in which transactions took `latencies`, in ms."""
    if not latencies:
        raise BenchError("no transaction ended in the window")
    latencies.sort()
    seconds = after.epoch - before.epoch
    grown = {name: value - before.metrics.get(name, 0.0) for name, value in after.metrics.items()}
    found = {
        "tps": len(latencies) / seconds,
        "p50": percentile(latencies, 0.5),
        "p99": percentile(latencies, 0.99),
        "busy": (after.busy - before.busy) / 1e6 / seconds / (os.cpu_count() or 1),
        "cpu": {name: (after.cpu[name] - before.cpu[name]) / len(latencies) for name in after.cpu},
    }
    reads = grown.get("kingpost_strong_reads_total", 0)
    if reads:
        found["stayed"] = grown.get("kingpost_strong_primary_total", 0) / reads
    batches = grown.get("kingpost_oracle_wait_seconds_count", 0)
    if batches:
        gated = grown.get("kingpost_gate_seconds_count", 0)
        asked = grown.get("kingpost_gated_total", 0) + grown.get("kingpost_strong_reads_total", 0)
        found["oracle"] = {
            "batches": batches / seconds,
            "size": asked / batches,
            "wait_ms": grown["kingpost_oracle_wait_seconds_sum"] * 1000 / batches,
            "round_trip_ms": grown["kingpost_oracle_round_trip_seconds_sum"]
            * 1000
            / max(1, grown["kingpost_oracle_round_trip_seconds_count"]),
            "held_ms": grown.get("kingpost_gate_seconds_sum", 0) * 1000 / gated if gated else None,
        }
    return found


def save(out, name, command, version, rows, table):
    """Writes what has been measured so far, every figure and the tables; returns the tables."""
    out.mkdir(exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"command": command, "version": version, "rows": rows}, indent=1) + "\n")
    text = f"`{command}`, {version}\n\n{table}"
    path.with_suffix(".md").write_text(text + "\n")
    return text


def scrape(port):
    """The metrics of a proxy, those with labels added up; nothing but counters is of use."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise BenchError(f"the proxy's metrics: {error}") from None
    finally:
        connection.close()
    return parse_metrics(text)


def parse_metrics(text):
    """Prometheus' text: name without labels to the sum of its values."""
    values = {}
    for line in text.splitlines():
        if line.startswith("#") or " " not in line:
            continue
        name, _, value = line.rpartition(" ")
        name = name.partition("{")[0]
        values[name] = values.get(name, 0.0) + float(value)
    return values


def _sample(watched, metrics):
    cpu = {}
    for name, pid in watched.items():
        process = counters.process(pid)
        cpu[name] = process.user_us + process.system_us
    return Sample(time.time(), counters.machine().busy_us, cpu, scrape(metrics) if metrics else {})


def _latencies(lines, begin, end):
    """Milliseconds of the transactions of pgbench's log that ended in the window."""
    return [latency / 1000 for latency in pgbench_latencies(lines, begin, end)]


def _reports(log, pgbench, count):
    """Returns when pgbench has reported so often that something was done."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline and pgbench.poll() is None:
        text = log.read_text()
        done = [line for line in text.splitlines() if line.startswith("progress: ") and not " 0.0 tps" in line]
        if len(done) >= count:
            return
        time.sleep(0.01)
    raise BenchError(f"pgbench does not report:\n{tail(log)}")
