"""`bench/run --only failover`: how long nothing can be written, by fault, and what of that time goes where.

A primary and two standbys, three relays of which a commit waits for two, two `kingpost watch` with etcd, and clients that insert through a proxy,
all with the defaults. All paths to the primary go through a forwarder, which can be stopped (silence) or killed.

- `killed`: kill -9 of the primary's processes; connections are closed by the kernel
- `frozen`: the primary's processes stand still, and wake up later
- `cut`: the forwarder before the primary is killed: it lives, and nobody reaches it
- `silent`: the forwarder stands still: no connection is closed, and nothing comes
- `gone`: the forwarder is in a network namespace of its own, and no packet gets there or comes from there any more (only as root)
- `coordinator`: the primary is killed, and the watcher that holds the lock dies right after its fence
- `switchover`: `kingpost switchover` without a `stop` program

The parts of the time, by what the command says and when: until it says that no primary answers (noticing), until the last relay that is needed is
fenced (deciding: `--after`, the lock, the survey), until a node is elected (catching up), until it is promoted, and until the first insert is
acknowledged that began after that or had waited (finding). Every insert that was acknowledged is looked for at the end.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase

from bench import pgwire
from bench.cluster import DATABASE, USER, Cluster
from bench.delay import Network
from bench.errors import BenchError
from bench.gate import start_proxy
from bench.process import die_with_parent, free_port, stop, tail
from bench.stats import summary
from bench.window import save

ARMS = ("killed", "frozen", "cut", "silent", "gone", "coordinator", "switchover")
CLIENTS = 16
RELAYS = 3
ACKNOWLEDGEMENTS = 2
WARM_SECONDS = 3
LIMIT_SECONDS = 90
PARTS = ("noticing", "deciding", "catching up", "promoting", "finding")
HEADER = (
    "| fault | runs | seconds without writes, p50 | least | most | "
    + " | ".join(PARTS)
    + " | errors that clients saw | acknowledged | lost |\n|---|"
    + "---:|" * (len(PARTS) + 7)
)


class Synchronous(Cluster):
    """Small servers, whose standbys try again at once when they are led elsewhere."""

    def settings(self):
        own = {"shared_buffers": "64MB", "wal_retrieve_retry_interval": "100ms", "unix_socket_directories": str(self.workspace.path)}
        return super().settings() | own


class Island:
    """A network namespace with one address, as a host of its own, that can be cut off so that packets are just lost."""

    def __init__(self):
        self._name = f"kpb{os.getpid()}"
        self._here, self._there = f"{self._name}h", f"{self._name}t"
        # Of TEST-NET-2, by our own number: two that run at once do not meet.
        block = os.getpid() % 64 * 4
        self._host, self.address = f"198.51.100.{block + 1}", f"198.51.100.{block + 2}"

    @staticmethod
    def is_possible():
        """Whether namespaces can be made here."""
        return os.geteuid() == 0 and shutil.which("ip") is not None

    def __enter__(self):
        _ip("netns", "add", self._name)
        try:
            _ip("link", "add", self._here, "type", "veth", "peer", "name", self._there)
            _ip("link", "set", self._there, "netns", self._name)
            _ip("address", "add", f"{self._host}/30", "dev", self._here)
            _ip("link", "set", self._here, "up")
            _ip("-n", self._name, "address", "add", f"{self.address}/30", "dev", self._there)
            _ip("-n", self._name, "link", "set", self._there, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # The kernel takes the namespace away some time later; the link is to be gone before the next one is made.
        subprocess.run(["ip", "link", "delete", self._here], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "delete", self._name], check=False)

    def inside(self, command):
        """The command that runs there."""
        return ["ip", "netns", "exec", self._name, *command]

    def cut(self):
        """From now on packets go, in both directions, to a station that does not exist."""
        _ip("neighbour", "replace", self.address, "lladdr", "02:00:00:00:00:01", "dev", self._here, "nud", "permanent")
        _ip("-n", self._name, "neighbour", "replace", self._host, "lladdr", "02:00:00:00:00:02", "dev", self._there, "nud", "permanent")


def _ip(*words):
    done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise BenchError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def run(options, binary, workspace, pg_bin, say, out):
    """Measures; writes and returns the table."""
    arms = tuple(arm for arm in ARMS if not options.targets or any(fnmatchcase(arm, glob) for glob in options.targets))
    if not arms:
        raise BenchError(f"no such target of failover; there are {', '.join(ARMS)}")
    etcd = shutil.which("etcd")
    if not etcd:
        raise BenchError("a failover by itself needs etcd (Debian: apt install etcd-server)")
    rows, name, text = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-failover", ""
    network = Network(workspace)
    for repetition in range(options.repetitions):
        for arm in arms:
            if arm == "gone" and not Island.is_possible():
                say("failover, gone: left out, it needs root and ip")
                continue
            with Fleet(binary, workspace, pg_bin, network, etcd, arm == "gone") as fleet:
                figures = fleet.measure(arm)
            parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in figures["parts"].items())
            say(f"failover, {arm}: {figures['without']:.2f} s without writes ({parts}), {figures['lost']} lost")
            rows.append([repetition, arm, figures])
            text = save(out, name, options.command, fleet.cluster.version(), rows, markdown(rows))
    say(f"written: {name}.md and .json in {out.name}")
    return text


class Fleet:
    """Everything, started anew for each fault."""

    def __init__(self, binary, workspace, pg_bin, network, etcd, has_island):
        self._binary, self._workspace, self._network, self._etcd = binary, workspace, network, etcd
        self._directory = workspace.directory(f"failover-{time.monotonic_ns()}")
        self._stack = ExitStack()
        self._island = Island() if has_island else None
        self.cluster = Synchronous(pg_bin, _Below(workspace, self._directory), 200)

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_):
        self._stack.close()

    def _start(self):
        cluster = self._stack.enter_context(self.cluster)
        cluster.start_replicas()
        cluster.query("CREATE TABLE acked (n bigint PRIMARY KEY)")
        self._forwarder = self._network_link()
        nodes = [f"{self._island.address if self._island else '127.0.0.1'}:{self._forwarder[1]}"]
        nodes += [f"127.0.0.1:{port}" for port in cluster.ports[1:]]
        nodes = "".join(f'[[cluster.nodes]]\nname = "n{number}"\naddress = "{address}"\n' for number, address in enumerate(nodes))
        self._nodes = f'[cluster]\nuser = "{USER}"\ndatabase = "{DATABASE}"\n{nodes}'
        self._relays = [self._relay(f"relay{number}") for number in range(RELAYS)]
        names = ", ".join(name for name, _ in self._relays)
        for node in range(len(cluster.ports)):
            cluster.query(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY {ACKNOWLEDGEMENTS} ({names})'", node)
            if node:
                relay = self._relays[node % RELAYS][1]
                cluster.query(f"ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port={relay} user={USER}'", node)
            cluster.query("SELECT pg_reload_conf()", node)
        self._until(lambda: len(cluster.query("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'quorum'")) == RELAYS)
        for node in range(1, len(cluster.ports)):
            self._until(lambda node=node: cluster.query("SELECT 1 FROM pg_stat_wal_receiver WHERE status = 'streaming'", node))
        text = f'[proxy]\nauth = "trust"\n[[proxy.operators]]\nname = "operator"\n{self._nodes}'
        _, self._port, _ = self._stack.enter_context(start_proxy(self._workspace, self._directory, self._binary, text))
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        command = [self._etcd, "--data-dir", self._directory / "etcd", "--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        self._server(command, "etcd")
        self._etcd_url = client
        relays = "".join(
            f'[[failover.relays]]\nname = "{name}"\naddress = "127.0.0.1:{port}"\nuser = "{USER}"\n' for name, port in self._relays
        )
        proxy = f'[[failover.proxies]]\nname = "proxy"\naddress = "127.0.0.1:{self._port}"\nuser = "operator"\n'
        text = f'[proxy]\nauth = "trust"\n{self._nodes}[failover]\nuser = "{USER}"\nacknowledgements = {ACKNOWLEDGEMENTS}\n{relays}{proxy}'
        self._config = self._workspace.write(self._directory / "failover.toml", text)

    def _network_link(self):
        log = self._directory / "forwarder.log"
        if self._island:
            island = self._stack.enter_context(self._island)
            socket = self._directory / f".s.PGSQL.{self.cluster.primary}"
            process = self._stack.enter_context(_as_root(island.inside([self._network.program, socket, 0, island.address]), log))
        else:
            process = self._server([self._network.program, self.cluster.primary, 0], "forwarder")
        self._until(lambda: log.read_text().endswith("\n"))
        return process, int(log.read_text())

    def _relay(self, name):
        port = free_port()
        text = f"""
[relay]
listen = ["127.0.0.1:{port}"]
dir = "{self._directory}/{name}"
auth = "trust"
[[relay.users]]
name = "{USER}"
operator = true
[relay.upstream]
address = ""
user = "{USER}"
application_name = "{name}"
slot = "{name}"
[proxy]
auth = "trust"
{self._nodes}
[metrics]
listen = "127.0.0.1:{free_port()}"
"""
        config = self._workspace.write(self._directory / f"{name}.toml", text)
        self._server([self._binary, "relay", "--config", config], name)
        return name, port

    def _server(self, command, name):
        return self._stack.enter_context(self._workspace.server(command, self._directory / f"{name}.log"))

    def _watch(self, name, *arguments):
        command = [self._binary, "watch", "--config", self._config, "--etcd", self._etcd_url, *arguments]
        self._server(command, name)
        said = Said(self._directory / f"{name}.log")
        self._until(lambda: said.when(r"n0 is the primary") is not None)
        return said

    def measure(self, arm):
        """Does it, and gives figures."""
        clients = Clients(self._port)
        try:
            if arm == "coordinator":
                # It is at it before the other one is.
                said = [self._watch("first", "--after", "100ms", "--die-at", "fenced"), self._watch("watch")]
            elif arm == "switchover":
                said = []
            else:
                said = [self._watch("watch"), self._watch("other")]
            time.sleep(WARM_SECONDS)
            began = time.monotonic()
            if arm == "switchover":
                self._server([self._binary, "switchover", "--config", self._config], "switchover")
                said = [Said(self._directory / "switchover.log")]
            else:
                self._fault(arm)
            self._until(lambda: any(log.when("promoted n") for log in said), LIMIT_SECONDS)
            acts = next(log for log in said if log.when("promoted n"))
            promoted = acts.when("promoted n")
            self._until(lambda: clients.first_after(promoted) is not None, LIMIT_SECONDS)
            ends = clients.first_after(promoted)
            # The longest pause: for a switchover, what a client waits.
            pause = clients.longest_pause(began - 1, ends)
            time.sleep(1)
        finally:
            clients.stop()
        node = int(re.search(r"promoted n(\d)", acts.text()).group(1))
        there = {int(row[0]) for row in self.cluster.query("SELECT n FROM acked", node)}
        lost = len(clients.acknowledged - there)
        if arm == "frozen":
            self._signal_primary(signal.SIGCONT)
        needed = RELAYS - ACKNOWLEDGEMENTS + 1
        times = [began, acts.when("no primary answers, and") or began, acts.when("fenced relay", needed), acts.when("elected n"), promoted, ends]
        parts = {part: max(0.0, after - before) for part, before, after in zip(PARTS, times, times[1:])}
        return {
            "without": pause,
            "parts": parts,
            "errors": clients.errors,
            "acknowledged": len(clients.acknowledged),
            "lost": lost,
        }

    def _until(self, condition, seconds=30):
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise BenchError(f"what was started is not ready after {seconds} s\n{self._logs()}")
            time.sleep(0.01)

    def _fault(self, arm):
        if arm in ("killed", "coordinator"):
            self._signal_primary(signal.SIGKILL)
        elif arm == "frozen":
            self._signal_primary(signal.SIGSTOP)
        elif arm == "gone":
            self._island.cut()
        else:
            self._forwarder[0].send_signal(signal.SIGKILL if arm == "cut" else signal.SIGSTOP)

    def _signal_primary(self, number):
        postmaster = self.cluster.postmasters[0]
        # First the one that would start others, or wait for them.
        for pid in (postmaster, *_children(postmaster)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def _logs(self):
        return "\n".join(tail(path, 12) for path in sorted(self._directory.glob("*.log")))


@contextmanager
def _as_root(command, log):
    """A process that only root may start; it ends with the block, or with us."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=lambda: die_with_parent(signal.SIGKILL)
        )
    try:
        yield process
    finally:
        stop(process, signal.SIGKILL)


class _Below:
    """A workspace whose servers are in a directory of their own."""

    def __init__(self, workspace, path):
        self._workspace, self.path = workspace, path

    def __getattr__(self, name):
        return getattr(self._workspace, name)


class Said:
    """The lines of a program's output, with the time at which each was there."""

    def __init__(self, path):
        self._path, self._lines, self._rest = path, [], 0
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        seen = 0
        while True:
            try:
                lines = self._path.read_text(errors="replace").split("\n")[:-1]
            except OSError:
                return
            now = time.monotonic()
            self._lines += [(now, line) for line in lines[seen:]]
            seen = len(lines)
            time.sleep(0.005)

    def when(self, pattern, count=1):
        """When the so-many-th line was there that has it; None: not yet."""
        found = [at for at, line in list(self._lines) if re.search(pattern, line)]
        return found[count - 1] if len(found) >= count else None

    def text(self):
        """All of it."""
        return "\n".join(line for _, line in list(self._lines))


class Clients:
    """Clients that insert a number each, one after the other, and connect again when they are thrown out."""

    def __init__(self, port):
        self._port, self._stop = port, False
        self._lock, self._next = threading.Lock(), 0
        self.acknowledged, self._times, self.errors = set(), [], 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _work(self):
        connection = None
        while not self._stop:
            with self._lock:
                self._next += 1
                number = self._next
            try:
                connection = connection or pgwire.Connection(self._port, USER, DATABASE, LIMIT_SECONDS)
                connection.query(f"INSERT INTO acked VALUES ({number})")
            except (OSError, pgwire.ProtocolError):
                with self._lock:
                    self.errors += 0 if self._stop else 1
                if connection:
                    connection.close()
                connection = None
                time.sleep(0.01)
                continue
            with self._lock:
                self.acknowledged.add(number)
                self._times.append(time.monotonic())

    def first_after(self, moment):
        """When the first insert after this was acknowledged; None: not yet."""
        with self._lock:
            return next((at for at in self._times[-2000:] if at > moment), None)

    def longest_pause(self, since, until):
        """The longest time between two acknowledgements."""
        with self._lock:
            times = sorted(at for at in self._times if since <= at <= until)
        return max((after - before for before, after in zip(times, times[1:])), default=0.0)

    def stop(self):
        """Ends them."""
        self._stop = True
        for thread in self._threads:
            thread.join(5)


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def markdown(rows):
    """Medians over repetitions."""
    arms = {}
    for _, arm, figures in rows:
        arms.setdefault(arm, []).append(figures)
    lines = [HEADER]
    for arm, runs in arms.items():
        without = summary(figures["without"] for figures in runs)
        cells = [arm, str(len(runs)), *(f"{without[key]:.2f}" for key in ("median", "min", "max"))]
        cells += [f"{summary(figures['parts'][part] for figures in runs)['median']:.2f}" for part in PARTS]
        cells.append(f"{summary(figures['errors'] for figures in runs)['median']:.0f}")
        cells += [str(sum(figures[key] for figures in runs)) for key in ("acknowledged", "lost")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
