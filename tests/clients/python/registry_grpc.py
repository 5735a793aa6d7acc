"""grpcio at the registry's own gRPC service and at Polaris', with no code generated: the messages come from the server's
reflection. GRPC_ADDRESS says where."""

import json
import os
import queue
import time
import urllib.error
import urllib.request
import uuid

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tap import check, run

ADDRESS = os.environ["GRPC_ADDRESS"]
LIMIT = 20
NATIVE = "kingpost.registry.v1"

channel = grpc.insecure_channel(ADDRESS)
described = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(described)


def message(name, **fields):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**fields)


def method(path, kind="unary_unary"):
    service, name = path.split("/")
    it = pool.FindServiceByName(service).FindMethodByName(name)
    answer = message_factory.GetMessageClass(it.output_type)
    call = getattr(channel, kind)(
        f"/{path}", request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString
    )
    return lambda request, **more: call(request, timeout=LIMIT, **more)


def unique(stem):
    return f"{stem}-{uuid.uuid4().hex[:8]}"


class Calls:
    """What is sent on a stream, as it comes to mind."""

    def __init__(self):
        self.waiting = queue.Queue()

    def __iter__(self):
        return iter(self.waiting.get, None)


def until(what, condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def refused(code, call):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        return error.details()
    raise AssertionError(f"expected {code}")


def register(service, *instances, namespace=""):
    rows = [message(f"{NATIVE}.Instance", service=service, host="10.0.0.1", port=n, **it) for n, it in enumerate(instances, 1)]
    return method(f"{NATIVE}.Registry/Register")(message(f"{NATIVE}.RegisterRequest", namespace=namespace, instances=rows))


def discover(service, **more):
    return method(f"{NATIVE}.Registry/Discover")(message(f"{NATIVE}.DiscoverRequest", service=service, **more))


def deregister(*ids):
    return method(f"{NATIVE}.Registry/Deregister")(message(f"{NATIVE}.DeregisterRequest", ids=ids))


@check
def reflection_and_health():
    services = described.get_services()
    for name in (f"{NATIVE}.Registry", "v1.PolarisGRPC", "v1.PolarisHeartbeatGRPC", "grpc.health.v1.Health"):
        assert name in services, services
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", f"{NATIVE}.Registry"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    refused(grpc.StatusCode.NOT_FOUND, lambda: health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=LIMIT))


@check
def a_cycle():
    name = unique("web")
    done = register(name, dict(id=f"{name}-1", metadata={"v": "1"}, weight=0), dict(id=f"{name}-2", version="2"))
    assert [row.outcome for row in done.results] == ["created", "created"]
    found = discover(name)
    assert [(it.id, it.port, it.weight) for it in found.instances] == [(f"{name}-1", 1, 0), (f"{name}-2", 2, 100)]
    assert found.instances[0].metadata == {"v": "1"} and found.instances[1].version == "2"
    assert [it.id for it in discover(name, usable=True).instances] == [f"{name}-2"]
    again = discover(name, revision=found.revision)
    assert again.unchanged and not again.instances and again.revision == found.revision
    listed = method(f"{NATIVE}.Registry/ListServices")(message(f"{NATIVE}.ListServicesRequest"))
    assert [(it.instances, it.usable) for it in listed.services if it.name == name] == [(2, 1)]
    gone = deregister(f"{name}-1", "nobody")
    assert gone.results[0].outcome == "removed" and "not registered" in gone.results[1].error


@check
def a_watch_hears_of_each_change():
    name = unique("watched")
    watch = method(f"{NATIVE}.Registry/Watch", "unary_stream")(message(f"{NATIVE}.WatchRequest", service=name))
    first = next(watch)
    assert first.snapshot and first.absent and not first.put
    register(name, dict(id=f"{name}-1"))
    # What was absent and now is there may come as a change or as a whole.
    assert [it.id for it in next(watch).put] == [f"{name}-1"]
    register(name, dict(id=f"{name}-1", version="2"))
    changed = next(watch)
    assert not changed.snapshot and [it.version for it in changed.put] == ["2"]
    seen = changed.revision
    deregister(f"{name}-1")
    assert list(next(watch).removed) == [f"{name}-1"]
    watch.cancel()
    later = method(f"{NATIVE}.Registry/Watch", "unary_stream")(message(f"{NATIVE}.WatchRequest", service=name, revision=seen))
    resumed = next(later)
    assert not resumed.snapshot and list(resumed.removed) == [f"{name}-1"], resumed
    later.cancel()


@check
def heartbeats_on_a_stream():
    name = unique("alive")
    check = message(f"{NATIVE}.Check")
    check.ttl.seconds = 1
    register(name, dict(id=name, check=check))
    calls = Calls()
    answers = method(f"{NATIVE}.Registry/Heartbeat", "stream_stream")(iter(calls))
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        calls.waiting.put(message(f"{NATIVE}.HeartbeatRequest", ids=[name, "nobody"]))
        assert list(next(answers).unknown) == ["nobody"]
        assert [it.id for it in discover(name, usable=True).instances] == [name], "it says that it lives"
        time.sleep(0.2)
    calls.waiting.put(None)
    assert list(answers) == []
    until("it expires", lambda: not discover(name, usable=True).instances)


@check
def what_makes_no_sense_is_refused():
    bad = grpc.StatusCode.INVALID_ARGUMENT
    assert "instances[0]" in refused(bad, lambda: register("", {}))
    refused(bad, lambda: register("x", {}, namespace="a/b"))
    refused(bad, lambda: register("x", dict(weight=70000)))
    refused(bad, lambda: register("x", dict(check=message(f"{NATIVE}.Check"))))
    refused(grpc.StatusCode.NOT_FOUND, lambda: discover(unique("nobody")))
    refused(grpc.StatusCode.UNIMPLEMENTED, lambda: channel.unary_unary("/v1.Nothing/Here")(b"", timeout=LIMIT))
    garbage = channel.unary_unary(f"/{NATIVE}.Registry/Discover")
    refused(grpc.StatusCode.INTERNAL, lambda: garbage(b"\xff\xff\xff\xff", timeout=LIMIT))


@check
def a_probe_asks_for_health():
    # Of the registry itself: a service that it has, and one that it has not.
    host, port = ADDRESS.rsplit(":", 1)
    names = {}
    for service, target in ((f"{NATIVE}.Registry", ADDRESS), ("no.such.Service", ADDRESS), ("", "127.0.0.1:1")):
        name = unique("probed")
        it = message(f"{NATIVE}.Instance", id=name, service=name, host=host, port=int(port), health=3)
        it.check.grpc.target, it.check.grpc.service = target, service
        it.check.grpc.pace.interval.seconds, it.check.grpc.pace.rise, it.check.grpc.pace.fall = 1, 1, 1
        answer = method(f"{NATIVE}.Registry/Register")(message(f"{NATIVE}.RegisterRequest", instances=[it]))
        assert not answer.results[0].error, answer
        names[name] = service
    good = next(name for name, service in names.items() if service == f"{NATIVE}.Registry")
    until("it is found passing", lambda: discover(good, usable=True).instances)
    for name, service in names.items():
        if name != good:
            assert not discover(name, usable=True).instances, service


# === Polaris ===


def wrapped(kind, **fields):
    """A message of Polaris whose wrapped fields are given bare."""
    it = message(kind)
    for key, value in fields.items():
        if isinstance(value, dict):
            getattr(it, key).update(value)
        elif it.DESCRIPTOR.fields_by_name[key].message_type is not None:
            if hasattr(value, "DESCRIPTOR"):
                getattr(it, key).CopyFrom(value)
            else:
                getattr(it, key).value = value
        else:
            setattr(it, key, value)
    return it


def instance(service, port=8080, **more):
    return wrapped("v1.Instance", service=service, namespace="default", host="10.2.0.1", port=port, **more)


def beating(seconds):
    it = message("v1.HealthCheck", type=1)
    it.heartbeat.ttl.value = seconds
    return it


def asked(kind, service, revision=""):
    it = message("v1.DiscoverRequest", type=kind)
    it.service.name.value, it.service.namespace.value, it.service.revision.value = service, "default", revision
    return it


@check
def a_cycle_as_polaris_has_it():
    name = unique("orders")
    registered = method("v1.PolarisGRPC/RegisterInstance")(
        instance(name, weight=50, metadata={"k": "v"}, enable_health_check=True, health_check=beating(5))
    )
    assert registered.code.value == 200000, registered
    ident = registered.instance.id.value
    beat = method("v1.PolarisGRPC/Heartbeat")
    assert beat(instance(name)).code.value == 200000, "right after registering, and without its id"
    assert beat(wrapped("v1.Instance", id=ident)).code.value == 200000
    assert beat(instance(unique("nobody"))).code.value == 400202
    calls = Calls()
    answers = method("v1.PolarisGRPC/Discover", "stream_stream")(iter(calls))
    calls.waiting.put(asked(1, name))
    found = next(answers)
    (it,) = found.instances
    assert (found.code.value, found.type) == (200000, 1)
    assert (it.id.value, it.host.value, it.port.value, it.weight.value) == (ident, "10.2.0.1", 8080, 50)
    assert it.healthy.value and it.metadata == {"k": "v"} and it.health_check.heartbeat.ttl.value == 5
    calls.waiting.put(asked(1, name, found.service.revision.value))
    same = next(answers)
    assert (same.code.value, len(same.instances)) == (200001, 0)
    calls.waiting.put(asked(3, name))
    rules = next(answers)
    assert (rules.code.value, rules.type, rules.service.name.value) == (200000, 3, name)
    calls.waiting.put(asked(1, unique("nobody")))
    assert next(answers).code.value == 400202
    calls.waiting.put(asked(6, ""))
    assert name in [service.name.value for service in next(answers).services]
    assert method("v1.PolarisGRPC/DeregisterInstance")(instance(name)).code.value == 200000
    calls.waiting.put(asked(1, name, found.service.revision.value))
    gone = next(answers)
    assert not gone.instances and gone.code.value in (200000, 400202)
    calls.waiting.put(None)


@check
def polaris_heartbeats_in_batches():
    name = unique("beating")
    method("v1.PolarisGRPC/RegisterInstance")(instance(name, enable_health_check=True, health_check=beating(1)))
    beats = message("v1.HeartbeatsRequest")
    beats.heartbeats.add(service=name, namespace="default", host="10.2.0.1", port=8080)
    calls = Calls()
    answers = method("v1.PolarisHeartbeatGRPC/BatchHeartbeat", "stream_stream")(iter(calls))
    # Three times the time to live: that long the server waits.
    end = time.monotonic() + 4
    while time.monotonic() < end:
        calls.waiting.put(beats)
        next(answers)
        assert [it.id for it in discover(name, usable=True).instances]
        time.sleep(0.3)
    calls.waiting.put(None)
    until("it expires", lambda: not discover(name, usable=True).instances)


@check
def polaris_over_http():
    name = unique("plain")

    def post(path, body):
        request = urllib.request.Request(f"http://{ADDRESS}/v1/{path}", json.dumps(body).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            return json.load(error)

    sent = {"service": name, "namespace": "default", "host": "10.3.0.1", "port": 80, "enable_health_check": True,
            "health_check": {"type": "HEARTBEAT", "heartbeat": {"ttl": 5}}, "metadata": {"a": "b"}}
    assert post("RegisterInstance", sent)["code"] == 200000
    assert post("Heartbeat", {"service": name, "namespace": "default", "host": "10.3.0.1", "port": 80})["code"] == 200000
    found = post("Discover", {"type": "INSTANCE", "service": {"name": name, "namespace": "default"}})
    (it,) = found["instances"]
    assert (found["code"], it["port"], it["healthCheck"]["heartbeat"]["ttl"], it["metadata"]) == (200000, 80, 5, {"a": "b"})
    known = {"name": name, "namespace": "default", "revision": found["service"]["revision"]}
    assert post("Discover", {"type": "INSTANCE", "service": known})["code"] == 200001
    assert post("DeregisterInstance", {"service": name, "host": "10.3.0.1", "port": 80})["code"] == 200000
    assert post("Heartbeat", {"service": name, "host": "10.3.0.1", "port": 80})["code"] == 400202
    assert post("RegisterInstance", {"service": name})["code"] == 400103


run()
