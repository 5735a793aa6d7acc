"""nacos-sdk-python 3 (gRPC) at its usual work: register, list, subscribe, batches, persistent instances, log-in. NACOS_ADDRESS says where, READER and
WRITER are tokens of the namespaces tenant-a and tenant-b."""

import asyncio
import inspect
import os
import uuid

import grpc
from tap import check, run
from v2.nacos import (
    BatchRegisterInstanceParam,
    ClientConfigBuilder,
    DeregisterInstanceParam,
    GRPCConfig,
    ListInstanceParam,
    ListServiceParam,
    NacosNamingService,
    RegisterInstanceParam,
    SubscribeServiceParam,
)
from v2.nacos.transport.grpcauto.nacos_grpc_service_pb2 import Payload
from v2.nacos.transport.grpcauto.nacos_grpc_service_pb2_grpc import RequestStub

ADDRESS = os.environ["NACOS_ADDRESS"]
LIMIT = 20


def unique(stem):
    return f"{stem}-{uuid.uuid4().hex[:8]}"


async def client(namespace="", token=os.environ["WRITER"]):
    config = ClientConfigBuilder().server_address(ADDRESS).namespace_id(namespace).log_level("ERROR")
    config = config.log_dir("log").cache_dir("cache").username("anybody").password(token)
    return await NacosNamingService.create_naming_service(config.grpc_config(GRPCConfig(grpc_timeout=5000)).build())


async def add(c, name, ip, port=80, **more):
    group = more.pop("group", "DEFAULT_GROUP")
    return await c.register_instance(RegisterInstanceParam(service_name=name, group_name=group, ip=ip, port=port, **more))


async def remove(c, name, ip, port=80, **more):
    group = more.pop("group", "DEFAULT_GROUP")
    return await c.deregister_instance(DeregisterInstanceParam(service_name=name, group_name=group, ip=ip, port=port, **more))


async def listed(c, name, group="DEFAULT_GROUP", healthy=False):
    """What the server says now, past the client's memory."""
    info = await c.grpc_client_proxy.query_instance_of_service(name, group, "", healthy)
    return sorted(info.hosts, key=lambda host: (host.ip, host.port))


async def ips(c, name, group="DEFAULT_GROUP"):
    return [host.ip for host in await listed(c, name, group)]


async def until(what, condition):
    for _ in range(LIMIT * 50):
        found = condition()
        if await found if inspect.isawaitable(found) else found:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


@check
async def a_client_comes_is_found_and_goes():
    c, other, name = await client("tenant-a"), await client("tenant-a"), unique("shop")
    assert await ips(c, name) == []
    assert await add(c, name, "10.0.0.1", cluster_name="c1", weight=2.5, metadata={"zone": "a"})
    assert await add(other, name, "10.0.0.2")
    one, two = await listed(c, name)
    assert (one.ip, one.port, one.weight, one.clusterName, one.ephemeral, one.healthy) == ("10.0.0.1", 80, 2.5, "c1", True, True)
    assert one.metadata == {"zone": "a"} and one.instanceId == f"10.0.0.1#80#c1#DEFAULT_GROUP@@{name}", one
    assert two.clusterName == "DEFAULT", two
    found = await c.list_instances(ListInstanceParam(service_name=name, clusters=["c1"], healthy_only=True))
    assert [host.ip for host in found] == ["10.0.0.1"], found
    # One connection has one instance of a service: the next one takes its place, as in Nacos.
    assert await add(c, name, "10.0.0.3", cluster_name="c1")
    assert await ips(c, name) == ["10.0.0.2", "10.0.0.3"]
    # What is not enabled is not shown.
    assert await add(c, name, "10.0.0.3", cluster_name="c1", enabled=False)
    assert await ips(c, name) == ["10.0.0.2"]
    assert await remove(c, name, "10.0.0.3", cluster_name="c1") and await remove(other, name, "10.0.0.2")
    assert await ips(c, name) == []
    await c.shutdown()
    await other.shutdown()


@check
async def who_leaves_takes_its_instances_along():
    stays, goes, name = await client("tenant-a"), await client("tenant-a"), unique("leaves")
    assert await add(stays, name, "10.0.0.1") and await add(goes, name, "10.0.0.2")
    # The same instance by two connections: the one that published it last has it.
    assert await add(goes, name + "-x", "10.0.0.9") and await add(stays, name + "-x", "10.0.0.9")
    await goes.shutdown()

    async def is_alone():
        return await ips(stays, name) == ["10.0.0.1"]

    await until("the one that left is gone", is_alone)
    assert await ips(stays, name + "-x") == ["10.0.0.9"]
    await stays.shutdown()


@check
async def a_batch_is_all_there_is():
    c, name = await client("tenant-b"), unique("batch")

    def batch(*ends):
        instances = [RegisterInstanceParam(service_name=name, ip=f"10.0.0.{end}", port=80) for end in ends]
        return BatchRegisterInstanceParam(service_name=name, group_name="g", instances=instances)

    assert await c.batch_register_instances(batch(1, 2, 3))
    assert await ips(c, name, "g") == ["10.0.0.1", "10.0.0.2", "10.0.0.3"] and await ips(c, name) == []
    assert await c.batch_deregister_instances(batch(2))
    assert await ips(c, name, "g") == ["10.0.0.1", "10.0.0.3"]
    await c.shutdown()


@check
async def a_persistent_instance_stays():
    c, other, name = await client("tenant-a"), await client("tenant-a"), unique("stays")
    assert await add(c, name, "10.0.0.1", ephemeral=False) and await add(c, name, "10.0.0.2")
    assert [host.ephemeral for host in await listed(other, name)] == [False, True]
    await c.shutdown()

    async def is_alone():
        return await ips(other, name) == ["10.0.0.1"]

    await until("only what was ephemeral is gone", is_alone)
    assert await remove(other, name, "10.0.0.1", ephemeral=False)
    assert await ips(other, name) == []
    await other.shutdown()


@check
async def a_subscriber_hears_of_changes():
    c, other, name = await client("tenant-a"), await client("tenant-a"), unique("heard")
    heard = []

    async def told(instances):
        heard.append(sorted((host.ip, host.metadata.get("a")) for host in instances))

    assert await add(c, name, "10.0.0.1")
    subscription = SubscribeServiceParam(service_name=name, subscribe_callback=told)
    await c.subscribe(subscription)
    assert await add(other, name, "10.0.0.2")
    await until("one more", lambda: heard[-1:] == [[("10.0.0.1", None), ("10.0.0.2", None)]])
    assert await add(other, name, "10.0.0.2", metadata={"a": "b"})
    await until("another one", lambda: heard[-1:] == [[("10.0.0.1", None), ("10.0.0.2", "b")]])
    await other.shutdown()
    await until("one less", lambda: heard[-1:] == [[("10.0.0.1", None)]])
    await c.unsubscribe(subscription)
    await c.shutdown()


@check
async def namespaces_and_groups_are_apart():
    name = unique("apart")
    one, other = await client("tenant-a"), await client("tenant-b")
    assert await add(one, name, "10.0.0.1") and await add(other, name, "10.0.0.2") and await add(one, name, "10.0.0.3", group="g")
    assert await ips(one, name) == ["10.0.0.1"] and await ips(other, name) == ["10.0.0.2"]
    assert await ips(one, name, "g") == ["10.0.0.3"] and await ips(other, name, "g") == []
    heard = []

    async def told(instances):
        heard.append(sorted(host.ip for host in instances))

    await one.subscribe(SubscribeServiceParam(service_name=name, subscribe_callback=told))
    # A change in one namespace is none in the other.
    assert await add(other, name, "10.0.0.4") and await add(one, name, "10.0.0.5")
    await until("its own change", lambda: heard[-1:] == [["10.0.0.5"]])
    assert not any("10.0.0.2" in ips or "10.0.0.4" in ips for ips in heard), heard
    services = await one.list_services(ListServiceParam(page_no=1, page_size=1000))
    assert name in services.services and services.count >= len(services.services)
    of_group = await one.list_services(ListServiceParam(page_no=1, page_size=1000, group_name="g"))
    assert of_group.services.count(name) == 1
    await one.shutdown()
    await other.shutdown()


async def refused(call):
    try:
        await call
    except Exception as error:
        return str(error)
    raise AssertionError("was not refused")


@check
async def who_may_not_is_told_so():
    reader, name = await client("tenant-a", os.environ["READER"]), unique("mine")
    assert await ips(reader, name) == []
    assert "may not write" in await refused(add(reader, name, "10.0.0.1"))
    elsewhere = await client("tenant-c", os.environ["READER"])
    assert "may not read" in await refused(listed(elsewhere, name))
    writer = await client("tenant-a")
    assert await add(writer, name, "10.0.0.1") and await ips(reader, name) == ["10.0.0.1"]
    for c in (reader, elsewhere, writer):
        await c.shutdown()


def by_hand(kind, body, **headers):
    host, port = ADDRESS.rsplit(":", 1)
    # A connection of its own: one that has shown a good token may send larger messages.
    own = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"{host}:{int(port) + 1000}", options=own) as channel:
        payload = Payload()
        payload.metadata.type = kind
        payload.metadata.headers.update(headers)
        payload.body.value = body
        answer = RequestStub(channel).request(payload, timeout=LIMIT)
        return answer.metadata.type, answer.body.value.decode()


@check
def what_is_not_a_request_is_refused():
    assert by_hand("ServerCheckRequest", b"{}")[0] == "ServerCheckResponse"
    # Without a token, and with a wrong one.
    listing = b'{"serviceName":"s","namespace":"tenant-a"}'
    for headers in ({}, {"accessToken": "wrong"}):
        kind, body = by_hand("ServiceQueryRequest", listing, **headers)
        assert (kind, '"errorCode":403' in body) == ("ErrorResponse", True), body
    token = {"accessToken": os.environ["WRITER"]}
    assert by_hand("ServiceQueryRequest", listing, **token)[0] == "QueryServiceResponse"
    for kind, body, code in (
        ("ServiceQueryRequest", b"{", 400),
        ("ServiceQueryRequest", b"\xff", 400),
        ("ConfigQueryRequest", b"{}", 400),
        ("ConfigFuzzyWatchRequest", b"{}", 302),
        ("", b"", 302),
        # Nothing is registered over a connection without a stream.
        ("InstanceRequest", b'{"namespace":"tenant-a","serviceName":"s","type":"registerInstance","instance":{"ip":"h","port":1}}', 301),
    ):
        answer, text = by_hand(kind, body, **token)
        assert (answer, f'"errorCode":{code}' in text) == ("ErrorResponse", True), (kind, text)
    # Who is not known yet sends no large message.
    try:
        by_hand("ServiceQueryRequest", b" " * (300 << 10))
        raise AssertionError("was taken")
    except grpc.RpcError as error:
        assert error.code() in (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.RESOURCE_EXHAUSTED), error


run()
