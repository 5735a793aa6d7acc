"""What is said on streams of xDS, message by message: grpcio, with messages that come from the server's reflection. XDS_ADDRESS says where, WRITER
and READER are tokens: the first may write in tenant-a and tenant-b, the second may read tenant-a."""

import json
import os
import queue
import urllib.request

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tap import check, run

ADDRESS = os.environ["XDS_ADDRESS"]
WRITER, READER = os.environ["WRITER"], os.environ["READER"]
LIMIT = 20
DISCOVERY = "envoy.service.discovery.v3"
KINDS = {
    "listener": "envoy.config.listener.v3.Listener",
    "route": "envoy.config.route.v3.RouteConfiguration",
    "cluster": "envoy.config.cluster.v3.Cluster",
    "endpoints": "envoy.config.endpoint.v3.ClusterLoadAssignment",
}
ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
EDS = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"

channel = grpc.insecure_channel(ADDRESS)
pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))


def message(name):
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Request, Response = message(f"{DISCOVERY}.DiscoveryRequest"), message(f"{DISCOVERY}.DiscoveryResponse")


class Stream:
    def __init__(self, token=None, path=ADS):
        self.sent = queue.Queue()
        call = channel.stream_stream(path, request_serializer=Request.SerializeToString, response_deserializer=Response.FromString)
        metadata = [("authorization", f"Bearer {token}")] if token else []
        self.call = call(iter(self.sent.get, None), timeout=LIMIT, metadata=metadata)
        self.nonces = {}

    def ask(self, kind, *names, nonce=None, refused=None, node_token=None):
        url = f"type.googleapis.com/{KINDS[kind]}" if kind else ""
        it = Request(type_url=url, resource_names=names, response_nonce=self.nonces.get(kind, "") if nonce is None else nonce)
        if refused:
            it.error_detail.message = refused
        if node_token:
            it.node.id = "somebody"
            it.node.metadata["token"] = node_token
        self.sent.put(it)

    def told(self):
        """The kind of the next response, and its resources by name."""
        it = next(self.call)
        kind = next(kind for kind, name in KINDS.items() if it.type_url.endswith(name))
        self.nonces[kind] = it.nonce
        assert all(found.type_url == it.type_url for found in it.resources)
        read = [message(KINDS[kind]).FromString(found.value) for found in it.resources]
        return kind, {found.cluster_name if kind == "endpoints" else found.name: found for found in read}

    def names(self):
        kind, found = self.told()
        return kind, sorted(found)

    def ends(self):
        try:
            found = next(self.call)
        except grpc.RpcError as error:
            return error.code()
        raise AssertionError(found)


def http(method, path, body=None):
    headers = {"Authorization": f"Bearer {WRITER}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"http://{ADDRESS}{path}", data, headers, method=method), timeout=LIMIT) as answer:
        return answer.read()


def put(namespace, service, name, **fields):
    body = {"host": "10.0.0.1", "port": 80} | fields
    http("PUT", f"/v1/namespaces/{namespace}/services/{service}/instances/{name}", body)


def remove(namespace, name):
    http("DELETE", f"/v1/namespaces/{namespace}/instances/{name}")


def hosts(assignment):
    return sorted(
        (place.priority, end.endpoint.address.socket_address.address, end.health_status, end.load_balancing_weight.value)
        for place in assignment.endpoints
        for end in place.lb_endpoints
    )


put("tenant-a", "shop", "a1")
put("tenant-b", "shop", "b1", host="10.0.0.2")
put("tenant-b", "secret", "b2", host="10.0.0.3")


@check
def all_clusters_are_those_of_the_namespaces_of_the_token():
    reader, writer = Stream(READER), Stream(WRITER)
    reader.ask("cluster")
    writer.ask("cluster")
    assert reader.names() == ("cluster", ["tenant-a/shop"])
    assert writer.names() == ("cluster", ["tenant-a/shop", "tenant-b/secret", "tenant-b/shop"])
    reader.ask("cluster")
    # What comes into being elsewhere is not heard of: the next thing that the reader hears is its own.
    put("tenant-b", "new", "b3")
    assert "tenant-b/new" in writer.names()[1]
    put("tenant-a", "new", "a3")
    assert reader.names() == ("cluster", ["tenant-a/new", "tenant-a/shop"])
    remove("tenant-a", "a3")
    assert reader.names() == ("cluster", ["tenant-a/shop"])
    remove("tenant-b", "b3")


@check
def what_a_token_may_not_read_looks_as_if_it_were_not_there():
    stream = Stream(READER)
    for kind in ("listener", "cluster"):
        stream.ask(kind, "tenant-b/secret", "tenant-b/nothing", "tenant-a/shop")
        assert stream.names() == (kind, ["tenant-a/shop"])
    stream.ask("route", "tenant-b/secret", "tenant-a/shop")
    assert stream.names() == ("route", ["tenant-a/shop"])
    stream.ask("endpoints", "tenant-b/secret", "tenant-b/nothing", "tenant-a/shop")
    kind, found = stream.told()
    assert {name: len(hosts(it)) for name, it in found.items()} == {"tenant-a/shop": 1, "tenant-b/nothing": 0, "tenant-b/secret": 0}


@check
def nobody_comes_in_without_a_token():
    for token in (None, "wrong"):
        stream = Stream(token)
        stream.ask("cluster")
        assert stream.ends() == grpc.StatusCode.UNAUTHENTICATED
    stream = Stream()
    stream.ask("cluster", node_token=READER)
    assert stream.names() == ("cluster", ["tenant-a/shop"])
    stream = Stream()
    stream.ask("cluster", node_token="wrong")
    assert stream.ends() == grpc.StatusCode.UNAUTHENTICATED


@check
def names_come_and_go():
    put("tenant-a", "cart", "c1", host="10.1.0.1")
    stream = Stream(READER)
    stream.ask("endpoints", "tenant-a/shop")
    assert stream.names() == ("endpoints", ["tenant-a/shop"])
    stream.ask("endpoints", "tenant-a/shop", "tenant-a/cart")
    assert stream.names() == ("endpoints", ["tenant-a/cart"])
    # Unsubscribed: its changes are not told. Subscribed again: told anew.
    stream.ask("endpoints", "tenant-a/shop")
    # An unsubscription has no answer. This one comes after it.
    stream.ask("cluster", "tenant-a/shop")
    assert stream.names() == ("cluster", ["tenant-a/shop"])
    put("tenant-a", "cart", "c2", host="10.1.0.2")
    put("tenant-a", "shop", "a2", host="10.0.0.9")
    kind, found = stream.told()
    assert hosts(found["tenant-a/shop"]) == [(0, "10.0.0.1", 1, 100), (0, "10.0.0.9", 1, 100)] and len(found) == 1
    stream.ask("endpoints", "tenant-a/cart", "tenant-a/shop")
    kind, found = stream.told()
    assert list(found) == ["tenant-a/cart"] and len(hosts(found["tenant-a/cart"])) == 2
    for name in ("a2", "c1", "c2"):
        remove("tenant-a", name)


@check
def what_is_refused_is_not_sent_again():
    stream = Stream(READER)
    stream.ask("endpoints", "tenant-a/shop")
    stream.told()
    stream.ask("endpoints", "tenant-a/shop", refused="no such thing")
    stream.ask("endpoints", "tenant-a/shop", nonce="4711", refused="of an old response")
    # The next response is about something else.
    stream.ask("cluster", "tenant-a/shop")
    assert stream.names() == ("cluster", ["tenant-a/shop"])
    put("tenant-a", "shop", "a2", host="10.0.0.9")
    assert stream.names() == ("endpoints", ["tenant-a/shop"])
    remove("tenant-a", "a2")


@check
def health_weight_priority_and_names():
    put("tenant-a", "mixed", "m1", host="10.0.0.1", weight=50, location={"region": "r", "zone": "z", "campus": "c"})
    put("tenant-a", "mixed", "m2", host="10.0.0.2", priority=7, health="critical")
    put("tenant-a", "mixed", "m3", host="10.0.0.3", isolate=True)
    put("tenant-a", "mixed", "m4", host="10.0.0.4", weight=0)
    put("tenant-a", "mixed", "m5", host="a.example")
    put("tenant-a", "mixed", "m6", host="::1", health="warning")
    stream = Stream(READER, EDS)
    stream.ask(None, "tenant-a/mixed")
    kind, found = stream.told()
    places = found["tenant-a/mixed"].endpoints
    assert hosts(found["tenant-a/mixed"]) == [
        (0, "10.0.0.1", 1, 50),
        (0, "10.0.0.3", 3, 100),
        (0, "::1", 1, 100),
        (1, "10.0.0.2", 2, 100),
    ]
    assert all(place.load_balancing_weight.value > 0 and place.HasField("locality") for place in places)
    at = {(place.locality.region, place.locality.zone, place.locality.sub_zone) for place in places}
    assert at == {("r", "z", "c"), ("", "", "")}


@check
def a_stream_of_endpoints_is_of_nothing_else():
    stream = Stream(READER, EDS)
    stream.ask("cluster", "tenant-a/shop")
    assert stream.ends() == grpc.StatusCode.INVALID_ARGUMENT


@check
def a_stream_has_a_bound():
    stream = Stream(READER)
    stream.ask("endpoints", *[f"tenant-a/s{n}" for n in range(5000)])
    assert stream.ends() == grpc.StatusCode.RESOURCE_EXHAUSTED


run()
