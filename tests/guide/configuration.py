"""Configurations that are wrong on purpose, and pieces of configurations, which `kingpost check` accepts once the rest of a file is around them."""

import pathlib
import re

from worlds import Run, World, expect

ETC = pathlib.Path("/etc/kingpost")
USERS = '[[proxy.users]]\nname = "app"\npassword = "a word"\n'
NODES = '[[cluster.nodes]]\nname = "a"\naddress = "10.0.0.1:5432"\n'
TLS = f'[proxy.tls]\nmode = "require"\ncert_file = "{ETC}/proxy.crt"\nkey_file = "{ETC}/proxy.key"\n'
OAUTH = '[proxy.oauth]\naudience = ["kingpost"]\n'
# A file of rules, and one of name maps, as [proxy] names them.
RULES, MAPS = f"{ETC}/hba.conf", f"{ETC}/ident.conf"
WITH_RULES = f'[proxy]\nhba_file = "{RULES}"\nident_file = "{MAPS}"\n'


def wrong_configuration(world: World) -> None:
    world.write("kingpost.toml", '[proxy]\nauth = "trust"\n\nwrokers = 3\n\n\n\n[proxy.pool]\nsize = "many"\n[[cluster.nodes]]\nname = "a"\naddress = "db1:5432"\n')
    world.environment["KINGPOST__LOG__FORMAT"] = "xml"


def is_right_again(world: World, output: str) -> None:
    del world.environment["KINGPOST__LOG__FORMAT"]


def is_good(world: World, output: str) -> None:
    # A piece need not have the probes' password.
    warnings = [line for line in output.splitlines() if "warning" in line and ".password: missing: probes" not in line]
    expect("kingpost.toml: good" in output and not warnings, output)


def around(world: World, rest: str) -> None:
    for file, text in [("app.password", "a word\n"), ("rds-token", "#!/bin/sh\necho word\n"), ("hba.conf", ""), ("ident.conf", "corp x app\n")]:
        (ETC / file).write_text(text)
        (ETC / file).chmod(0o755 if file == "rds-token" else 0o600)
    if not (ETC / "proxy.key").exists():
        request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=proxy -addext subjectAltName=DNS:proxy"
        world.shell(f"{request} -keyout {ETC}/proxy.key -out {ETC}/proxy.crt 2>&1")
    world.write("rest.toml", rest)


def piece(rest: str, **more) -> Run:
    """A piece of a configuration, and what has to stand behind it."""
    return Run(before=lambda world: around(world, rest), into="cat - rest.toml > kingpost.toml; kingpost check", check=is_good, **more)


def rule(rest: str) -> Run:
    """A line of `hba_file`. The rest of the configuration has everything that its method needs."""
    return Run(before=lambda world: around(world, WITH_RULES + USERS + NODES + TLS + rest), into=f"cat > {RULES}; cp rest.toml kingpost.toml; kingpost check", check=is_good)


def name_maps() -> Run:
    """The file of name maps, with a rule that looks into the map. A name without a map in it is refused, so it has to be read."""

    def before(world: World) -> None:
        around(world, WITH_RULES + USERS + NODES + TLS.replace("[proxy.tls]\n", f'[proxy.tls]\nca_file = "{ETC}/proxy.crt"\nclient_cert = "verify-full"\n'))
        pathlib.Path(RULES).write_text("hostssl all all 10.0.0.0/8 cert map=corp\n")

    return Run(before=before, into=f"cat > {MAPS}; cp rest.toml kingpost.toml; kingpost check", check=is_good)


def variables() -> Run:
    """Variables, in place of what the file lacks: it has no server."""
    return Run(before=lambda world: around(world, USERS), fills={"…": "a-word"}, into="{ sed 's/^/export /'; echo 'cp rest.toml kingpost.toml; kingpost check'; } | bash -e", check=is_good)


def has_flags(world: World, output: str) -> None:
    """`output` is the forms of commands: --help has each flag."""
    for line in output.strip().splitlines():
        command = line.split("[")[0].strip()
        helped = world.shell(f"{command} --help")
        lacking = [flag for flag in re.findall(r"--[a-z-]+", line) if not re.search(rf"(?<![\w-]){flag}(?![\w-])", helped)]
        expect(not lacking, f"{command} has no {lacking}")
