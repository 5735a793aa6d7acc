"""Starting processes so that they always end: by their own pid, also on Ctrl-C, an exception or our own death."""

import ctypes
import os
import pathlib
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager

from bench.errors import BenchError

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 10

_libc = ctypes.CDLL(None, use_errno=True)


def raise_open_file_limit():
    """Raises the soft limit of open files to the hard one, which children inherit. Returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def free_port():
    """A port of 127.0.0.1 that was free a moment ago. Another process may take it: starts are retried on a new one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def client_environment():
    """The environment of everything that is started: none of the caller's PG* and KINGPOST* settings, no TLS or GSS."""
    ours = ("PG", "KINGPOST")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment.update(PGSSLMODE="disable", PGGSSENCMODE="disable", LC_ALL="C", TZ="UTC")
    return environment


class Workspace:
    """A temporary directory, and the unprivileged account that servers run as when we are root."""

    def __init__(self, parent=None):
        self.account = None
        if os.geteuid() == 0:
            for name in ("postgres", "nobody"):
                try:
                    self.account = pwd.getpwnam(name)
                    break
                except KeyError:
                    continue
            else:
                raise BenchError("PostgreSQL refuses to run as root, and there is no user postgres or nobody.")
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="kingpost-bench-", dir=parent))
        self.own(self.path)

    def own(self, path):
        """Gives `path` to the account that servers run as."""
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def directory(self, name):
        """A new directory for one server."""
        path = self.path / name
        path.mkdir()
        self.own(path)
        return path

    def write(self, path, text):
        """Writes a configuration file that the server can read."""
        path.write_text(text)
        self.own(path)
        return path

    def adopt(self, binary, name):
        """Copies a binary that is not the system's to where the account can run it; also, a rebuild cannot change it
        under a benchmark that runs."""
        if str(binary).startswith(("/usr/", "/bin/", "/sbin/", "/opt/")):
            return pathlib.Path(binary)
        copy = self.path / f"bin-{name}"
        shutil.copy2(binary, copy)
        copy.chmod(0o755)
        self.own(copy)
        return copy

    def remove(self):
        """Removes everything in the directory and the directory."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _options(self):
        if not self.account:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def call(self, command, timeout):
        """Runs a command to its end as the account. Raises BenchError with its output when it fails."""
        try:
            done = subprocess.run(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                env=client_environment(),
                cwd=self.path,
                text=True,
                errors="replace",
                **self._options(),
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"{pathlib.Path(str(command[0])).name} did not end within {timeout} s.") from None
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-15:])
            raise BenchError(f"{pathlib.Path(str(command[0])).name} ended with status {done.returncode}:\n{tail}")
        return done.stdout

    @contextmanager
    def server(self, command, log, stop_signal=signal.SIGTERM):
        """A server for as long as the `with` block: yields its Popen; its output goes to the file `log`. It also ends
        when this process dies without a chance to clean up."""
        with open(log, "ab") as output:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=client_environment(),
                cwd=self.path,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(stop_signal),
                **self._options(),
            )
        try:
            yield process
        finally:
            stop(process, stop_signal)


def die_with_parent(number=signal.SIGTERM):
    """For a child to call before its program starts: it gets the signal when we die."""
    _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def stop(process, stop_signal=signal.SIGTERM, seconds=STOP_SECONDS):
    """Ends one process: politely, then for certain."""
    if process.poll() is not None:
        return
    process.send_signal(stop_signal)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(seconds)


def tail(log, lines=8):
    """The last lines of a log file, for an error message."""
    try:
        return "\n".join(pathlib.Path(log).read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
