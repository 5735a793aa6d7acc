"""What a page takes for granted, and how its blocks are run there."""

import contextlib
import dataclasses
import glob
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from pages import Block

# Longest wait for anything, in seconds.
SOON = 60
# How long a command may take to end; then it is killed. Whatever it leaves ends with the namespace of processes.
ENDS = 15
# Directories that are empty in here, whatever is there outside.
OWN = ["/etc/kingpost", "/var/lib/kingpost", "/run/kingpost", "/etc/pgbouncer", "/etc/pgcat", "/etc/pgdog", "/etc/pgpool2"]
# Hosts that pages name, each with an address of its own: two servers may have the same port. `relay` is the one of relay.md, which listens on loopback.
HOSTS = {name: f"10.0.0.{number}" for number, name in enumerate(["db1", "db2", "db3", "relay1", "relay2", "etcd1", "etcd2", "etcd3"], 1)} | {"relay": "127.0.0.1"}
PASSWORD = "of the guide"


class Failed(Exception):
    """What a block did is not what the page says."""


def expect(condition: bool, what: str) -> None:
    if not condition:
        raise Failed(what)


@dataclasses.dataclass
class Run:
    """How a block is run, and what must come of it."""

    # What a reader fills in, and with what: a text, or a function of the world.
    fills: dict[str, "str | Callable[[World], str]"] = dataclasses.field(default_factory=dict)
    # Blocks of SQL, and of words for a console: the command that they are typed into.
    into: str | None = None
    # Each line is a command of its own there.
    by_line: bool = False
    # Goes on running: the block is over when this is so.
    until: "Callable[[World], bool] | None" = None
    # What is looked at afterwards: it gets the world and what was printed, and raises Failed.
    check: "Callable[[World, str], None] | None" = None
    # The exit code.
    code: int = 0
    # Said again until it does: a page says so ("say it again a second later").
    again: bool = False
    # What has to be there before.
    before: "Callable[[World], None] | None" = None
    # What has to be so before the next line.
    between: "Callable[[World], None] | None" = None
    # Lines that go on running beside those behind them, by how they begin.
    beside: tuple[str, ...] = ()
    # Lines that another test runs, by how they begin, and where.
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    # Lines that the world does itself, whole: there is no service manager in here.
    done: "dict[str, Callable[[World], None]]" = dataclasses.field(default_factory=dict)
    # Who types it, if not root: the page says so.
    user: str | None = None
    # What is typed at a terminal, as often as asked for.
    typed: str | None = None
    # The block prints what is printed.
    printed: bool = False

    block: Block | None = None


class Inside:
    """The namespaces that all worlds share."""

    def __init__(self, place: pathlib.Path, binary: pathlib.Path, verbose: bool) -> None:
        self.place, self.verbose = place, verbose
        self.mounted: list[pathlib.Path] = []
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        for directory in OWN:
            # What to mount on, where a system lacks one. (Another world may be making it at the same time.)
            os.makedirs(directory, exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "kingpost-guide", directory], check=True)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for address in HOSTS.values():
            if not address.startswith("127."):
                subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
        hosts = place / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in HOSTS.items()))
        subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
        programs = place / "bin"
        programs.mkdir()
        for program in [binary, *binary.parent.glob("kingpost-*")]:
            if os.access(program, os.X_OK) and program.is_file() and "." not in program.name:
                # Not a link: servers, which are another user, need not get to where it points.
                self.mounted.append(programs / program.name)
                self.mounted[-1].touch()
                subprocess.run(["mount", "--bind", str(program), str(programs / program.name)], check=True)
        self.environment = {
            "PATH": f"{programs}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
            "HOME": str(place),
            "LANG": "C.UTF-8",
            "PGCONNECT_TIMEOUT": "10",
            "PAGER": "cat",
        }
        self.pg_bin = pathlib.Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda one: int(one.split("/")[4]))[-1])

    def close(self) -> None:
        """So that `place` can be removed."""
        for file in self.mounted:
            subprocess.run(["umount", "--lazy", str(file)], check=True)


class World:
    """A directory in which commands are run one after the other, and what runs beside them."""

    def __init__(self, inside: Inside, name: str) -> None:
        self.inside = inside
        self.directory = inside.place / name
        self.directory.mkdir()
        self.directory.chmod(0o755)
        self.environment = dict(inside.environment)
        self.beside: list[subprocess.Popen] = []
        self.outputs: list[pathlib.Path] = []

    # --- for tables ---

    def shell(self, command: str, text: str = "", code: int | None = 0, user: str | None = None) -> str:
        """What a command prints, to both outputs. The exit code must be `code`; None: any."""
        ran = subprocess.run(
            [*as_user(user), "bash", "-e", "-o", "pipefail", "-c", command],
            cwd=self.directory,
            env=self.environment,
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SOON,
            check=False,
        )
        if self.inside.verbose:
            print(f"$ {command}\n{ran.stdout}", flush=True)
        if code is not None and ran.returncode != code:
            raise Failed(f"exit code {ran.returncode} of {command!r}:\n{ran.stdout}")
        return ran.stdout

    def typed(self, command: str, answer: str) -> str:
        """What a command prints at a terminal of its own, where each line that ends as a question does is answered."""
        leader, follower = pty.openpty()
        ran = subprocess.Popen(["bash", "-c", command], cwd=self.directory, env=self.environment, stdin=follower, stdout=follower, stderr=follower, start_new_session=True)
        os.close(follower)
        said, answered = "", 0
        until = time.monotonic() + SOON
        # The end of a terminal is an error to whoever reads from it.
        with contextlib.suppress(OSError):
            while select.select([leader], [], [], max(0, until - time.monotonic()))[0]:
                said += os.read(leader, 4096).decode(errors="replace")
                if said[answered:].endswith(": "):
                    answered = len(said)
                    os.write(leader, f"{answer}\n".encode())
        os.close(leader)
        if ran.wait(ENDS):
            raise Failed(f"exit code {ran.returncode} of {command!r}:\n{said}")
        return said

    def start(self, command: str, user: str | None = None) -> subprocess.Popen:
        """A command that goes on running until the world ends."""
        output = self.directory / f"output-{len(self.beside)}.log"
        self.outputs.append(output)
        with output.open("wb") as file:
            # Ctrl-C goes to the command and what it has started in its session.
            process = subprocess.Popen(
                [*as_user(user), "bash", "-c", f"exec {command}"], cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        self.beside.append(process)
        return process

    def said(self) -> str:
        """What the command that was started last has printed so far."""
        return self.outputs[-1].read_text(errors="replace")

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + SOON
        while not condition():
            if time.monotonic() > until:
                said = self.said()[-3000:] if self.outputs else ""
                raise Failed(f"in {SOON} s it was not so that {what}\n{said}")
            time.sleep(0.05)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        file = self.directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def answers(self, command: str, expected: str = "") -> bool:
        """Whether a command succeeds, and prints `expected` somewhere."""
        with contextlib.suppress(Failed, subprocess.TimeoutExpired):
            return expected in self.shell(command)
        return False

    # --- for `run` ---

    def end(self) -> None:
        for process in reversed(self.beside):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(ENDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def as_user(user: str | None) -> list[str]:
    """What stands before a command for it to be this user's."""
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []


def listens(port: int, address: str = "127.0.0.1") -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
        return True
    return False


# === the worlds ===


@contextlib.contextmanager
def plain(inside: Inside, name: str) -> Iterator[World]:
    """Nothing is there but the binary."""
    world = World(inside, name)
    try:
        yield world
    finally:
        world.end()


# === running ===


def matches(said: str, printed: str) -> bool:
    """Whether `said` has, in their order, the printed lines: `…` stands for anything, also for lines, and seconds differ."""
    lines = [re.sub(r"\s+", " ", line.strip()) for line in said.splitlines()]
    at = 0
    for line in printed.splitlines():
        wanted = re.sub(r"\s+", " ", line.strip())
        if wanted in ("", "…"):
            continue
        # Times, and what is left out.
        parts = [re.escape(part) for part in re.split(r"…|(?<!\S)\d+\.\d(?= s )", wanted)]
        pattern = re.compile(".*".join(parts))
        while at < len(lines) and not pattern.fullmatch(lines[at]):
            at += 1
        if at == len(lines):
            return False
        at += 1
    return True


def commands_of(text: str) -> tuple[list[str], str]:
    """The commands of a block, and what it prints of their answers: with a `$` before commands the rest is printed, without one everything is typed."""
    lines = text.strip().splitlines()
    if any(line.startswith("$ ") for line in lines):
        return [line[2:] for line in lines if line.startswith("$ ")], "\n".join(line for line in lines if not line.startswith("$ "))
    commands, whole = [], ""
    for line in lines:
        whole += line
        if "<<'EOF'" in whole and line != "EOF" or line.endswith("\\") or re.split(r"\s# ", whole)[0].count("'") % 2:
            whole += "\n"
            continue
        commands.append(whole.strip())
        whole = ""
    return [*commands, whole] if whole else commands, ""


def filled(world: World, run: Run, text: str) -> str:
    for placeholder, value in run.fills.items():
        if placeholder not in text:
            continue
        text = text.replace(placeholder, value if isinstance(value, str) else value(world))
    return text


def one(world: World, run: Run) -> None:
    text = run.block.text
    if run.before:
        run.before(world)
    if run.into and not run.by_line:
        output = world.shell(filled(world, run, run.into), filled(world, run, text) + "\n", run.code)
    elif run.into:
        lines = text.strip().splitlines()
        output = "".join(world.shell(filled(world, run, run.into), filled(world, run, line), run.code) for line in lines)
    else:
        output = ""
        commands, printed = commands_of(text)
        for number, command in enumerate(commands):
            if number and run.between:
                run.between(world)
            if any(command.startswith(begin) for begin in run.left_out):
                continue
            if command in run.done:
                run.done[command](world)
                continue
            command = filled(world, run, command)
            if run.until or any(command.startswith(begin) for begin in run.beside):
                world.start(re.split(r"\s+# ", command)[0])
                if run.until:
                    world.wait("the page's command has come so far", lambda: run.until(world))
                    output += world.said()
            elif command.startswith("export "):
                # For whatever comes behind it, as in a reader's shell.
                name, _, _ = command.removeprefix("export ").partition("=")
                world.environment[name] = world.shell(f'{command}\nprintf %s "${name}"')
            elif run.typed is not None:
                output += world.typed(command, run.typed)
            elif run.again:
                world.wait(f"{command!r} succeeds", lambda command=command: world.answers(command))
            else:
                output += world.shell(command, code=run.code, user=run.user)
        if run.printed and not matches(output, printed):
            raise Failed(f"the page prints\n{printed}\nand the command printed\n{output}")
    if run.check:
        run.check(world, output)


def run(inside: Inside, kind: "Callable[[Inside, str], contextlib.AbstractContextManager[World]]", name: str, runs: list[Run]) -> int:
    """Runs blocks in a world of their own, in their order."""
    began = time.monotonic()
    with kind(inside, name) as world:
        for each in runs:
            try:
                since = time.monotonic()
                one(world, each)
                if inside.verbose:
                    print(f"guide: {each.block}: {time.monotonic() - since:.1f} s", flush=True)
            except (Failed, subprocess.TimeoutExpired, OSError) as why:
                sys.exit(f"guide: FAILED: {each.block}: {each.block.first}\n{why}")
    print(f"guide: {len(runs)} blocks in the world {name}: {time.monotonic() - began:.0f} s", flush=True)
    shutil.rmtree(world.directory, ignore_errors=True)
    return len(runs)
