"""psycopg 3's own tests, directly and through Kingpost: what is compared is each test's outcome."""

import shutil
import subprocess
import sys
from xml.etree import ElementTree

import fleet
import sources

LIMIT = 2400
# Not about a server that somebody connects to; or about a moment (timing), a second server or a proxy of its own (crdb, dns, gevent).
LEFT_OUT = "not slow and not timing and not crdb and not mypy and not subprocess and not gevent"
PID = "the process id that a client is told is the proxy's, not the server's"
NAMES = "pg_prepared_statements shows the proxy's statements, which clients share"
RACE = "the test's own forwarder ends while the answer is on its way: either may win, here as on a direct connection"
# Tests that give something else through Kingpost, also in session mode, and why.
KNOWN = {
    "test_notify": PID,
    "test_notify_handlers": PID,
    "test_broken": PID,
    "test_right_exception_on_server_disconnect": PID,
    "test_context_inerror_rollback_no_clobber": PID,
    "test_wait_remote_closed": RACE,
    "test_evict_lru_deallocate": NAMES,
    "test_no_prepare_multi_with_drop": NAMES,
}


def known(name):
    """Why a test gives something else, if that is known."""
    return KNOWN.get(name.rpartition("::")[2].partition("[")[0])


def prepare(arguments, cache):
    if arguments.psycopg_source:
        source = arguments.psycopg_source.resolve()
        if not (source / "tests").is_dir():
            raise sources.Missing(f"{source} has no directory tests")
    else:
        source = sources.source_package("psycopg3", None, cache)
    text = next(path for path in (source / "psycopg/pyproject.toml", source / "psycopg/setup.cfg") if path.exists()).read_text()
    text += (source / "psycopg/psycopg/version.py").read_text() if (source / "psycopg/psycopg/version.py").exists() else ""
    return source, version_in(text)


def version_in(text):
    """The version that these tests belong to, without what marks a development version."""
    for line in text.splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("version", "__version__") and value.strip(" \"'")[:1].isdigit():
            return value.strip(" \"'")
    raise sources.Missing("the version of psycopg in its sources is not where it used to be")


def environment(version, cache):
    """A Python environment with that version of psycopg, and what its tests need."""
    there = cache / f"psycopg-{version}-venv"
    if (there / "done").exists():
        return there / "bin/python"
    shutil.rmtree(there, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", there], check=True)
    wanted = [f"psycopg[binary]=={version.split('.dev')[0]}", "psycopg-pool", "pytest<9", "anyio", "pproxy"]
    subprocess.run([there / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)
    (there / "done").touch()
    return there / "bin/python"


def outcomes(report):
    """Outcome of each test by name, from JUnit's form."""
    seen = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        seen[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return seen


def run(python, source, directory, port, only=None):
    directory.mkdir(parents=True, exist_ok=True)
    report = directory / "report.xml"
    report.unlink(missing_ok=True)
    dsn = f"host=127.0.0.1 port={port} user=postgres dbname=psycopg_test"
    # psycopg makes errors of warnings; pytest 8 warns of what 9 will refuse.
    command = [python, "-m", "pytest", "-q", "-W", "ignore::pytest.PytestDeprecationWarning", "-m", LEFT_OUT, f"--junitxml={report}", f"--test-dsn={dsn}", "--tb=short"]
    command += [f"--ignore={source / 'tests' / name}" for name in ("pool", "crdb", "test_dns.py", "test_dns_srv.py", "test_typing.py")]
    command += only or [str(source / "tests")]
    with open(directory / "pytest.log", "w") as out:
        subprocess.run(command, cwd=source, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=LIMIT)
    if not report.exists():
        raise SystemExit(f"pytest did not end well: {directory / 'pytest.log'}")
    return outcomes(report)


def suite(arguments, cache):
    source, version = prepare(arguments, cache)
    python = environment(version, cache)
    # The tests write beside themselves.
    copy = cache / "out/psycopg/tests-of-it"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns(".git"))
    # Its own package in the sources would come before the installed one.
    for name in ("psycopg", "psycopg_c", "psycopg_pool"):
        if (copy / name).is_dir():
            (copy / name).rename(copy / f"{name}_sources")
    _, programs, _ = sources.installed_postgresql()
    out = cache / "out/psycopg"

    def once(mode):
        settings = {"max_prepared_transactions": 10}
        with fleet.postgresql(programs, out / "server", settings.items()) as server:
            admin = [programs / "psql", "-X", "-q", "-h", "127.0.0.1", "-p", str(server), "-U", "postgres"]
            subprocess.run([*admin, "-c", "CREATE DATABASE psycopg_test"], check=True)
            if mode is None:
                return run(python, copy, out / "direct", server)
            with fleet.kingpost(arguments.binary, out / "server", server, mode) as port:
                return run(python, copy, out / mode, port)

    print(f"psycopg {version}: its tests, directly", flush=True)
    direct = once(None)
    passing = {name for name, outcome in direct.items() if outcome == "passed"}
    print(f"  {len(passing)} of {len(direct)} pass", flush=True)
    if 2 * len(passing) < len(direct):
        raise SystemExit(f"most fail without Kingpost: its sources and what was installed do not fit: {out / 'direct/pytest.log'}")
    good = True
    for mode in arguments.modes:
        through = once(mode)
        lost = sorted(name for name in passing if through.get(name) != "passed")
        explained = sum(known(name) is not None for name in lost)
        print(
            f"psycopg {version}, {mode} mode: {len(passing) - len(lost)} of the {len(passing)} tests pass that pass directly; "
            f"{explained} of the others for a known reason",
            flush=True,
        )
        for name in lost:
            print(f"  {through.get(name, 'not run')}: {name}: {known(name) or 'see ' + str(out / mode / 'pytest.log')}")
        if mode == "session" and explained < len(lost):
            good = False
    return good
