"""The databases under test: one primary and two streaming replicas, on loopback, on ports that were free."""

import os
import pathlib
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench import pgwire
from bench.errors import BenchError
from bench.process import free_port, tail

USER = "postgres"
DATABASE = "bench"
REPLICAS = 2
START_SECONDS = 60
CATCH_UP_SECONDS = 60

# What is not the default, and why; every result file repeats it.
SETTINGS = {
    "fsync": "off",  # the disk is not what is measured
    "full_page_writes": "off",  # same
    "synchronous_commit": "on",  # the default: with fsync off and no synchronous standby it waits for a write only
    "shared_buffers": "512MB",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "wal_keep_size": "1GB",  # a replica that falls behind is not lost
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",  # checkpoints and
    "autovacuum": "off",  # vacuum fall into no run: what needs vacuum gets it between runs
    "hot_standby": "on",
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # every target is reached over TCP
    "log_min_messages": "fatal",
    "jit": "off",
}


def find_bin(given=None):
    """The directory of PostgreSQL's programs: the one given, on PATH, or Debian's newest."""
    candidates = [pathlib.Path(given)] if given else []
    if not given:
        on_path = shutil.which("initdb")
        if on_path:
            candidates.append(pathlib.Path(on_path).resolve().parent)
        debian = pathlib.Path("/usr/lib/postgresql")
        if debian.is_dir():
            versions = (path for path in debian.iterdir() if path.name.isdigit())
            candidates += [path / "bin" for path in sorted(versions, key=lambda path: int(path.name), reverse=True)]
    for candidate in candidates:
        if all((candidate / name).exists() for name in ("initdb", "postgres", "pg_basebackup", "pgbench")):
            return candidate
    raise BenchError(
        "No PostgreSQL found (initdb, postgres, pg_basebackup, pgbench). Install postgresql (Debian: apt install "
        "postgresql) or name its bin directory with --pg-bin DIR."
    )


@dataclass
class Cluster:
    """A running cluster. `ports[0]` is the primary's."""

    bin: pathlib.Path
    workspace: object
    max_connections: int
    sockets: bool = False  # reached by Unix sockets, not by TCP
    ports: list = field(default_factory=list)
    postmasters: list = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self):
        try:
            self._start_primary()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def primary(self):
        """The primary's port."""
        return self.ports[0]

    def settings(self):
        """Everything that is not PostgreSQL's default."""
        directory = {"unix_socket_directories": str(self.socket_directory)} if self.sockets else {}
        return SETTINGS | {"max_connections": str(self.max_connections)} | directory

    @property
    def socket_directory(self):
        """Where the servers' Unix sockets are; None when they are reached by TCP."""
        return self.workspace.path if self.sockets else None

    def version(self):
        """`PostgreSQL 15.18` or the like."""
        text = self.workspace.call([self.bin / "postgres", "--version"], 10).strip()
        return text.replace("postgres (PostgreSQL)", "PostgreSQL")

    def connect(self, node=0, timeout=30.0):
        """A connection to a node's benchmark database."""
        return pgwire.Connection(self.ports[node], USER, DATABASE, timeout)

    def query(self, text, node=0, timeout=30.0):
        """Runs one statement on a node."""
        with self.connect(node, timeout) as connection:
            return connection.query(text)

    def load_pgbench(self, scale, timeout):
        """Fills pgbench's tables."""
        command = [self.bin / "pgbench", "-i", "-q", "-I", "dtgvp", "-s", str(scale), *self._address(), DATABASE]
        self.workspace.call(command, timeout)

    def load_sysbench(self, sysbench, options, timeout):
        """Fills sysbench's tables."""
        command = [sysbench, "oltp_read_write", *options, f"--pgsql-port={self.primary}", "--threads=2", "prepare"]
        self.workspace.call(command, timeout)
        self.query("VACUUM ANALYZE", timeout=timeout)

    def start_replicas(self):
        """Copies the primary, data and all, and starts the copies as its streaming replicas."""
        self.query("CHECKPOINT", timeout=120.0)
        for number in range(1, REPLICAS + 1):
            data = self.workspace.path / f"replica{number}"
            copy = ["-D", data, "-R", "-X", "stream", "-c", "fast", "-N"]
            self.workspace.call([self.bin / "pg_basebackup", *self._address(), *copy], 600)
            self._start_node(f"replica{number}", data)
        self.wait_for_replicas()

    def wait_for_replicas(self, seconds=CATCH_UP_SECONDS):
        """Returns when both replicas have replayed everything; raises BenchError when they don't in time."""
        deadline = time.monotonic() + seconds
        with self.connect() as connection:
            while True:
                [[level]] = connection.query(
                    "SELECT count(*) FILTER (WHERE replay_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
                )
                if int(level) >= len(self.ports) - 1:
                    return
                if time.monotonic() > deadline:
                    raise BenchError(f"The replicas have not replayed everything after {seconds} s:\n{self.logs()}")
                time.sleep(0.02)

    def settle(self, most_backends):
        """Waits, not for long, until the server connections of the run before are gone and replicas have caught up."""
        deadline = time.monotonic() + 10
        with self.connect() as connection:
            while time.monotonic() < deadline:
                [[count]] = connection.query(
                    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
                )
                if int(count) <= most_backends:
                    break
                time.sleep(0.05)
        if len(self.ports) > 1:
            self.wait_for_replicas()

    def vacuum_pgbench(self):
        """Leaves TPC-B's tables alike for every run."""
        with self.connect(timeout=120.0) as connection:
            connection.query("TRUNCATE pgbench_history")
            for table in ("pgbench_branches", "pgbench_tellers"):
                connection.query(f"VACUUM {table}")

    def warm(self):
        """Brings pgbench's accounts into every node's buffers: whoever reads there first would pay for all who come after."""
        for node in range(len(self.ports)):
            with self.connect(node, timeout=120.0) as connection:
                # By the index: a sequential scan keeps to a few buffers.
                for setting in ("enable_seqscan", "enable_bitmapscan"):
                    connection.query(f"SET {setting} = off")
                connection.query("SELECT sum(abalance) FROM pgbench_accounts WHERE aid > 0")

    def logs(self):
        """The ends of the servers' logs, for an error message."""
        return "\n".join(tail(path) for path in sorted(self.workspace.path.glob("*.log")))

    def _address(self):
        return ["-h", "127.0.0.1", "-p", str(self.primary), "-U", USER]

    def _start_primary(self):
        data = self.workspace.path / "primary"
        self.workspace.call(
            [self.bin / "initdb", "-D", data, "-U", USER, "-A", "trust", "-N", "-E", "UTF8", "--locale=C"], 120
        )
        lines = [f"{name} = '{value}'\n" for name, value in self.settings().items()]
        with open(data / "postgresql.conf", "a") as file:
            file.writelines(lines)
        self._start_node("primary", data, "postgres")
        with pgwire.Connection(self.primary, USER, "postgres") as connection:
            connection.query(f"CREATE DATABASE {DATABASE}")

    def _start_node(self, name, data, database=DATABASE):
        log = self.workspace.path / f"{name}.log"
        for _ in range(3):
            port = free_port()
            process = self._stack.enter_context(
                self.workspace.server([self.bin / "postgres", "-D", data, "-p", str(port)], log, signal.SIGINT)
            )
            if self._answers(process, port, database):
                self.ports.append(port)
                self.postmasters.append(process.pid)
                return
        raise BenchError(f"PostgreSQL ({name}) does not start:\n{tail(log)}")

    @staticmethod
    def _answers(process, port, database):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                pgwire.Connection(port, USER, database, 5.0).close()
                return True
            except (OSError, pgwire.ProtocolError):
                time.sleep(0.05)
        return False


def free_bytes(path):
    """Space left for us on the file system of `path`."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def program_version(command, line=0):
    """One line of what a program says about its version; None when it says nothing."""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, text=True, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[line].strip() if len(lines) > line else None
