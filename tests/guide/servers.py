"""PostgreSQL servers of a world: each at the address and port that pages name, as PostgreSQL's user."""

import contextlib
import os
import pathlib
import pwd
import subprocess
from collections.abc import Iterator

from worlds import HOSTS, PASSWORD, Failed, Inside, World, as_user, plain

RULES = "local all all trust\nhost all kingpost all trust\nhost all postgres all trust\nhost replication postgres all trust\nhost all all all scram-sha-256\nhost replication all all scram-sha-256\n"


def owned(path: pathlib.Path, mode: int = 0o600) -> None:
    """Gives a file or directory to PostgreSQL's user."""
    user = pwd.getpwnam("postgres")
    os.chown(path, user.pw_uid, user.pw_gid)
    path.chmod(mode)


class Server:
    """A server, by the name of its host: db1, …"""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.data = world, name, world.directory / name

    def program(self, *words: str) -> None:
        """One of PostgreSQL's programs, as PostgreSQL's user. What it starts finds `kingpost`, and the user's .pgpass."""
        command = [*as_user("postgres"), str(self.world.inside.pg_bin / words[0]), *words[1:]]
        ran = subprocess.run(command, capture_output=True, text=True, cwd="/", env=self.world.environment, check=False)
        if ran.returncode:
            raise Failed(f"{' '.join(words)}: {ran.stdout}{ran.stderr}{self.log()}")

    def log(self) -> str:
        file = self.data / "server.log"
        return file.read_text()[-3000:] if file.exists() else ""

    def _empty(self) -> None:
        self.data.mkdir(mode=0o700)
        owned(self.data, 0o700)

    def init(self, *more: str) -> None:
        self._empty()
        self.program("initdb", "-D", str(self.data), "-A", "trust", "-U", "postgres", "--no-sync", *more)
        (self.data / "pg_hba.conf").write_text(RULES)

    def copy(self, of: "Server", *more: str) -> None:
        """A base backup of another one."""
        self._empty()
        self.program("pg_basebackup", "-D", str(self.data), "-h", of.name, "-U", "postgres", "-c", "fast", "--no-sync", *more)

    def signal_file(self, name: str) -> None:
        (self.data / name).touch()
        owned(self.data / name)

    def configure(self, text: str) -> None:
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(text)

    def start(self) -> None:
        options = f"-c listen_addresses={HOSTS[self.name]} -c port=5432 -c unix_socket_directories='' -c fsync=off"
        self.program("pg_ctl", "-D", str(self.data), "-w", "-l", str(self.data / "server.log"), "-o", options, "start")

    def stop(self) -> None:
        if (self.data / "postmaster.pid").exists():
            with contextlib.suppress(Failed):
                self.program("pg_ctl", "-D", str(self.data), "-m", "immediate", "stop")

    def reload(self) -> None:
        self.program("pg_ctl", "-D", str(self.data), "reload")

    def sql(self, *statements: str) -> str:
        """What statements print, each in a transaction of its own."""
        words = " ".join(f'-c "{statement}"' for statement in statements)
        return self.world.shell(f"psql -XAtq -v ON_ERROR_STOP=1 -h {self.name} -U postgres {words}").strip()

    def says(self, statement: str, expected: str) -> bool:
        with contextlib.suppress(Failed):
            return self.sql(statement) == expected
        return False


@contextlib.contextmanager
def servers(inside: Inside, name: str) -> Iterator[World]:
    """A primary db1 and its replica db2, as the README's configuration has them, with a user `app` and one for probes."""
    with plain(inside, name) as world:
        db1, db2 = Server(world, "db1"), Server(world, "db2")
        try:
            db1.init()
            db1.start()
            db1.sql("create user kingpost", f"create user app password '{PASSWORD}'", "create database app owner app")
            db2.copy(db1, "-R", "-X", "stream")
            db2.start()
            yield world
        finally:
            world.end()
            db2.stop()
            db1.stop()
