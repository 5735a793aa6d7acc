"""What the suites come from: source packages of the system, unpacked below target/conformance. Nothing is installed."""

import os
import re
import shutil
import subprocess
from pathlib import Path


class Missing(Exception):
    """Something is not to be had here. The text says what, and what to do."""


def output(*command, **more):
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, **more).stdout


def installed_postgresql():
    """Major version of the newest PostgreSQL of the system's packages, its programs' directory, and the package's version."""
    majors = sorted(int(path.parts[-3]) for path in Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not majors or not shutil.which("dpkg-query"):
        raise Missing("needs PostgreSQL from Debian's or Ubuntu's packages: apt-get install postgresql")
    major = majors[-1]
    version = output("dpkg-query", "-W", "-f", "${Version}", f"postgresql-{major}")
    return major, Path(f"/usr/lib/postgresql/{major}/bin"), version


def _apt_options(directory):
    """apt as the system has it, but for source packages, and with its lists in a directory of ours."""
    parts = directory / "parts"
    for path in (parts, directory / "lists/partial", directory / "cache/archives/partial"):
        path.mkdir(parents=True, exist_ok=True)
    etc = Path("/etc/apt")
    for path in [*etc.glob("sources.list.d/*.sources")]:
        (parts / path.name).write_text(re.sub(r"(?m)^Types:.*$", "Types: deb-src", path.read_text()))
    lines = []
    for path in [etc / "sources.list", *etc.glob("sources.list.d/*.list")]:
        if path.exists():
            lines += re.findall(r"(?m)^deb\s.*$", path.read_text())
    (directory / "sources.list").write_text("\n".join(re.sub("^deb", "deb-src", line) for line in lines) + "\n")
    settings = {"Dir::Etc::SourceList": "sources.list", "Dir::Etc::SourceParts": "parts", "Dir::State::Lists": "lists", "Dir::Cache": "cache"}
    return [text for key, name in settings.items() for text in ("-o", f"{key}={directory / name}")]


def source_package(name, version, cache):
    """The upstream sources of a source package, unpacked; from the cache if they are there."""
    there = cache / f"{name}-{version or 'newest'}"
    if there.is_dir():
        return there
    for tool in ("apt-get", "tar"):
        if not shutil.which(tool):
            raise Missing(f"needs {tool}: the sources of {name} come from Debian's or Ubuntu's packages")
    options = _apt_options(cache / "apt")
    loading = cache / "loading"
    shutil.rmtree(loading, ignore_errors=True)
    loading.mkdir(parents=True)
    print(f"fetching the sources of {name} {version or ''}", flush=True)
    wanted = f"{name}={version}" if version else name
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    update = subprocess.run(["apt-get", *options, "-qq", "update"], **quiet)
    # Only the upstream part is of interest; apt stops at a part that is not there.
    fetched = subprocess.run(["apt-get", *options, "-qq", "source", "--download-only", wanted], cwd=loading, **quiet)
    found = [path for path in loading.glob("*.orig.tar.*") if path.suffix != ".asc"]
    if not found:
        said = (update.stderr + fetched.stderr).strip().splitlines()
        raise Missing(f"the sources of {wanted} cannot be had from the system's packages: " + re.sub(r"\S+://\S+/", "", " / ".join(said[-3:])))
    unpacked = loading / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "-xf", found[0], "-C", unpacked, "--strip-components=1", "--no-same-owner"], check=True)
    unpacked.rename(there)
    shutil.rmtree(loading)
    return there


def binary_package(name, version, cache, environment=None):
    """What a binary package contains, unpacked and not installed: the newest without a version."""
    there = cache / f"{name}-{version or 'newest'}"
    if there.is_dir():
        return there
    loading = cache / "loading"
    shutil.rmtree(loading, ignore_errors=True)
    loading.mkdir(parents=True)
    print(f"fetching the package {name} {version or ''}", flush=True)
    # apt's own user may not be able to write there.
    as_us = ["-o", "APT::Sandbox::User=root"]
    command = ["apt-get", *as_us, "-qq", "download", f"{name}={version}" if version else name]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    loaded = subprocess.run(command, cwd=loading, env={**os.environ, **(environment or {})}, **quiet)
    found = list(loading.glob("*.deb"))
    if not found:
        said = re.sub(r"\S+://\S+/", "", loaded.stderr.strip())
        raise Missing(f"the package {name} {version} cannot be had (apt-get update may help): {said}")
    unpacked = loading / "unpacked"
    subprocess.run(["dpkg", "-x", found[0], unpacked], check=True)
    unpacked.rename(there)
    shutil.rmtree(loading)
    return there
