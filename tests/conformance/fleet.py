"""A PostgreSQL server of one run, and Kingpost in front of it; both are gone at the end, whatever happens."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

LIMIT = 60


def server_user():
    """Who runs servers: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise SystemExit("no unprivileged user to run PostgreSQL as")


def as_server():
    user = server_user()
    return {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def give(path):
    """Makes everything below `path` the servers' user's."""
    user = server_user()
    if user is not None:
        subprocess.run(["chown", "-R", f"{user.pw_uid}:{user.pw_gid}", path], check=True)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(what, condition, process, log):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if condition():
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"in vain: {what}\n{Path(log).read_text()[-3000:]}")


def end(process, how):
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def postgresql(programs, directory, settings=()):
    """A new server of its own; gives its port."""
    data, log = directory / "data", directory / "postgresql.log"
    shutil.rmtree(data, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    give(directory)
    more = as_server()
    initdb = [programs / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-locale", "--encoding=UTF8", "--no-sync"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=directory, **more)
    port = free_port()
    options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "max_connections": 150, **dict(settings)}
    command = [programs / "postgres", "-D", data, *(text for key, value in options.items() for text in ("-c", f"{key}={value}"))]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=directory, **more)
    ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        wait_for("PostgreSQL to start", lambda: subprocess.run(ready).returncode == 0, process, log)
        yield port
    finally:
        end(process, signal.SIGINT)
        shutil.rmtree(data, ignore_errors=True)


@contextlib.contextmanager
def kingpost(binary, directory, server, mode):
    """Kingpost before the server on that port, pooling by `mode`; gives its port."""
    port, metrics = free_port(), free_port()
    config, log = directory / "kingpost.toml", directory / "kingpost.log"
    config.write_text(
        f'[proxy]\nlisten = ["127.0.0.1:{port}"]\nauth = "trust"\nworkers = 2\n'
        f'[proxy.pool]\nmode = "{mode}"\nsize = 60\n'
        f'[cluster]\nuser = "postgres"\n[[cluster.nodes]]\nname = "n0"\naddress = "127.0.0.1:{server}"\n'
        f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n'
    )

    def ready():
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://127.0.0.1:{metrics}/readyz", timeout=5).status == 200
        return False

    with open(log, "w") as out:
        process = subprocess.Popen([binary, "proxy", "--config", config], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        wait_for("Kingpost to be ready", ready, process, log)
        yield port
        if process.poll() is not None:
            raise SystemExit(f"Kingpost ended by itself: {log}")
    finally:
        end(process, signal.SIGTERM)
