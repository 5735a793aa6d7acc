"""Parts of every comparison: a registry of Kingpost, and requests over HTTP."""

import contextlib
import http.client
import signal
import subprocess

import fleet

# Seconds for one answer.
ANSWER = 30


@contextlib.contextmanager
def kingpost(binary, directory, settings='auth = "none"\n'):
    """A registry of one node on SQLite; gives its port."""
    port, metrics = fleet.free_port(), fleet.free_port()
    config, log = directory / "kingpost.toml", directory / "kingpost.log"
    config.write_text(
        f'[registry]\n{settings}listen = "127.0.0.1:{port}"\nstore = "sqlite:{directory / "registry.sqlite"}"\n'
        f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n'
    )

    def ready():
        with contextlib.suppress(OSError):
            return http_status(metrics, "/readyz") == 200
        return False

    with open(log, "w") as out:
        process = subprocess.Popen([binary, "registry", "--config", config], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
    try:
        fleet.wait_for("the registry to be ready", ready, process, log)
        yield port
        if process.poll() is not None:
            raise SystemExit(f"the registry ended by itself: {log}")
    finally:
        fleet.end(process, signal.SIGTERM)


def http_status(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path)
    return connection.getresponse().status
