"""What comes of blocks about a local cluster (`kingpost up`)."""

import json
import re

from pages import ROOT
from worlds import World, expect


def nodes(world: World) -> list[dict]:
    return json.loads(world.shell("kingpost status --json"))["nodes"]


def primary(world: World) -> dict:
    found = [node for node in nodes(world) if node["role"] == "primary"]
    expect(len(found) == 1, f"there are {len(found)} primaries")
    return found[0]


def is_up(world: World) -> bool:
    return "self-check" in world.said() and world.answers("psql -h 127.0.0.1 -p 6432 -U postgres postgres -Atc 'select 1'", "1")


def has_shown_the_loss(world: World) -> bool:
    return "is a standby of" in world.said() and "it is the primary again" in world.said() and is_up(world)


PSQL = "psql -h 127.0.0.1 -p 6432 -U postgres postgres -At -v ON_ERROR_STOP=1"
CONSOLE = "psql -h 127.0.0.1 -p 6432 -U postgres kingpost -At -v ON_ERROR_STOP=1"


def has_the_row(world: World, output: str) -> None:
    expect("1|hello" in output.splitlines(), f"the row is not there: {output}")


def ran_where_it_says(world: World, output: str) -> None:
    ports = [int(line) for line in output.splitlines() if line.isdigit()]
    first = int(primary(world)["address"].rsplit(":", 1)[1])
    expect(len(ports) == 3 and ports[0] == ports[2] == first != ports[1], f"the primary listens on {first}, and statements ran on {ports}")


def reads_go_on(world: World, output: str) -> None:
    for _ in range(20):
        expect("1|hello" in world.shell(PSQL, "select * from notes").splitlines(), "a read has failed")


def node1_is_primary(world: World) -> None:
    world.former = primary(world)["name"]
    expect(world.former == "node1", f"the page loses node1, and {world.former} is primary")


def has_failed_over(world: World, output: str) -> None:
    world.shell(PSQL, "insert into notes (text) values ('after')")
    expect(primary(world)["name"] != world.former, "the primary is who it was")
    world.wait("the old primary is a replica", lambda: any(node["name"] == world.former and node["role"] == "replica" for node in nodes(world)))


def another_cluster(world: World) -> None:
    world.start("kingpost up")
    world.wait("the cluster is there", lambda: is_up(world))


def has_these_files(world: World, output: str) -> None:
    """`output` is the picture of the directory: a name, and what it is, in each line."""
    directory, *names = [line.split()[0] for line in output.strip().splitlines()]
    lacking = [name for name in names if not (world.directory / directory / name).exists()]
    expect(len(names) > 5 and not lacking, f"{directory} has no {lacking}")


def make(world: World) -> None:
    """What `make up` needs of the checkout. What it installs and builds is there already: scripts/setup and scripts/build-quickly are left out."""
    (world.directory / "Makefile").symlink_to(ROOT / "Makefile")
    for script in ["setup", "build-quickly"]:
        world.write(f"scripts/{script}", "#!/bin/sh\n", 0o755)
    (world.directory / "target/up").mkdir(parents=True)
    world.shell("ln -s $(command -v kingpost) target/up/kingpost")


def node1_leads_again(world: World, output: str) -> None:
    world.wait("node1 is primary", lambda: primary(world)["name"] == "node1")
    world.shell(PSQL, "create table after_all (id int)")


def is_answered(world: World, output: str) -> None:
    expect("kingpost_clients" in output, "no metrics")
    expect(output.splitlines()[-1] == "ok", f"/readyz: {output[-300:]}")


def has_no_rule(world: World, output: str) -> None:
    rules = world.shell(CONSOLE, "SHOW TRAFFIC")
    expect("bad-release" not in rules and "reports|operator" in rules and "search|operator" in rules, rules)


def local_mariadb(world: World) -> str:
    """The client as `kingpost up` prints it."""
    line = next(line for line in world.said().splitlines() if line.startswith("try"))
    return line.removeprefix("try").strip()


def has_variables(world: World, output: str) -> None:
    for name, value in (("rpl-semi-sync-master-timeout", "4294967295"), ("rpl-semi-sync-master-wait-no-slave", "TRUE"), ("rpl-semi-sync-master-wait-point", "AFTER_SYNC")):
        expect(re.search(rf"^{name}\s+{value}$", output, re.MULTILINE) is not None, f"{name} is not {value}")
