"""pgbench through a proxy under `strace`, which counts system calls and slows everything down."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager

from bench.cluster import DATABASE, USER
from bench.errors import BenchError, RunFailed
from bench.process import stop


def require_strace():
    """Raises where there is no strace."""
    if not shutil.which("strace"):
        raise BenchError("strace is not found on PATH (Debian: apt install strace)")


def pgbench(cluster, workspace, endpoint, trace, load, clients, seconds):
    """Runs pgbench while `strace` with the options `trace` writes a file; returns the file, and the number of transactions."""
    log = workspace.path / "calls"
    with _tracing(endpoint.pid, ["strace", "-f", "-qq", *trace, "-o", str(log), "-p", str(endpoint.pid)]):
        command = [cluster.bin / "pgbench", "-h", endpoint.host, "-p", endpoint.port, "-U", USER, "-n", *load]
        command += ["-c", clients, "-j", 2, "-T", int(seconds), DATABASE]
        said = workspace.call(command, seconds + 60)
    found = re.search(r"transactions actually processed: (\d+)", said)
    if not found or int(found[1]) == 0:
        raise RunFailed("pgbench has done nothing")
    return log, int(found[1])


@contextmanager
def _tracing(pid, command):
    """At the end strace detaches, and its file is whole."""
    tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _attached(pid, tracer.pid)
        yield
    finally:
        stop(tracer, signal.SIGINT)


def _attached(pid, tracer):
    """Waits until each thread is traced."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        tasks = [f"/proc/{pid}/task/{task}/status" for task in os.listdir(f"/proc/{pid}/task")]
        if all(f"TracerPid:\t{tracer}\n" in open(task, encoding="ascii").read() for task in tasks):
            return
        time.sleep(0.05)
    raise RunFailed("strace could not attach")
