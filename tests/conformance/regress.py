"""PostgreSQL's regression tests, directly and through Kingpost: what is compared is each test's whole output."""

import re
import shutil
import subprocess

import fleet
import sources

# Far more than they take; a test that hangs must not hold everything up.
LIMIT = 1800
OUTLIVES = "a server connection outlives its client: "
# Tests that give something else behind any pool, also in session mode, and what they look at.
KNOWN = {
    "event_trigger_login": OUTLIVES + "`\\c` is not one more login of the server",
    "guc": OUTLIVES + "plpgsql is loaded already, so its settings are checked earlier",
    "psql": "servers know prepared statements by names of the proxy's own",
    "stats": OUTLIVES + "`\\c` is not one more session in pg_stat_database",
    "temp": OUTLIVES + "the namespace of temporary tables is there already",
}


def prepare(cache, bin_directory=None, source=None):
    """Sources, pg_regress and its library. Gives what a run needs. `bin_directory` has the programs of another PostgreSQL than the system's, and
    `source` a tree of its sources (src/test/regress, and src/include for the library)."""
    if bin_directory:
        return chosen(cache, bin_directory.resolve(), source)
    major, programs, version = sources.installed_postgresql()
    source = sources.source_package(f"postgresql-{major}", version, cache)
    dev = sources.binary_package(f"postgresql-server-dev-{major}", version, cache)
    # It comes with the client programs.
    pg_regress = programs.parent / "lib/pgxs/src/test/regress/pg_regress"
    if not pg_regress.exists():
        raise sources.Missing(f"{pg_regress} is not there: apt-get install postgresql-client-{major}")
    library = cache / f"regress-library-{version}"
    if not (library / "regress.so").exists():
        library.mkdir(parents=True, exist_ok=True)
        for name in ("autoinc.so", "refint.so"):
            shutil.copy(f"/usr/lib/postgresql/{major}/lib/{name}", library)
        include = dev / f"usr/include/postgresql/{major}/server"
        code = source / "src/test/regress/regress.c"
        command = ["cc", "-O1", "-fPIC", "-shared", "-w", "-I", include, "-o", library / "regress.so.new", code]
        subprocess.run(command, check=True)
        (library / "regress.so.new").rename(library / "regress.so")
    return {"version": version, "programs": programs, "source": source / "src/test/regress", "pg_regress": pg_regress, "library": library}


def chosen(cache, programs, source):
    """What a run needs, for the programs in a directory."""
    version = sources.output(programs / "postgres", "--version").split()[2]
    tests = (source or cache / f"postgresql-{version}").resolve() / "src/test/regress"
    modules, major = programs.parent / "lib", programs.parent.name
    include = programs.parents[3] / f"include/postgresql/{major}/server"
    # Those of tests/newest/setup are without headers, and beside the package lists that have them.
    lists = programs.parents[5] / "apt/apt.conf"
    if not include.exists() and lists.exists():
        dev = sources.binary_package(f"postgresql-server-dev-{major}", None, cache, {"APT_CONFIG": str(lists)})
        include = dev / f"usr/include/postgresql/{major}/server"
    pg_regress = modules / "pgxs/src/test/regress/pg_regress"
    for needed in (tests / "parallel_schedule", pg_regress, modules / "refint.so", include / "postgres.h"):
        if not needed.exists():
            raise sources.Missing(f"{needed} is not there (--postgresql-source names the sources)")
    library = cache / f"regress-library-{version}"
    shutil.rmtree(library, ignore_errors=True)
    library.mkdir(parents=True)
    for name in ("autoinc.so", "refint.so"):
        shutil.copy(modules / name, library)
    subprocess.run(["cc", "-O1", "-fPIC", "-shared", "-w", "-I", include, "-o", library / "regress.so", tests / "regress.c"], check=True)
    return {"version": version, "programs": programs, "source": tests, "pg_regress": pg_regress, "library": library}


def run(parts, directory, port, server):
    """All tests at `port`. Gives how PostgreSQL itself judges each, by name; the outputs are in `directory`/results."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    # The server reads and writes there too: it is a copy, and its user's.
    tests = directory / "tests"
    shutil.copytree(parts["source"], tests)
    shutil.copytree(parts["library"], directory / "library")
    fleet.give(directory)
    psql = [parts["programs"] / "psql", "-X", "-q", "-h", "127.0.0.1", "-p", str(server), "-U", "postgres", "-v", "ON_ERROR_STOP=1"]
    # What pg_regress does when it makes the database itself.
    settings = ["lc_messages TO 'C'", "lc_monetary TO 'C'", "lc_numeric TO 'C'", "lc_time TO 'C'", "bytea_output TO 'hex'", "timezone_abbreviations TO 'Default'"]
    make = ["CREATE DATABASE regression TEMPLATE template0", *(f"ALTER DATABASE regression SET {setting}" for setting in settings)]
    subprocess.run([*psql, *(text for sql in make for text in ("-c", sql)), "postgres"], check=True)
    command = [
        parts["pg_regress"], "--use-existing", f"--inputdir={tests}", f"--outputdir={directory}", f"--dlpath={directory / 'library'}",
        f"--bindir={parts['programs']}", "--host=127.0.0.1", f"--port={port}", "--user=postgres", "--dbname=regression",
        f"--schedule={tests / 'parallel_schedule'}", "--max-concurrent-tests=20",
    ]  # fmt: skip
    log = directory / "pg_regress.log"
    # It takes what it would start itself as a sign of a temporary installation.
    with open(log, "w") as out:
        subprocess.run(command, cwd=directory, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=LIMIT, **fleet.as_server())
    judged = dict(re.findall(r"(?m)^(?:test|)\s*([\w.]+)\s+\.\.\.\s+(ok|FAILED)", log.read_text()))
    if not judged:
        # PostgreSQL 16 and newer speak TAP.
        judged = {name: "ok" if verdict == "ok" else "FAILED" for verdict, name in re.findall(r"(?m)^(ok|not ok)\s+\d+\s+[-+]\s+(\w+)", log.read_text())}
    return judged


def differences(direct, other):
    """Names of the tests whose output is not the same in both directories, and of all."""
    names = sorted(path.stem for path in (direct / "results").glob("*.out"))
    differing = []
    for name in names:
        path = other / "results" / f"{name}.out"
        if not path.exists() or path.read_bytes() != (direct / "results" / f"{name}.out").read_bytes():
            differing.append(name)
    return differing, names
