"""What blocks about the registry need, and what comes of them."""

import json

from worlds import World, expect, listens


def registry_configuration(world: World) -> None:
    world.write(
        "kingpost.toml",
        f'[registry]\nauth = "none"\nstore = "sqlite:{world.directory}/registry.sqlite"\nlisten = "127.0.0.1:8632"\nconsul_listen = "127.0.0.1:8500"\n[registry.dns]\nlisten = "127.0.0.1:8600"\n',
    )


def registry_listens(world: World) -> None:
    world.wait("the registry listens", lambda: listens(8632))


def is_registered(world: World, output: str) -> None:
    world.wait("the stream tells of the instance", lambda: '"host":"10.0.0.1","port":8080' in world.said())
    expect("10.0.0.1" in world.shell("kingpost registry ls shop"), "not in the list")


def polaris_took_it(world: World, output: str) -> None:
    expect('"code":200000' in output.replace(" ", ""), output)


def polaris_has_it(world: World, output: str) -> None:
    polaris_took_it(world, output)
    expect("10.0.0.1" in output, output)


def dns_answers(world: World, output: str) -> None:
    expect("10.0.0.1\n" in output and "8080 0a000001.addr.consul." in output, output)


def bootstrap_is_json(world: World, output: str) -> None:
    expect(json.loads((world.directory / "bootstrap.json").read_text())["node"]["id"] == "checkout-1", "bootstrap.json")
