"""What a relay costs: `bench/run --only relay` (relay/0: with no receivers behind it, relay/4: with four). Commits wait for one
synchronous standby, which is the relay, another binary's (`--peer NAME=FILE`), pg_receivewal, or a real standby; 1, 4 and 16 more
receivers stream from it, or from the primary itself. Figures: commits a second, and CPU time a commit of the primary and of what is in
between."""

import json
import statistics
import time

from bench import counters
from bench.cluster import DATABASE, USER, Cluster, find_bin
from bench.errors import BenchError
from bench.plan import rotated
from bench.process import Workspace, free_port, tail

RECEIVERS = (1, 4, 16)
SCRIPT = """\\set id random(1, 1000000000)
BEGIN;
INSERT INTO committed VALUES (:id, 0);
UPDATE committed SET n = n + 1 WHERE id = :id;
COMMIT;
"""
# Flushes are what a commit waits for: they count here.
DURABLE = {"fsync": "on", "max_wal_senders": "40", "max_replication_slots": "40", "wal_level": "replica"}
ANSWER_SECONDS = 30
WARM_SECONDS = 1
HEADER = (
    "| synchronous standby | receivers stream from | receivers | commits/s | primary µs | in between µs |\n"
    "|---|---|---|---|---|---|"
)


def run(options, out, say):
    """Measures everything, `options.repetitions` times in turn; writes and prints the table."""
    workspace = Workspace(options.dir)
    rows, name = {}, time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-relay"
    try:
        if not options.kingpost.is_file():
            raise BenchError(f"{options.kingpost} is not there: cargo build --release -p kingpost")
        relays = {"relay": options.kingpost} | {f"relay-{name}": file for name, file in options.peer}
        relays = {name: workspace.adopt(file, f"kingpost-{name}") for name, file in relays.items()}
        cases = planned(options.only, list(relays))
        with _Fleet(find_bin(options.pg_bin), workspace, relays) as fleet:
            for repetition in range(options.repetitions):
                for case in rotated(cases, repetition):
                    figures = fleet.measure(*case, clients=(options.clients or [64])[0], seconds=options.seconds)
                    rows.setdefault(case, []).append(figures)
                    say(f"{' / '.join(map(str, case))}: {figures[0]:.0f} commits/s")
                    # Also of a run that is ended early.
                    _save(out, name, rows)
    finally:
        workspace.remove()
    print(markdown(rows))
    return 0


def planned(only, relays):
    """Cases (who is the synchronous standby, where receivers stream from, how many) for `--only`'s words; `relays` are the binaries to
    measure, the first of them in every case."""
    cases = [("pg_receivewal", "-", 0), *((name, "-", 0) for name in relays), ("standby", "-", 0)]
    cases += [(kind, source, n) for n in RECEIVERS for kind, source in _FEEDS]
    return [case for case in cases if "relay" in only or f"relay/{case[2]}" in only]


def markdown(rows):
    """The table."""
    lines = [HEADER]
    for (kind, source, receivers), figures in rows.items():
        cells = [_cell([figure[index] for figure in figures]) for index in range(3)]
        lines.append(f"| {kind} | {source} | {receivers} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _save(out, name, rows):
    out.mkdir(exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps([[*case, figures] for case, figures in rows.items()], indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown(rows) + "\n")


_FEEDS = (("relay", "relay"), ("relay", "primary"), ("standby", "standby"))


def _cell(values):
    """Median and spread."""
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1
    spread = f" ±{(max(values) - min(values)) / 2 / middle:.0%}" if len(values) > 1 and middle else ""
    return f"{middle:.{digits}f}{spread}"


class _Primary(Cluster):
    """A primary whose commits are durable, with room for many receivers."""

    def settings(self):
        return super().settings() | DURABLE


class _Fleet:
    """A primary, and whatever a case puts behind it."""

    def __init__(self, pg_bin, workspace, relays):
        self.bin, self.workspace, self.relays = pg_bin, workspace, relays
        self.cluster = _Primary(pg_bin, workspace, 200)
        self.script = workspace.path / "commits.sql"
        self.count = 0

    def __enter__(self):
        self.cluster.__enter__()
        try:
            self.cluster.query("CREATE TABLE committed (id bigint, n int); CREATE INDEX ON committed (id)")
            self.workspace.write(self.script, SCRIPT)
        except BaseException:
            self.cluster.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exception):
        self.cluster.__exit__(*exception)

    def measure(self, kind, source, receivers, clients, seconds):
        """Commits a second; CPU µs a commit of the primary, and of the synchronous standby."""
        self._set(synchronous_standby_names="")
        with _Stack() as stack:
            port, pid = self._relay(stack, kind) if kind in self.relays else getattr(self, f"_{kind}")(stack)
            feed = self.cluster.primary if source == "primary" else port
            for _ in range(receivers):
                self._receive(stack, feed, f"r{self._number()}")
            self._wait_streaming(kind)
            self._set(synchronous_standby_names=f'"{kind}"')
            rate, *costs = self._load(clients, seconds, (self.cluster.postmasters[0], pid))
            self._set(synchronous_standby_names="")
            return rate, *costs

    def _number(self):
        self.count += 1
        return self.count

    def _load(self, clients, seconds, pids):
        """Commits a second while pgbench runs, after a second of warm-up, and CPU µs a commit of each of `pids`: sampled while
        all back-ends live, whose time would be gone with them."""
        command = [self.bin / "pgbench", "-n", "-M", "prepared", "-f", self.script, "-c", str(clients), "-j", "2", "-P", "1"]
        command += ["-T", str(seconds + WARM_SECONDS + 2), "-h", "127.0.0.1", "-p", str(self.cluster.primary)]
        log = self.workspace.path / f"pgbench{self._number()}.log"
        with self.workspace.server([*command, "-U", USER, DATABASE], log) as pgbench:
            self._reports(log, WARM_SECONDS, pgbench)
            before = [counters.process(pid) for pid in pids]
            reports = self._reports(log, WARM_SECONDS + seconds, pgbench)
            after = [counters.process(pid) for pid in pids]
        rates = [float(report.split(" tps")[0].rsplit(" ", 1)[1]) for report in reports[WARM_SECONDS:]]
        commits = sum(rates)
        if not commits:
            raise BenchError(f"nothing was committed:\n{tail(log)}")
        costs = [(_cpu(now) - _cpu(then)) / commits for then, now in zip(before, after, strict=True)]
        return commits / len(rates), *costs

    @staticmethod
    def _reports(log, count, pgbench):
        """The first `count` reports, one a second."""
        deadline = time.monotonic() + count + ANSWER_SECONDS
        while time.monotonic() < deadline and pgbench.poll() is None:
            reports = [line for line in log.read_text().splitlines() if line.startswith("progress: ") and " tps" in line]
            if len(reports) >= count:
                return reports[:count]
            time.sleep(0.01)
        raise BenchError(f"pgbench does not report:\n{tail(log)}")

    def _set(self, **settings):
        with self.cluster.connect() as connection:
            for name, value in settings.items():
                connection.query(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.query("SELECT pg_reload_conf()")

    def _wait_streaming(self, name):
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            rows = self.cluster.query(
                f"SELECT 1 FROM pg_stat_replication WHERE application_name = '{name}' AND state = 'streaming'"
            )
            if rows:
                return
            time.sleep(0.05)
        raise BenchError(f"{name} does not stream:\n{self.cluster.logs()}")

    def _receive(self, stack, port, name, synchronous=False):
        # Of each repetition its own: pg_receivewal would go on where the one before ended.
        directory = self.workspace.directory(f"wal-{name}-{self._number()}")
        log = self.workspace.path / f"{name}.log"
        conninfo = f"host=127.0.0.1 port={port} user={USER} application_name={name}"
        command = [self.bin / "pg_receivewal", "-D", directory, "-d", conninfo]
        if synchronous:
            command.append("--synchronous")
        return stack.enter(self.workspace.server(command, log)).pid

    def _pg_receivewal(self, stack):
        return None, self._receive(stack, self.cluster.primary, "pg_receivewal", synchronous=True)

    def _relay(self, stack, name):
        number, port = self._number(), free_port()
        directory = self.workspace.directory(f"relay{number}")
        config = self.workspace.path / f"relay{number}.toml"
        self.workspace.write(
            config,
            f'[relay]\nlisten = ["127.0.0.1:{port}"]\ndir = "{directory}/wal"\nauth = "trust"\n[relay.upstream]\n'
            f'address = "127.0.0.1:{self.cluster.primary}"\nuser = "{USER}"\nslot = ""\napplication_name = "{name}"\n'
            '[metrics]\nlisten = ""\n[log]\nlevel = "warn"\n',
        )
        log = self.workspace.path / f"relay{number}.log"
        process = stack.enter(self.workspace.server([self.relays[name], "relay", "--new", "--config", config], log))
        self._wait_streaming(name)
        if process.poll() is not None:
            raise BenchError(f"the relay does not start:\n{tail(log)}")
        return port, process.pid

    def _standby(self, stack):
        number = self._number()
        data = self.workspace.path / f"standby{number}"
        copy = ["-D", data, "-R", "-X", "stream", "-c", "fast", "-N", "-h", "127.0.0.1"]
        self.workspace.call([self.bin / "pg_basebackup", *copy, "-p", str(self.cluster.primary), "-U", USER], 600)
        with open(data / "postgresql.auto.conf", "a") as file:
            conninfo = f"host=127.0.0.1 port={self.cluster.primary} user={USER} application_name=standby"
            file.write(f"primary_conninfo = '{conninfo}'\nsynchronous_standby_names = ''\n")
        port = free_port()
        command = [self.bin / "postgres", "-D", data, "-p", str(port)]
        process = stack.enter(self.workspace.server(command, self.workspace.path / f"standby{number}.log"))
        self._wait_streaming("standby")
        return port, process.pid


class _Stack:
    """What a case has started, ended in the reverse order."""

    def __init__(self):
        self.entered = []

    def __enter__(self):
        return self

    def enter(self, context):
        """Enters a context; it is left with this one."""
        value = context.__enter__()
        self.entered.append(context)
        return value

    def __exit__(self, *exception):
        while self.entered:
            self.entered.pop().__exit__(None, None, None)


def _cpu(process):
    """User and system time, in µs."""
    return process.user_us + process.system_us
