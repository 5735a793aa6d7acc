"""What blocks about the registry need, and what comes of them."""

import json
import os
import pathlib
import shutil

import pages
from worlds import Failed, World, expect, listens

HERE = pathlib.Path(__file__).resolve().parent
# With grpcio, for what speaks gRPC.
PYTHON = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", pages.ROOT / "target")) / "clients/venv/bin/python"


def registry_configuration(world: World) -> None:
    if not PYTHON.exists():
        raise Failed(f"{PYTHON} is not there: tests/clients/setup")
    if not shutil.which("grpcurl"):
        world.write("grpcurl", f'#!/bin/sh\nexec {PYTHON} {HERE}/grpcurl "$@"\n', 0o755)
        world.environment["PATH"] = f"{world.directory}:{world.environment['PATH']}"
    world.write(
        "kingpost.toml",
        f"""[registry]
auth = "none"
store = "sqlite:{world.directory}/registry.sqlite"
listen = "127.0.0.1:8632"
[registry.dns]
listen = "127.0.0.1:8600"
[registry.audit]
file = "audit.jsonl"
""",
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


def a_client_finds_the_shop(world: World, output: str) -> None:
    said = world.shell(f"{PYTHON} {HERE}/xds_call.py")
    expect("the shop" in said, said)


def grpc_registered(world: World, output: str) -> None:
    expect('"outcome"' in output, output)
    world.wait("the stream begins with what there is", lambda: '"snapshot"' in world.said() and '"10.0.0.1"' in world.said())


def has_an_entry(world: World, output: str) -> None:
    expect('"content":"limit: 10"' in output and output.count('"id":"app.yaml"') == 3, output)


def has_a_version(world: World, output: str) -> None:
    expect(output.count('"version":1') == 2 and "shop/app.yaml has version 1" in output, output)


def other_registries(world: World) -> None:
    """What Consul's clients have registered, and what Eureka's have: other nodes of ours, by those APIs alone and at their ports."""
    for number, (front, port) in enumerate({"consul": 8500, "eureka": 8761}.items()):
        listen = f'listen = "127.0.0.1:{8633 + number}"\n{front}_listen = "127.0.0.1:{port}"'
        world.write(f"{front}.toml", f'[registry]\nauth = "none"\nstore = "sqlite:{world.directory}/{front}.sqlite"\n{listen}\n[metrics]\nlisten = ""\n')
        world.start(f"kingpost registry --config {front}.toml")
        world.wait(f"what stands for {front} listens", lambda port=port: listens(port))
    web = json.dumps({"ID": "web", "Name": "web", "Address": "10.0.0.2", "Port": 80, "Tags": ["v1"]})
    order = json.dumps({"instance": {"instanceId": "host-a", "hostName": "host-a", "ipAddr": "10.0.0.3", "port": {"$": 81, "@enabled": "true"}}})
    world.shell(f"curl -sf -X PUT -d '{web}' http://127.0.0.1:8500/v1/agent/service/register")
    world.shell(f"curl -sf -H 'Content-Type: application/json' -d '{order}' http://127.0.0.1:8761/eureka/apps/ORDERS")


def both_came(world: World, output: str) -> None:
    listed = world.shell("curl -sf http://127.0.0.1:8632/v1/namespaces/default/services/web/instances; curl -sf http://127.0.0.1:8632/v1/namespaces/default/services/orders/instances")
    expect(listed.count('"id":') == 2 and '"consul:web@' in listed and '"10.0.0.2"' in listed, listed)
    expect('"eureka:host-a@ORDERS"' in listed and '"ttl":"1m 30s"' in listed, listed)


def prometheus_finds_it(world: World, output: str) -> None:
    targets = json.loads(output[output.index("[") :])
    found = [(target["discoveredLabels"]["__address__"], target["discoveredLabels"].get("__meta_kingpost_service")) for target in targets]
    expect(("10.0.0.1:8080", "shop") in found, f"{found}\n{output}")


def has_the_same_keys(world: World, output: str) -> None:
    """The form of a line of the audit: `output` is the one that is printed, and the last line of the file is about the same action."""
    printed = json.loads(output)
    url = f"http://127.0.0.1:8632/v1/namespaces/{printed['namespace']}/services/shop/instances/{printed['object']}"
    world.shell(f"""curl -sf -X PUT -H 'Content-Type: application/json' -d '{{"host": "10.0.0.4", "port": 82}}' {url}""")
    file = world.directory / "audit.jsonl"
    world.wait("the change is in the audit", lambda: printed["object"] in file.read_text())
    line = json.loads(file.read_text().splitlines()[-1])
    same = [key for key in ("action", "namespace", "object") if line.get(key) != printed[key]]
    expect(not same and {key: type(value) for key, value in line.items()} == {key: type(value) for key, value in printed.items()}, f"a line of the audit is {line}")
