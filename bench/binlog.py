"""`bench/run --only binlog`, `--only mysql`: commits of MariaDB, or of MySQL, that wait until their binary log is durable elsewhere.

- `binlog/0`, `binlog/2.5`: clients that insert one row a commit, with a round trip of so many ms between the source and whoever acknowledges:
  `async` (nobody is waited for), `replica` (MariaDB's own semi-synchronous replica with its defaults: what it acknowledges is in its page cache),
  `replica-durable` (the same with `sync_relay_log = 1`) and `relay`. Only the replica's receiving thread runs: it applies nothing, and so does what a
  relay does. A replica reads an event, writes, flushes, acknowledges and waits for that before it reads the next; the relay does these beside each
  other. `relay-turns` is the relay where it cannot: a forwarder (bench/turns.rs) holds back what the source sends behind a transaction until the
  relay has acknowledged that one. So it beside `relay` is what pipelining brings.
- `mysql/0`, `mysql/2.5`: the same four with servers of MySQL, which `tests/newest/setup mysql` has unpacked; without `relay-turns`.
- `binlog` alone is all of MariaDB's. `receivers/1`, `receivers/4`, `receivers/16`: the same load with so many `mariadb-binlog` that receive from the relay, or from the source itself. They
  take events without checksums only, so the source writes none there.

Figures of a window: commits a second by the source's own count, CPU µs a commit of the source and of whoever acknowledges; of the latter bytes written,
writing system calls, flushes and futex calls a commit (/proc/PID/io, and perf's tracepoints where they may be used).
"""

import functools
import os
import pathlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time
from contextlib import ExitStack

from bench import counters
from bench.delay import Network
from bench.errors import BenchError
from bench.plan import rotated
from bench.process import free_port, tail
from bench.window import save, scrape

ARMS = ("async", "replica", "replica-durable", "relay", "relay-turns")
FEEDS = ("source", "relay")
TRIPS = (0.0, 2.5)
RECEIVERS = (1, 4, 16)
CLIENTS = (64, 800)
WARM_SECONDS = 2
ANSWER_SECONDS = 60
PASSWORD = "bench"
TRACED = ("fsync", "fdatasync", "futex")
COSTS = ("source_us", "peer_us", "peer_kib", "peer_writes", "peer_flushes", "peer_futexes")
HEADER = "| {} | clients | who acknowledges | commits/s | source µs | its µs | KiB written | writes | flushes | futex |\n|---|---:|---|" + "---:|" * 7


class Family:
    """Programs, settings and statements of MariaDB or MySQL."""

    def __init__(self, name, server, client, slap, words):
        self.name, self.server, self.client, self.slap = name, server, client, slap
        # MySQL has renamed what MariaDB goes on calling by the old names.
        self.source, self.replica = words
        plugins = {} if name == "mariadb" else {"plugin-load": "semisync_source.so;semisync_replica.so"}
        self.settings = {"innodb-buffer-pool-size": "128M", "innodb-flush-log-at-trx-commit": 1, "performance-schema": "OFF", "back-log": 2000} | plugins
        self.waits = {
            "log-bin": "mysql-bin",
            "sync-binlog": 1,
            f"rpl-semi-sync-{self.source}-timeout": 4294967295,
            f"rpl-semi-sync-{self.source}-wait-point": "AFTER_SYNC",
            f"rpl-semi-sync-{self.source}-wait-no-{self.replica}": "ON",
        } | ({"gtid-strict-mode": 1} if name == "mariadb" else {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "mysqlx": "OFF"})

    def program(self, name):
        """Path of a program."""
        if self.name == "mysql":
            path = newest_mysql().parents[1] / ("sbin" if name == self.server else "bin") / name
            return str(path)
        return _program(name)

    def places(self):
        """Options for the parts of a server that is not installed."""
        if self.name == "mariadb":
            return []
        base = newest_mysql().parents[1]
        plugins, messages = f"--plugin-dir={base}/lib/mysql/plugin", f"--lc-messages-dir={base}/share/mysql"
        return ["--user=root", f"--basedir={base}", plugins, messages, "--secure-file-priv=NULL"]

    def install(self, data):
        """The command that makes data."""
        if self.name == "mariadb":
            return [_program("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db", "--auth-root-authentication-method=normal"]
        return [self.program(self.server), "--no-defaults", *self.places(), "--initialize-insecure", f"--datadir={data}"]

    def follow(self, port):
        """Statements by which only the receiver of a replica runs."""
        if self.name == "mariadb":
            return (
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='repl', MASTER_PASSWORD='{PASSWORD}', "
                "MASTER_USE_GTID=slave_pos; START SLAVE IO_THREAD"
            )
        return (
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, SOURCE_USER='repl', SOURCE_PASSWORD='{PASSWORD}', "
            "SOURCE_AUTO_POSITION=1, SOURCE_SSL=0, GET_SOURCE_PUBLIC_KEY=1; START REPLICA IO_THREAD"
        )


@functools.cache
def newest_mysql():
    """Directory of the mysqld that `tests/newest/setup mysql` has unpacked."""
    setup = pathlib.Path(__file__).parents[1] / "tests/newest/setup"
    found = subprocess.run([setup, "mysql"], capture_output=True, text=True, check=False).stdout.strip()
    if not found:
        raise BenchError("there is no MySQL: tests/newest/setup mysql says why")
    return pathlib.Path(found)


MARIADB = Family("mariadb", "mariadbd", "mariadb", "mariadb-slap", ("master", "slave"))
MYSQL = Family("mysql", "mysqld", "mysql", "mysqlslap", ("source", "replica"))
MYSQL_ARMS = ARMS[:4]


def run(options, binary, workspace, _pg_bin, say, out):
    """Measures everything, `options.repetitions` times in turn; returns the table."""
    rows, name = [], time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-binlog"
    chosen = cases(options.only, options.clients or CLIENTS)
    families = [family for family in (MARIADB, MYSQL) if any(family is _family(case[0]) for case in chosen)]
    versions = [subprocess.run([f.program(f.server), "--no-defaults", "--version"], capture_output=True, text=True, check=False) for f in families]
    version = "; ".join(done.stdout.strip() for done in versions)
    fleet = _Fleet(workspace, binary, families)
    for repetition in range(options.repetitions):
        for case in rotated(chosen, repetition):
            figures = fleet.measure(*case, seconds=options.seconds)
            rows.append([*case, repetition, figures])
            say(f"{' / '.join(map(str, case))}: {figures['tps']:.0f} commits/s")
            save(out, name, options.command, version, rows, markdown(rows))
    return save(out, name, options.command, version, rows, markdown(rows))


def cases(only, clients):
    """(what, its number, clients, arm) for the words of `--only`; `binlog` is all of them."""
    found = [("binlog", trip, count, arm) for trip in TRIPS for count in clients for arm in ARMS]
    found += [("mysql", trip, count, arm) for trip in TRIPS for count in clients for arm in MYSQL_ARMS]
    found += [("receivers", number, min(clients), feed) for number in RECEIVERS for feed in FEEDS]
    return [case for case in found if ("binlog" in only and case[0] != "mysql") or f"{case[0]}/{case[1]:g}" in only or case[0] in only]


def markdown(rows):
    """The tables: medians over the repetitions, and the commits' spread."""
    groups = {}
    for what, number, clients, arm, _, figures in rows:
        groups.setdefault((what, number, clients, arm), []).append(figures)
    lines = []
    for what, title in (("binlog", "round trip, ms"), ("mysql", "MySQL: round trip, ms"), ("receivers", "receivers, from")):
        found = {key: figures for key, figures in groups.items() if key[0] == what}
        if found:
            lines += ["", HEADER.format(title)]
        for (_, number, clients, arm), figures in sorted(found.items(), key=lambda item: item[0][1:3]):
            rates = [figure["tps"] for figure in figures]
            middle = statistics.median(rates)
            spread = f" ±{(max(rates) - min(rates)) / 2 / middle:.0%}" if len(rates) > 1 else ""
            cells = [_cell([figure.get(cost) for figure in figures]) for cost in COSTS]
            first = f"{number:g}" if what != "receivers" else f"{number}, {arm}"
            who = arm if what != "receivers" else "relay"
            lines.append(f"| {first} | {clients} | {who} | {middle:.0f}{spread} | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


def _cell(values):
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle = statistics.median(known)
    return f"{middle:.0f}" if middle >= 100 else f"{middle:.2g}" if middle < 10 else f"{middle:.1f}"


def _family(what):
    return MYSQL if what == "mysql" else MARIADB


def _program(name):
    for place in ("/usr/sbin", "/usr/libexec"):
        if os.path.exists(f"{place}/{name}"):
            return f"{place}/{name}"
    found = shutil.which(name)
    if not found:
        raise BenchError(f"{name} is not there (Debian: apt install mariadb-server)")
    return found


class _Server:
    """A server with a directory of its own."""

    def __init__(self, fleet, stack, family, number, **settings):
        self.family, self.directory = family, fleet.workspace.directory(f"{family.name}{number}")
        self.workspace, self.port, self.begins = fleet.workspace, free_port(), f"0-{number}-1"
        data = self.directory / "data"
        fleet.workspace.call(["cp", "-r", fleet.templates[family.name], data], 60)
        # It names the server.
        (data / "auto.cnf").unlink(missing_ok=True)
        command = [family.program(family.server), "--no-defaults", *family.places(), f"--datadir={data}", f"--socket={self.socket}"]
        command += [f"--port={self.port}", f"--pid-file={data}/pid", "--bind-address=127.0.0.1", "--skip-name-resolve", f"--server-id={number}"]
        command += ["--max-connections=2000", *(f"--{name}={value}" for name, value in (family.settings | settings).items())]
        log = self.directory / "log"
        self.process = stack.enter_context(fleet.workspace.server(command, log, signal.SIGKILL))
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise BenchError(f"{family.server} does not start:\n{tail(log)}")
            time.sleep(0.05)

    @property
    def socket(self):
        """Its socket: a path that is short enough."""
        return self.directory / "s"

    def _answers(self):
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        try:
            self.query("SELECT 1")
        except BenchError:
            return False
        return True

    def query(self, text):
        """Rows as lists of texts."""
        command = [self.family.program(self.family.client), "--no-defaults", f"--socket={self.socket}", "-u", "root", "-N", "-B", "-e", text]
        return [line.split("\t") for line in self.workspace.call(command, ANSWER_SECONDS).splitlines()]

    def status(self, name):
        """A number of SHOW GLOBAL STATUS."""
        return int(self.query(f"SHOW GLOBAL STATUS LIKE '{name}'")[0][1])

    def commits(self):
        """The commits that clients were told of, since the start."""
        if self.family.name == "mariadb":
            return self.status("Binlog_commits")
        executed = self.query("SELECT @@global.gtid_executed")[0][0]
        return int(re.findall(r"(\d+)$", executed)[0]) if executed else 0


class _Fleet:
    def __init__(self, workspace, binary, families):
        self.workspace, self.network = workspace, Network(workspace)
        self.binary = binary
        self.templates = {family.name: workspace.directory(f"template-{family.name}") / "data" for family in families}
        self.count = 1
        for family in families:
            workspace.call(family.install(self.templates[family.name]), 120)

    def measure(self, what, number, clients, arm, seconds):
        """The figures of one run."""
        with ExitStack() as stack:
            family, waits = _family(what), arm != "async"
            checksum = "NONE" if what == "receivers" else "CRC32"
            settings = family.waits | {f"rpl-semi-sync-{family.source}-enabled": "ON" if waits else "OFF", "binlog-checksum": checksum}
            source = _Server(self, stack, family, self._number(), **settings)
            source.query(
                "SET sql_log_bin = 0; CREATE DATABASE app; CREATE TABLE app.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200)); "
                f"CREATE USER repl@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO repl@'127.0.0.1'"
            )
            port = source.port
            if what != "receivers" and number:
                port = stack.enter_context(self.network.link(source.port, number / 2000))
            peer, metrics, feed = None, None, None
            if arm == "relay-turns":
                port = stack.enter_context(self.network.turns(port))
            if what == "receivers" or arm in ("relay", "relay-turns"):
                peer, feed, metrics = self._relay(stack, family, port)
            elif waits:
                peer = self._replica(stack, family, port, 1 if arm == "replica-durable" else 10_000)
            if waits:
                self._until(lambda: source.status(f"Rpl_semi_sync_{family.source}_clients") == 1, "nobody receives")
            # The first file has something that receivers can begin behind.
            source.query("CREATE DATABASE begun")
            if what == "receivers":
                for _ in range(number):
                    self._receive(stack, feed if arm == "relay" else source.port, source.begins)
            # A group of commits that is flushed event by event takes longer than the window of the others.
            seconds *= 4 if arm in ("replica-durable", "relay-turns") else 1
            return self._load(source, peer, metrics, clients, seconds)

    def _number(self):
        self.count += 1
        return self.count

    @staticmethod
    def _until(condition, otherwise):
        deadline = time.monotonic() + ANSWER_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise BenchError(otherwise)
            time.sleep(0.05)

    def _relay(self, stack, family, port):
        number, listen, metrics = self._number(), free_port(), free_port()
        config = self.workspace.path / f"relay{number}.toml"
        self.workspace.write(
            config,
            f'[relay]\nengine = "{family.name}"\nserver_id = {number}\nlisten = ["127.0.0.1:{listen}"]\n'
            f'dir = "{self.workspace.directory(f"relay{number}")}/log"\n'
            f'[relay.upstream]\naddress = "127.0.0.1:{port}"\nuser = "repl"\npassword = "{PASSWORD}"\n'
            f'[[relay.users]]\nname = "repl"\npassword = "{PASSWORD}"\n'
            f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n[log]\nlevel = "warn"\n',
        )
        log = self.workspace.path / f"relay{number}.log"
        process = stack.enter_context(self.workspace.server([self.binary, "relay", "--config", config], log))

        def streams():
            if process.poll() is not None:
                raise BenchError(f"the relay ended:\n{tail(log)}")
            try:
                return scrape(metrics).get("kingpost_relay_streaming") == 1
            except BenchError:
                return False

        self._until(streams, f"the relay does not receive:\n{tail(log)}")
        return process.pid, listen, metrics

    def _replica(self, stack, family, port, sync):
        settings = {f"rpl-semi-sync-{family.replica}-enabled": "ON", "sync-relay-log": sync, "relay-log": "relay-bin"}
        if family.name == "mysql":
            settings |= {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "mysqlx": "OFF"}
        replica = _Server(self, stack, family, self._number(), **settings)
        replica.query(family.follow(port))
        return replica.process.pid

    def _receive(self, stack, port, begins):
        number = self._number()
        command = ["mariadb-binlog", "--no-defaults", "--read-from-remote-server", "--host=127.0.0.1", f"--port={port}", "--user=repl"]
        command += [f"--password={PASSWORD}", "--stop-never", f"--stop-never-slave-server-id={number}", f"--start-position={begins}", "--raw"]
        directory, log = self.workspace.directory(f"r{number}"), self.workspace.path / f"r{number}.log"
        process = stack.enter_context(self.workspace.server([*command, f"--result-file={directory}/", "mysql-bin.000001"], log))
        self._until(lambda: process.poll() is not None or any(directory.iterdir()), f"mariadb-binlog gets nothing:\n{tail(log)}")
        if process.poll() is not None:
            raise BenchError(f"mariadb-binlog ended:\n{tail(log)}")

    def _load(self, source, peer, metrics, clients, seconds):
        log = self.workspace.path / f"slap{self._number()}.log"
        command = [source.family.program(source.family.slap), "--no-defaults", f"--socket={source.socket}", "-u", "root", f"--concurrency={clients}", "--create-schema=app"]
        command += ["--no-drop", f"--number-of-queries={1 << 30}", f"--query=INSERT INTO t (v) VALUES ('{'v' * 100}')"]
        with self.workspace.server(command, log) as slap:
            begun = source.commits()
            self._until(
                lambda: source.status("Threads_connected") > clients and source.commits() > begun,
                f"the clients do not come:\n{tail(log)}",
            )
            time.sleep(WARM_SECONDS)
            with _Traced(peer, seconds) as traced:
                before = self._sample(source, peer)
                time.sleep(seconds)
                after = self._sample(source, peer)
                traces = traced.end()
            if slap.poll() is not None:
                raise BenchError(f"{source.family.slap} ended:\n{tail(log)}")
            slap.kill()
        return figures(before, after, traces)

    @staticmethod
    def _sample(source, peer):
        commits = source.commits()
        sample = {"at": time.monotonic(), "commits": commits, "source_us": _cpu(source.process.pid)}
        if peer:
            with open(f"/proc/{peer}/io") as file:
                sample |= {"peer_us": _cpu(peer)} | parse_io(file.read())
        return sample


def parse_io(text):
    """Bytes handed to write calls, and their number, of /proc/PID/io."""
    values = dict(line.split(": ") for line in text.splitlines() if ": " in line)
    return {"peer_kib": int(values["wchar"]) / 1024, "peer_writes": int(values["syscw"])}


def figures(before, after, traces):
    """Of the window between two samples, a commit; `traces`: calls a second in it, by name."""
    commits = after["commits"] - before["commits"]
    if commits <= 0:
        raise BenchError("nothing was committed in the window")
    found = {name: (after[name] - before[name]) / commits for name in before if name not in ("at", "commits")}
    found["tps"] = commits / (after["at"] - before["at"])
    if traces:
        found["peer_flushes"] = (traces["fsync"] + traces["fdatasync"]) / found["tps"]
        found["peer_futexes"] = traces["futex"] / found["tps"]
    return found


class _Traced:
    """Counts system calls of a process for some seconds, by perf's tracepoints; nothing where they may not be used."""

    def __init__(self, pid, seconds):
        self.pid, self.seconds, self.process = pid, seconds, None

    def __enter__(self):
        if self.pid and shutil.which("perf"):
            events = ",".join(f"syscalls:sys_enter_{name}" for name in TRACED)
            command = ["perf", "stat", "-x", ";", "-e", events, "-p", str(self.pid), "sleep", str(self.seconds)]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return self

    def end(self):
        """The calls a second, by name."""
        if not self.process:
            return None
        _, text = self.process.communicate(timeout=ANSWER_SECONDS)
        counts = parse_traces(text)
        return {name: count / self.seconds for name, count in counts.items()} if counts else None

    def __exit__(self, *exception):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def parse_traces(text):
    """Counts by system call of `perf stat -x ;`; None if it could not count."""
    found = {name: int(count) for count, name in re.findall(r"^(\d+);.*?sys_enter_(\w+);", text, re.MULTILINE)}
    return found if set(found) == set(TRACED) else None


def _cpu(pid):
    process = counters.process(pid)
    return process.user_us + process.system_us
