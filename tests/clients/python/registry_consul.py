"""py-consul and python-consul (whichever is on the path) at their usual work: register, heartbeat, discover, watch, expire,
deregister. CONSUL_PORT says where."""

import os
import threading
import time
import uuid

import consul
from tap import check, run

PORT = int(os.environ["CONSUL_PORT"])
LIMIT = 20


def client(**more):
    return consul.Consul(host="127.0.0.1", port=PORT, **more)


def passing(c, name, **more):
    _, entries = c.health.service(name, passing=True, **more)
    return sorted(entry["Service"]["ID"] for entry in entries)


def until(what, condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def unique(stem):
    return f"{stem}-{uuid.uuid4().hex[:8]}"


@check
def the_agent_answers():
    c = client()
    assert c.agent.self()["Config"]["NodeName"]
    assert c.status.leader()
    assert c.catalog.datacenters() == ["dc1"]


@check
def a_ttl_is_critical_until_the_first_pass():
    c, name = client(), unique("web")
    ident = f"{name}-1"
    assert c.agent.service.register(
        name, service_id=ident, address="10.0.0.1", port=8080, tags=["v1", "primary"], check=consul.Check.ttl("10s")
    )
    assert passing(c, name) == []
    assert c.agent.check.ttl_pass(f"service:{ident}")
    assert passing(c, name) == [ident]
    _, entries = c.health.service(name)
    service = entries[0]["Service"]
    assert (service["Address"], service["Port"], service["Tags"]) == ("10.0.0.1", 8080, ["v1", "primary"])
    assert [it["Status"] for it in entries[0]["Checks"]] == ["passing"]
    _, catalog = c.catalog.service(name, tag="v1")
    assert [entry["ServiceID"] for entry in catalog] == [ident]
    assert c.catalog.service(name, tag="v2")[1] == []
    assert sorted(c.catalog.services()[1][name]) == ["primary", "v1"]
    assert ident in c.agent.services() and f"service:{ident}" in c.agent.checks()
    for fail, status in ((c.agent.check.ttl_warn, "warning"), (c.agent.check.ttl_fail, "critical")):
        assert fail(f"service:{ident}")
        assert c.health.checks(name)[1][0]["Status"] == status
        assert passing(c, name) == []
    assert c.agent.service.deregister(ident)
    assert c.health.service(name)[1] == []


@check
def a_blocking_query_is_woken_by_a_change():
    c, name = client(), unique("watched")
    c.agent.service.register(name, service_id=f"{name}-1", address="h", port=1)
    index, before = c.health.service(name)
    assert int(index) > 0 and len(before) == 1
    seen = {}

    def wait():
        seen["index"], seen["entries"] = client().health.service(name, index=index, wait="15s")

    waiter = threading.Thread(target=wait)
    waiter.start()
    c.agent.service.register(name, service_id=f"{name}-2", address="h", port=2)
    waiter.join(LIMIT)
    assert not waiter.is_alive(), "not woken"
    assert int(seen["index"]) > int(index)
    assert len(seen["entries"]) == 2
    again, _ = c.health.service(name, index=seen["index"], wait="100ms")
    assert again == seen["index"], "nothing changed"


@check
def who_is_silent_expires_and_is_removed():
    c, name = client(), unique("silent")
    ident = f"{name}-1"
    ttl = dict(consul.Check.ttl("1s"), DeregisterCriticalServiceAfter="1s")
    c.agent.service.register(name, service_id=ident, address="h", port=1, check=ttl)
    c.agent.check.ttl_pass(f"service:{ident}")
    assert passing(c, name) == [ident]
    until("it expires", lambda: passing(c, name) == [])
    until("it is removed", lambda: c.health.service(name)[1] == [])


@check
def maintenance_takes_a_service_out():
    c, name = client(), unique("maintained")
    c.agent.service.register(name, service_id=name, address="h", port=1)
    assert passing(c, name) == [name]
    assert c.agent.service.maintenance(name, "true")
    assert passing(c, name) == []
    assert c.agent.service.maintenance(name, "false")
    assert passing(c, name) == [name]


@check
def the_registry_probes_tcp():
    import socket

    c, name = client(), unique("probed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        c.agent.service.register(name, service_id=name, address="127.0.0.1", port=port, check=consul.Check.tcp("127.0.0.1", port, "1s"))
        until("it is found passing", lambda: passing(c, name) == [name])
    until("it is found critical", lambda: passing(c, name) == [])


@check
def a_stranger_is_not_known():
    c = client()
    assert not c.agent.check.ttl_pass("service:nobody")
    assert not c.agent.service.deregister("nobody")


@check
def the_catalog_can_be_written():
    c, name = client(), unique("external")
    assert c.catalog.register("far", "10.9.9.9", service={"service": name, "id": name, "port": 5})
    _, entries = c.catalog.service(name)
    assert (entries[0]["Node"], entries[0]["ServicePort"]) == ("far", 5)
    assert any(node["Node"] == "far" for node in c.catalog.nodes()[1])
    assert c.catalog.deregister("far", service_id=name)
    assert c.catalog.service(name)[1] == []


@check
def events_are_told_to_who_waits_for_them():
    c, name = client(), unique("deploy")
    first = c.event.fire(name, body="v1")
    index, events = c.event.list(name)
    assert [(event["ID"], event["LTime"] > 0) for event in events] == [(first["ID"], True)]
    seen = {}

    def wait():
        seen["index"], seen["events"] = client().event.list(name, index=index)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert c.event.fire(unique("other"))
    assert c.event.fire(name, node="no-such-node")
    second = c.event.fire(name, body="v2")
    waiter.join(LIMIT)
    assert not waiter.is_alive(), "not woken"
    assert [event["ID"] for event in seen["events"]] == [first["ID"], second["ID"]]
    assert seen["index"] != index


run()
