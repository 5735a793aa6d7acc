"""What blocks about the README's own servers need, and what comes of them."""

import os
import pathlib

from pages import ROOT
from worlds import PASSWORD, World, expect


def first_toml(page: pathlib.Path) -> str:
    return page.read_text().split("```toml\n")[1].split("```")[0]


def own_servers(world: World) -> None:
    world.write("kingpost.toml", first_toml(ROOT / "README.md"))
    pathlib.Path("/etc/kingpost/app.password").write_text(PASSWORD + "\n")
    os.chmod("/etc/kingpost/app.password", 0o600)


APP = f"PGPASSWORD='{PASSWORD}' psql -h 127.0.0.1 -p 6432 -U app app -At -v ON_ERROR_STOP=1"


def serves_app(world: World) -> bool:
    return world.answers(f"{APP} -c 'select 1'", "1")


def is_reloaded(world: World, output: str) -> None:
    """SIGHUP drops no client."""
    pid = world.beside[-1].pid
    told = world.shell(f"{APP} -c 'select 1' -c '\\! kill -HUP {pid}' -c 'select 2'")
    expect(told.split() == ["1", "2"], told)


def with_upgrade_socket(world: World) -> None:
    own_servers(world)
    text = (world.directory / "kingpost.toml").read_text()
    world.write("kingpost.toml", text.replace("[proxy]\n", '[proxy]\nupgrade_socket = "/run/kingpost/upgrade.sock"\n', 1))
    world.start("kingpost proxy --config kingpost.toml")
    world.wait("the proxy serves", lambda: serves_app(world) and os.path.exists("/run/kingpost/upgrade.sock"))
    world.old = world.beside[-1]


def old_pid(world: World) -> str:
    return str(world.old.pid)


def successor_serves(world: World) -> None:
    world.wait("the old process has ended, and the one that it has started serves", lambda: world.old.poll() is not None and serves_app(world))


def was_taken_over(world: World, output: str) -> None:
    world.wait("the process that was started by hand serves", lambda: "has taken over" in world.said() and serves_app(world))


def with_profiles(world: World) -> None:
    own_servers(world)
    world.write("kingpost.toml", (world.directory / "kingpost.toml").read_text() + '\n[metrics]\nprofiler_token = "of-the-guide-and-long"\n')
    world.start("kingpost proxy --config kingpost.toml")
    world.wait("the proxy serves", lambda: serves_app(world))


def has_profiles(world: World, output: str) -> None:
    expect((world.directory / "cpu.pb.gz").read_bytes()[:2] == b"\x1f\x8b", "cpu.pb.gz is not compressed")
    expect("<svg" in (world.directory / "flame.svg").read_text(), "flame.svg is no picture")
