"""The command line."""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import time

from bench import binlog, calls, gate, lanes, neighbour, plan, plot, report, scale, strong, tikv, unavailable, wal, workers
from bench.cluster import find_bin
from bench.errors import BenchError
from bench.peers import Inventory
from bench.process import Workspace, raise_open_file_limit
from bench.runner import ROOT, execute

BENCH = ROOT / "bench"
OUT = BENCH / "out"
PAGE = BENCH / "results" / "proxy.md"
PAGE_PLOT = BENCH / "results" / "proxy.svg"
# Descriptors that clients, the pool and the program itself need beyond a case's connections.
SPARE_FILES = 500


def parser():
    """The options; the help text is the documentation."""
    top = argparse.ArgumentParser(
        prog="bench/run",
        description="Measures Kingpost's proxy side by side with its peers, on PostgreSQL servers of its own. Writes "
        "bench/out/TIME.json, .md and .svg.",
        epilog="Case ids: select/simple/64, tpcb/prepared/1000, sysbench/oltp_read_only/simple/64, idle/5000. `--only relay` (relay/0) "
        "measures what a relay costs, `--only gate` (gate/2.5/64, hot-row) commits that are durable elsewhere, `--only strong` strong reads on replicas, "
        "`--only binlog` (binlog/2.5, receivers/4) a relay for MariaDB beside its semi-synchronous replica, `--only mysql` (mysql/2.5) the same for MySQL, `--only failover` how long nothing can be written, `--only slow-neighbour` quick reads beside slow ones, `--only workers` wake-ups a transaction, `--only calls` system calls a transaction, `--only scale` how the cost of a read grows, `--only lanes` shared server connections before servers of several kinds, `--only tikv` timestamps of PD: each in tables of their own.",
    )
    what = top.add_argument_group("what runs")
    on = top.add_argument_group("on what")
    later = top.add_argument_group("from a result that is there, without measuring (JSON: default the latest)")

    def option(group, name, text, **more):
        group.add_argument(name, help=text, **more)

    option(
        what,
        "--quick",
        "direct, kingpost, pgbouncer; -S simple and prepared at 64 clients; under two minutes",
        action="store_true",
    )
    text = "cases: globs, or a beginning (select, select/simple)"
    option(what, "--only", text, type=_list, default=[], metavar="CASE,…")
    text = "targets (globs): direct, kingpost, kingpost-split, pgbouncer, haproxy, haproxy-3, …"
    option(what, "--targets", text, type=_list, default=[], metavar="NAME,…")
    text = f"pgbench's clients (default {','.join(map(str, plan.CLIENTS))})"
    option(what, "--clients", text, type=_numbers, metavar="N,…")
    text = "length of a run after its warm-up of a second (default 8, quick 3)"
    option(what, "--seconds", text, type=_positive, metavar="S")
    text = "of every case, the order rotated (default 3)"
    option(what, "--repetitions", text, type=_positive, default=3, metavar="N")
    option(what, "--list", "print the cases and targets that would run, and end", action="store_true")

    binary = ROOT / "target/release/kingpost"
    text = "our binary (default target/release/kingpost)"
    option(on, "--kingpost", text, type=pathlib.Path, default=binary, metavar="FILE")
    text = "another binary of a peer, e.g. pgbouncer-1.25=FILE; may be repeated"
    option(on, "--peer", text, type=_peer, action="append", default=[], metavar="NAME=FILE")
    option(on, "--pool", "server connections a node (default 32)", type=_positive, default=32, metavar="N")
    text = "threads of a proxy that has threads (default: one a core)"
    option(on, "--workers", text, type=_positive, default=os.cpu_count() or 1, metavar="N")
    option(on, "--scale", "pgbench's scale (default 50, quick 10)", type=_positive, metavar="N")
    text = "rows in each of sysbench's 4 tables (default 100000)"
    option(on, "--table-size", text, type=_positive, default=100_000, metavar="N")
    option(on, "--jobs", "pgbench's threads (default 2)", type=_positive, default=2, metavar="N")
    text = "Unix sockets on both sides of direct, kingpost and pgbouncer, in place of TCP (pgbench's loads)"
    option(on, "--sockets", text, action="store_true")
    option(on, "--pg-bin", "PostgreSQL's programs (default: PATH, then Debian's newest)", metavar="DIR")
    text = "where temporary data goes (default: the system's)"
    option(on, "--dir", text, type=pathlib.Path, metavar="DIR")

    text = "print the table; write .md and .svg again"
    option(later, "--table", text, nargs="?", const="", metavar="JSON")
    text = "put the table and the plot into bench/results/proxy.md"
    option(later, "--write-page", text, nargs="?", const="", metavar="JSON")
    return top


def main(arguments=None):
    """Runs the command; returns its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    options = parser().parse_args(arguments)
    options.command = "bench/run " + " ".join(_without_paths(sys.argv[1:] if arguments is None else arguments))
    try:
        if options.table is not None or options.write_page is not None:
            return render(options)
        return measure(options)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; everything started has been ended", file=sys.stderr)
        return 130


# What `--only` runs with targets and tables of its own.
OF_THEIR_OWN = {
    "relay": "what a relay costs",
    **{load: ", ".join(arms) for load, arms in gate.ARMS.items()},
    "strong": ", ".join(strong.ARMS),
    "failover": ", ".join(unavailable.ARMS),
    "binlog": ", ".join(binlog.ARMS),
    "mysql": ", ".join(binlog.MYSQL_ARMS),
    "receivers": ", ".join(binlog.FEEDS),
    "slow-neighbour": "direct, kingpost, pgbouncer-*",
    "workers": "kingpost, kingpost-*",
    "calls": "kingpost, kingpost-*, pgbouncer-*",
    "scale": "kingpost, kingpost-*, pgbouncer-*",
    "lanes": ", ".join(lanes.ARMS),
    "tikv": ", ".join(tikv.ARMS),
}


# Of these, those that have no cases: their names are all that `--only` says.
WITHOUT_CASES = {"slow-neighbour": neighbour, "workers": workers, "calls": calls, "scale": scale, "lanes": lanes}


def _only(options, families):
    """True if `--only` names cases, and each is of one of these families."""
    return bool(options.only) and all(case.partition("/")[0] in families for case in options.only)


def measure(options):
    """Plans and runs."""
    options.seconds = options.seconds or (3 if options.quick else 8)
    options.scale = options.scale or (10 if options.quick else 50)
    _interrupt_once()
    files = raise_open_file_limit()
    if options.list and _only(options, OF_THEIR_OWN):
        for case in options.only:
            print(f"{case}: {OF_THEIR_OWN[case.partition('/')[0]]}")
        return 0
    if _only(options, ["relay"]):
        return wal.run(options, OUT, say)
    if options.only == ["tikv"]:
        workspace = Workspace(options.dir)
        try:
            print("\n" + tikv.run(options, workspace, say, OUT))
        finally:
            workspace.remove()
        return 0
    pg_bin = None if _only(options, ["binlog", "mysql", "receivers"]) else find_bin(options.pg_bin)
    workspace = Workspace(options.dir)
    try:
        inventory = Inventory.look(workspace, options.kingpost, options.peer)
        if _only(options, gate.CLIENTS):
            return measure_table(gate, options, inventory, workspace, pg_bin)
        if _only(options, ["binlog", "mysql", "receivers"]):
            return measure_table(binlog, options, inventory, workspace, pg_bin)
        if options.only == ["strong"]:
            return measure_table(strong, options, inventory, workspace, pg_bin)
        if options.only == ["failover"]:
            return measure_table(unavailable, options, inventory, workspace, pg_bin)
        if len(options.only) == 1 and options.only[0] in WITHOUT_CASES:
            load = WITHOUT_CASES[options.only[0]]
            print("\n" + load.run(options, inventory, workspace, pg_bin, say, OUT))
            return 0
        for name, why in inventory.missing.items():
            say(f"without {name}: {why}")
        if not shutil.which("sysbench"):
            inventory.missing["sysbench"] = "not found on PATH"
            say("without sysbench: not found on PATH (Debian: apt install sysbench)")
        planned = make_plan(options, inventory, files)
        if not planned:
            raise BenchError("Nothing to run: no case matches --only and --targets, or no target is installed.")
        if options.list:
            for case in planned:
                print(f"{case.id}: {', '.join(target.name for target in case.targets)}")
            return 0
        OUT.mkdir(exist_ok=True)
        path = OUT / (time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + ".json")
        results = None

        def save(so_far):
            nonlocal results
            results = so_far
            part = path.with_suffix(".part")
            part.write_text(json.dumps(so_far, indent=1) + "\n")
            part.replace(path)

        try:
            execute(planned, inventory, workspace, pg_bin, options, say, save)
        finally:
            if results:
                save(results)
                write(results, path)
        print()
        print(report.markdown(results))
        say(f"written: {path.relative_to(ROOT)}, .md, .svg")
        return 0
    finally:
        workspace.remove()


def measure_table(part, options, inventory, workspace, pg_bin):
    """The commit gate, strong reads, or failovers: each has its own targets and tables."""
    if "kingpost" not in inventory.found:
        raise BenchError(f"there is nothing to measure: {inventory.missing.get('kingpost', 'kingpost is not built')}")
    print("\n" + part.run(options, inventory.found["kingpost"].binary, workspace, pg_bin, say, OUT))
    return 0


def make_plan(options, inventory, files):
    """The cases that the options and this machine allow."""
    clients = options.clients or (plan.CLIENTS if not options.quick else (64,))
    planned = plan.cases(list(inventory.found), clients, lambda name: inventory.found[name].pools)
    only = options.only or (["select/simple", "select/prepared"] if options.quick else [])
    targets = options.targets or (["direct", "kingpost", "pgbouncer", "pgbouncer-*"] if options.quick else [])
    chosen = plan.choose(planned, only, targets)
    if "sysbench" in inventory.missing:
        chosen = [case for case in chosen if case.family != "sysbench"]
    allowed = []
    for case in chosen:
        if case.clients + SPARE_FILES > files:
            say(f"without {case.id}: it needs more open files than the hard limit of {files} (ulimit -Hn)")
        else:
            allowed.append(case)
    return allowed


def render(options):
    """`--table` and `--write-page`."""
    given = options.write_page if options.write_page is not None else options.table
    path = pathlib.Path(given) if given else latest()
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise BenchError(f"{path}: {error}") from None
    write(results, path)
    if options.table is not None:
        print(report.markdown(results))
    if options.write_page is not None:
        PAGE_PLOT.write_text(plot.svg(results))
        shown = report.markdown(results, level=3, plot=PAGE_PLOT.name)
        PAGE.write_text(report.into_page(PAGE.read_text(), shown))
        say(f"{PAGE.relative_to(ROOT)} shows {path.name}")
    return 0


def latest():
    """The newest result."""
    found = sorted(OUT.glob("*.json"))
    if not found:
        raise BenchError(f"No result in {OUT.relative_to(ROOT)}: run bench/run first, or name a JSON file.")
    return found[-1]


def write(results, path):
    """The Markdown and the plot beside the JSON."""
    path.with_suffix(".svg").write_text(plot.svg(results))
    path.with_suffix(".md").write_text(report.markdown(results, plot=path.with_suffix(".svg").name) + "\n")


def say(text):
    """A line of progress, on stderr: stdout is for the table."""
    print(text, file=sys.stderr, flush=True)


def _interrupt_once():
    """The first signal ends the benchmark; cleaning up is not interrupted by a second."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(_number, _frame):
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in signals:
        signal.signal(number, interrupt)


def _without_paths(arguments):
    """The command as others can repeat it: directories are this machine's own business."""
    return [word[: word.rfind("=") + 1] + "…" if _is_path(word) else word for word in arguments]


def _is_path(word):
    return word.rpartition("=")[2].startswith(("/", "./", "../", "~"))


def _list(text):
    return [word.strip() for word in text.split(",") if word.strip()]


def _positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _numbers(text):
    return tuple(_positive(word) for word in _list(text))


def _peer(text):
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError("NAME=FILE, for example pgbouncer-1.25=/opt/pgbouncer/bin/pgbouncer")
    return name, path
