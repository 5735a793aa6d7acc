"""The suites: where each comes from, what it needs of a server, and how it is run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from psycopg_suite import outcomes as junit
from sources import Missing

# Seconds: for a download, and for one run of a suite.
FETCH = 600
RUN = 1200
# Runs of a suite in which a test panics.
ATTEMPTS = 3


def fetch(*command, **more):
    """Runs a registry's client."""
    if shutil.which(command[0]) is None:
        raise Missing(f"{command[0]} is not installed")
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH, **more)
    except subprocess.TimeoutExpired:
        raise Missing(f"{' '.join(map(str, command[:3]))} took longer than {FETCH} s") from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Missing(f"{' '.join(map(str, command[:3]))}: {lines[-1] if lines else done.returncode}")
    return done.stdout


def bounded(command, log, **more):
    """Runs a suite, and ends it when its time is over: what it has not answered then counts as not run."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, **more)
    try:
        process.wait(RUN)
    except subprocess.TimeoutExpired:
        print(f"  ended after {RUN} s: {log.name}", flush=True)
    finally:
        # The tests are processes of their own below `go test`.
        subprocess.run(["pkill", "-KILL", "-s", str(process.pid)])
        process.wait()


def psql(programs, port, *statements, database="postgres"):
    """Runs statements as the superuser, each by itself."""
    command = [programs / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-d", database]
    subprocess.run([*command, *(text for statement in statements for text in ("-c", statement))], check=True, stdout=subprocess.DEVNULL)


def clean_environment(**more):
    """This environment without what would lead a suite to another server."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PG", "PSYCOPG"))} | more


class GoSuite:
    """The tests of a Go module, which the module proxy has with it."""

    MODULE = VERSION = ""
    SETTINGS = {"max_prepared_transactions": 10}
    # Those that talk to a server.
    PACKAGES = ()
    LEFT_OUT = ""

    def __init__(self, cache):
        if shutil.which("go") is None:
            raise Missing("Go is not installed")
        self.environment = clean_environment(
            GOMODCACHE=str(cache.parent / "go/modules"), GOCACHE=str(cache.parent / "go/built"), GOFLAGS="-modcacherw", GOTOOLCHAIN="local"
        )
        self.source = cache
        if not (cache / "complete").exists() or (cache / "complete").read_text() != self.VERSION:
            shutil.rmtree(cache, ignore_errors=True)
            said = fetch("go", "mod", "download", "-json", f"{self.MODULE}@{self.VERSION}", env=self.environment, cwd=cache.parent)
            # The tests write beside themselves.
            shutil.copytree(json.loads(said)["Dir"], cache)
            self.built()
            (cache / "complete").write_text(self.VERSION)

    def built(self):
        """Downloads what the tests need, and compiles them."""
        fetch("go", "test", "-exec=true", *self.PACKAGES, env=self.environment, cwd=self.source)

    def of_port(self, port):
        """Returns the environment that leads the tests to a port."""
        raise NotImplementedError

    def only(self, tests):
        """Returns what `run` takes for these tests alone."""
        return f"^({'|'.join(sorted({test.rpartition(':')[2].partition('/')[0] for test in tests}))})$"

    def run(self, port, directory, only):
        """Returns the outcome of each test by name."""
        for _ in range(ATTEMPTS):
            # One that panics takes those with it that have not run yet.
            if not (text := self.once(port, directory, only)).count('"Output":"panic: '):
                break
        return self.outcomes(text)

    def once(self, port, directory, only):
        """Runs the tests. Returns Go's report, an event a line."""
        command = ["go", "test", "-json", "-count=1", "-p=1", f"-timeout={RUN - 30}s"]
        command += [f"-run={only}"] if only else []
        command += [f"-skip={self.LEFT_OUT}"] if self.LEFT_OUT else []
        with open(directory / "tests.json", "w") as log:
            bounded([*command, *self.PACKAGES], log, cwd=self.source, env=self.environment | self.of_port(port))
        return (directory / "tests.json").read_text()

    def outcomes(self, text):
        seen = {}
        for line in text.splitlines():
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if "Test" in event and event["Action"] in ("pass", "fail", "skip"):
                package = event["Package"].removeprefix(self.MODULE).strip("/")
                # Names of some tests have a temporary directory in them.
                test = re.sub(r"/tmp/[^']*", "/tmp", event["Test"])
                outcome = {"pass": "passed", "fail": "failed", "skip": "skipped"}[event["Action"]]
                seen[f"{package}:{test}".lstrip(":")] = outcome
        return seen


class Pgx(GoSuite):
    MODULE, VERSION = "github.com/jackc/pgx/v5", "v5.13.0"
    PACKAGES = (".", "./pgconn", "./pgtype", "./pgxpool", "./stdlib")

    def set_up(self, programs, server):
        psql(programs, server, "CREATE DATABASE pgx_test")
        psql(
            programs, server, "CREATE EXTENSION hstore", "CREATE EXTENSION ltree", "CREATE DOMAIN uint64 AS numeric(20,0)",
            """CREATE USER " tricky, ' } "" \\ test user " SUPERUSER PASSWORD 'secret'""", database="pgx_test",
        )

    def of_port(self, port):
        return {"PGX_TEST_DATABASE": f"host=127.0.0.1 port={port} user=postgres dbname=pgx_test"}


class Pq(GoSuite):
    MODULE, VERSION = "github.com/lib/pq", "v1.12.3"
    PACKAGES = (".", "./hstore")
    # They need a server with that module's certificates.
    LEFT_OUT = "SSL"

    def set_up(self, programs, server):
        psql(programs, server, "CREATE USER pqgo SUPERUSER", "CREATE DATABASE pqgo OWNER pqgo")
        psql(programs, server, "CREATE EXTENSION hstore", database="pqgo")

    def of_port(self, port):
        return {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "pqgo", "PGDATABASE": "pqgo", "PGSSLMODE": "disable"}


class PythonSuite:
    """The tests in a source distribution, with the same version of the package from a wheel."""

    NAME = VERSION = WHEEL = ""
    FURTHER = ()
    SETTINGS = {"max_prepared_transactions": 10}
    LEFT_OUT = ()

    def __init__(self, cache):
        self.python, self.source = cache / "venv/bin/python", cache / f"{self.NAME}-{self.VERSION}"
        if (cache / "complete").exists() and (cache / "complete").read_text() == self.VERSION:
            return
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        fetch(sys.executable, "-m", "venv", cache / "venv")
        pip = (self.python, "-m", "pip", "--quiet", "--disable-pip-version-check")
        # pip asks a source distribution for its dependencies; psycopg2's then looks for pg_config.
        programs = [str(path.parent) for path in Path("/usr/lib/postgresql").glob("*/bin/pg_config")]
        path = os.pathsep.join([os.environ["PATH"], *programs])
        source = (f"--no-binary={self.NAME}", f"--dest={cache}", f"{self.NAME}=={self.VERSION}")
        fetch(*pip, "download", "--no-deps", *source, env=os.environ | {"PATH": path})
        fetch("tar", "-xzf", next(cache.glob("*.tar.gz")), "-C", cache)
        fetch(*pip, "install", "--only-binary=:all:", f"{self.WHEEL}=={self.VERSION}", "pytest<9", *self.FURTHER)
        # Its own package in the sources would come before the installed one.
        if (self.source / self.NAME).is_dir():
            (self.source / self.NAME).rename(self.source / f"{self.NAME}_sources")
        (cache / "complete").write_text(self.VERSION)

    def of_port(self, port):
        """Returns the environment that leads the tests to a port."""
        raise NotImplementedError

    def only(self, tests):
        """Returns what `run` takes for these tests alone."""
        return " or ".join(sorted({test.rpartition("::")[2].partition("[")[0] for test in tests}))

    def run(self, port, directory, only):
        """Returns the outcome of each test by name."""
        report = directory / "report.xml"
        command = [self.python, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", f"--junitxml={report}", "tests"]
        command += [f"--ignore=tests/{name}" for name in self.LEFT_OUT]
        command += ["-k", only] if only else []
        with open(directory / "pytest.log", "w") as log:
            bounded(command, log, cwd=self.source, env=clean_environment(**self.of_port(port)))
        if not report.exists():
            raise SystemExit(f"{self.NAME}: pytest did not end well: {directory / 'pytest.log'}")
        return {test.removeprefix("tests."): outcome for test, outcome in junit(report).items()}


class Asyncpg(PythonSuite):
    NAME = WHEEL = "asyncpg"
    VERSION, FURTHER = "0.32.0", ("distro",)
    # The style of its sources.
    LEFT_OUT = ("test__sourcecode.py",)

    def set_up(self, programs, server):
        pass

    def of_port(self, port):
        return {"PGHOST": "127.0.0.1", "PGPORT": str(port), "PGUSER": "postgres", "PGDATABASE": "postgres"}


class Psycopg2(PythonSuite):
    NAME, WHEEL, VERSION = "psycopg2", "psycopg2-binary", "2.9.13"

    def set_up(self, programs, server):
        psql(programs, server, "CREATE DATABASE psycopg2_test")
        psql(programs, server, "CREATE EXTENSION hstore", database="psycopg2_test")

    def of_port(self, port):
        at = {"PSYCOPG2_TESTDB_HOST": "127.0.0.1", "PSYCOPG2_TESTDB_PORT": str(port), "PSYCOPG2_TESTDB_USER": "postgres"}
        return at | {"PSYCOPG2_TESTDB": "psycopg2_test"}


SUITES = {"pgx": Pgx, "pq": Pq, "asyncpg": Asyncpg, "psycopg2": Psycopg2}
