"""A network of the benchmark's own: not every kernel has netem."""

import shutil
import subprocess
import time
from contextlib import contextmanager

from bench.errors import BenchError
from bench.runner import ROOT

COMPILE_SECONDS = 60
START_SECONDS = 10


class Network:
    """Links that take time. The forwarder is compiled: one in Python would cost more than what is measured."""

    def __init__(self, workspace):
        rustc = shutil.which("rustc")
        if not rustc:
            raise BenchError("a round trip needs rustc, which compiles the forwarder: it comes with cargo")
        self._workspace, self._count = workspace, 0
        self.program = workspace.path / "delay"
        command = [rustc, "-O", "--edition", "2024", "-o", self.program, ROOT / "bench" / "delay.rs"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILE_SECONDS)
        if done.returncode:
            raise BenchError(f"rustc does not compile bench/delay.rs:\n{done.stderr}")
        self.program.chmod(0o755)

    @contextmanager
    def link(self, port, seconds):
        """Yields the port of a way to `port`, on which everything takes so long in each direction."""
        self._count += 1
        log = self._workspace.path / f"delay{self._count}.log"
        command = [self.program, port, round(seconds * 1e6)]
        with self._workspace.server(command, log) as process:
            yield _port(process, log)


def _port(process, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text()
        if text.endswith("\n"):
            return int(text)
        time.sleep(0.01)
    raise BenchError(f"the forwarder does not start: {log.read_text()}")
