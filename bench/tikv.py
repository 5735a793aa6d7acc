"""`bench/run --only tikv`: timestamps of PD, ours beside those of tikv-client 0.4 with one client and with four, of client-go of 2022, and of
PD's Go client of 2026.

A real PD (`tests/tikv/setup`); callers that each ask for the next timestamp when they have theirs, at two round trips: none, and the one
of a network; with the client's process to itself, and with two threads in it that calculate all the time. The clients run alternately.
PD, callers and client share the machine: ratios within a run mean something, figures do not.

Go's own programs are built from the module registry. Where Go is missing, or the registry no longer serves a module, they are left out."""

import json
import os
import shutil
import statistics
import subprocess
import time
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import product

from bench.delay import Network
from bench.errors import BenchError
from bench.plan import rotated
from bench.process import free_port, tail
from bench.runner import ROOT

RUST = ("ours", "tikv-client", "tikv-client-4")
# Directories below bench/timestamps/go.
GO = {"go-2022": "2022", "go-2026": "today"}
ARMS = (*RUST, *GO)
OURS = "ours"
CALLERS = (1, 16, 64, 256, 1024)
# Milliseconds.
ROUND_TRIPS = (0, 2.5)
# Threads of the client's process that calculate: as many as there are cores.
BUSY = (0, os.cpu_count() or 2)
BUILD_SECONDS = 3600
START_SECONDS = 60
# Until a client is connected, and has ended.
RUN_SECONDS = 60
HEADER = (
    "| round trip ms | busy threads | callers | client | timestamps/s | ± | p50 ms | p99 ms | µs CPU each | of the best | batches/s | a batch |\n"
    "|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def run(options, workspace, say, out):
    """Measures; writes and returns the table."""
    arms = tuple(arm for arm in ARMS if not options.targets or any(fnmatchcase(arm, glob) for glob in options.targets))
    if not arms:
        raise BenchError(f"no such target of tikv; there are {', '.join(ARMS)}")
    pd, commands = _pd_programs(), _commands(arms, say)
    arms = tuple(commands)
    name, runs = time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-tikv", []
    network = Network(workspace)
    for milliseconds in ROUND_TRIPS:
        with ExitStack() as stack:
            port = _pd(workspace, stack, pd, network, milliseconds / 2000)
            for busy, callers, repetition in product(BUSY, options.clients or CALLERS, range(options.repetitions)):
                for arm in rotated(arms, repetition):
                    command = [*commands[arm], f"127.0.0.1:{port}", callers, options.seconds, busy]
                    figures = json.loads(workspace.call(command, options.seconds + RUN_SECONDS).splitlines()[-1])
                    say(f"tikv, {milliseconds} ms, {busy} busy, {callers} callers, {arm}: {_rate(figures):.0f} timestamps/s")
                    runs.append([milliseconds, busy, callers, repetition, arm, figures])
                    text = markdown(runs)
                    out.mkdir(exist_ok=True)
                    (out / f"{name}.json").write_text(json.dumps(runs))
                    (out / f"{name}.md").write_text(text)
    say(f"written: {name}.md and .json in {out.name}")
    return text


def markdown(runs):
    """The table of all runs: medians over the repetitions. CPU is compared with that of the best of the others."""
    lines = [HEADER]
    by_cell = {}
    for milliseconds, busy, callers, _, arm, figures in runs:
        by_cell.setdefault((milliseconds, busy, callers), {}).setdefault(arm, []).append(figures)
    for cell, by_arm in by_cell.items():
        cpus = {arm: statistics.median(_cpu(figures) for figures in own) for arm, own in by_arm.items()}
        best = min((cpu for arm, cpu in cpus.items() if arm != OURS), default=None)
        for arm, own in by_arm.items():
            rates = [_rate(figures) for figures in own]
            middle = statistics.median(rates)
            spread = (max(rates) - min(rates)) / 2 / middle if middle else 0
            ratio = f"{cpus[arm] / best:.2f}" if best else ""
            batches = statistics.median(figures["batches"] / figures["seconds"] for figures in own)
            size = f"{batches:.0f} | {middle / batches:.1f}" if batches else " | "
            p50, p99 = (statistics.median(figures[p] for figures in own) / 1000 for p in ("p50_us", "p99_us"))
            place = " | ".join(str(part) for part in cell)
            lines.append(f"| {place} | {arm} | {middle:.0f} | {spread:.0%} | {p50:.2f} | {p99:.2f} | {cpus[arm]:.1f} | {ratio} | {size} |")
    return "\n".join(lines) + "\n"


def _rate(figures):
    return figures["timestamps"] / figures["seconds"]


def _cpu(figures):
    """Microseconds of the client's process for one timestamp."""
    return figures["cpu"] * 1e6 / figures["timestamps"] if figures["timestamps"] else 0


def _commands(arms, say):
    """What to run for each arm, as far as it can be built."""
    rust = _program() if any(arm in RUST for arm in arms) else None
    commands = {}
    for arm in arms:
        if arm in RUST:
            commands[arm] = [rust, arm]
            continue
        program = ROOT / "target" / "bench-timestamps" / arm
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        command = [go, "build", "-buildvcs=false", "-mod=readonly", "-o", program, "."]
        source = ROOT / "bench" / "timestamps" / "go" / GO[arm]
        if not go or subprocess.run(command, cwd=source, timeout=BUILD_SECONDS).returncode:
            say(f"tikv: {arm} is left out: Go, or a module of {source.relative_to(ROOT)}/go.mod, cannot be had")
            continue
        commands[arm] = [program]
    return commands


def _pd_programs():
    done = subprocess.run([ROOT / "tests" / "tikv" / "setup"], stdout=subprocess.PIPE, text=True, timeout=BUILD_SECONDS)
    if done.returncode:
        raise BenchError("without a PD there are no timestamps: tests/tikv/setup has said what is missing")
    return ROOT / done.stdout.strip()


def _program():
    """The callers in Rust, compiled: tikv-client's tree is not in the workspace."""
    source = ROOT / "bench" / "timestamps"
    cargo = shutil.which("cargo")
    if not cargo:
        raise BenchError("cargo is missing: it compiles bench/timestamps")
    target = ROOT / "target" / "bench-timestamps"
    command = [cargo, "build", "--release", "--locked", "--manifest-path", source / "Cargo.toml", "--target-dir", target]
    if subprocess.run(command, timeout=BUILD_SECONDS).returncode:
        raise BenchError("bench/timestamps does not compile")
    return target / "release" / "timestamps"


def _pd(workspace, stack, programs, network, seconds):
    """Starts a PD that tells clients the port of a forwarder, on which everything takes so long in each direction; that port."""
    client, peer = free_port(), free_port()
    port = stack.enter_context(network.link(client, seconds)) if seconds else client
    log, data = workspace.path / f"pd{client}.log", workspace.directory(f"pd{client}")
    program = workspace.adopt(programs / "pd", f"pd{client}")
    command = [program, "-dir", data, "-client", f"127.0.0.1:{client}", "-peer", f"127.0.0.1:{peer}"]
    if port != client:
        command += ["-advertise", f"127.0.0.1:{port}"]
    process = stack.enter_context(workspace.server(command, log))
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if "ready" in log.read_text().split():
            return port
        time.sleep(0.05)
    raise BenchError(f"PD does not start:\n{tail(log)}")
