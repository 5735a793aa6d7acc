"""Configurations that are wrong on purpose, and pieces of configurations."""

from worlds import World


def wrong_configuration(world: World) -> None:
    world.write("kingpost.toml", '[proxy]\nauth = "trust"\n\nwrokers = 3\n\n\n\n[proxy.pool]\nsize = "many"\n[[cluster.nodes]]\nname = "a"\naddress = "db1:5432"\n')
    world.environment["KINGPOST__LOG__FORMAT"] = "xml"


def is_right_again(world: World, output: str) -> None:
    del world.environment["KINGPOST__LOG__FORMAT"]
