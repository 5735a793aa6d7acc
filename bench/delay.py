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
    """Links and servers that take time. The forwarder is compiled: one in Python would cost more than what is measured."""

    def __init__(self, workspace):
        rustc = shutil.which("rustc")
        if not rustc:
            raise BenchError("a round trip needs rustc, which compiles the forwarder: it comes with cargo")
        self._workspace, self._rustc, self._programs, self._count = workspace, rustc, {}, 0
        self.program = self._program("delay")

    def _program(self, name):
        """A forwarder, compiled when it is first needed."""
        if name not in self._programs:
            program = self._workspace.path / name
            command = [self._rustc, "-O", "--edition", "2024", "-o", program, ROOT / "bench" / f"{name}.rs"]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMPILE_SECONDS)
            if done.returncode:
                raise BenchError(f"rustc does not compile bench/{name}.rs:\n{done.stderr}")
            program.chmod(0o755)
            self._programs[name] = program
        return self._programs[name]

    @contextmanager
    def link(self, port, seconds):
        """Yields the port of a way to `port`, on which everything takes so long in each direction."""
        with self._forward("delay", port, round(seconds * 1e6)) as way:
            yield way

    @contextmanager
    def model(self, port, seconds):
        """Yields the port of a model of a server with a core for each connection, in front of the one on `port`: each statement takes so long."""
        with self._forward("model", port, round(seconds * 1e6)) as way:
            yield way

    @contextmanager
    def turns(self, port):
        """Yields the port of a way to a source of MariaDB's, over which a relay gets nothing behind a transaction before it has acknowledged
        that one."""
        with self._forward("turns", port) as way:
            yield way

    @contextmanager
    def _forward(self, name, *arguments):
        self._count += 1
        log = self._workspace.path / f"{name}{self._count}.log"
        with self._workspace.server([self._program(name), *arguments], log) as process:
            yield _port(process, log)


def _port(process, log):
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        text = log.read_text()
        if text.endswith("\n"):
            return int(text)
        time.sleep(0.01)
    raise BenchError(f"the forwarder does not start: {log.read_text()}")
