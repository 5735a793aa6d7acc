"""nacos-sdk-python (HTTP, version 1) at its usual work: register, beat, list, subscribe, expire, deregister. NACOS_ADDRESS says where."""

import json
import os
import time
import urllib.request
import uuid

import nacos
from nacos.listener import SubscribeListener
from tap import check, run

ADDRESS = os.environ["NACOS_ADDRESS"]
LIMIT = 20


def unique(stem):
    return f"{stem}-{uuid.uuid4().hex[:8]}"


def client(namespace=""):
    return nacos.NacosClient(ADDRESS, namespace=namespace)


def hosts(c, service, **more):
    return sorted((h["ip"], h["port"], h["healthy"]) for h in c.list_naming_instance(service, **more)["hosts"])


def until(what, condition):
    for _ in range(LIMIT * 50):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError(what)


@check
def a_client_comes_is_found_and_goes():
    c, name = client(), unique("shop")
    assert hosts(c, name) == []
    assert c.add_naming_instance(name, "10.0.0.1", 80, "c1", weight=2.5, metadata={"zone": "a", "n": "1"})
    assert c.add_naming_instance(name, "10.0.0.2", 80, "c2")
    assert hosts(c, name) == [("10.0.0.1", 80, True), ("10.0.0.2", 80, True)]
    assert hosts(c, name, clusters="c2") == [("10.0.0.2", 80, True)]
    one = c.get_naming_instance(name, "10.0.0.1", 80, "c1")
    assert (one["weight"], one["clusterName"], one["ephemeral"]) == (2.5, "c1", True), one
    assert one["metadata"] == {"zone": "a", "n": "1"}, one
    assert one["instanceId"] == f"10.0.0.1#80#c1#DEFAULT_GROUP@@{name}", one
    # Changed, and taken out by hand. Metadata are laid over the instance's own, as at Nacos 2.
    assert c.modify_naming_instance(name, "10.0.0.1", 80, "c1", weight=1.0, metadata={"zone": "b"})
    assert c.get_naming_instance(name, "10.0.0.1", 80, "c1")["metadata"] == {"zone": "b", "n": "1"}
    assert c.modify_naming_instance(name, "10.0.0.2", 80, "c2", enable=False)
    assert hosts(c, name) == [("10.0.0.1", 80, True)]
    for ip, cluster in (("10.0.0.1", "c1"), ("10.0.0.2", "c2"), ("10.0.0.2", "c2")):
        assert c.remove_naming_instance(name, ip, 80, cluster)
    assert hosts(c, name) == []


@check
def who_beats_lives_and_who_is_silent_goes():
    c, name = client(), unique("beats")
    short = {"preserved.heart.beat.timeout": "2000", "preserved.ip.delete.timeout": "4000"}
    # One beats by itself, in a thread of the client's.
    assert c.add_naming_instance(name, "10.0.0.1", 80, "c", metadata=short, heartbeat_interval=0.5)
    assert c.add_naming_instance(name, "10.0.0.2", 80, "c", metadata=short)
    until("the silent one is unhealthy", lambda: ("10.0.0.2", 80, False) in hosts(c, name))
    assert hosts(c, name, healthy_only=True) == [("10.0.0.1", 80, True)]
    until("the silent one goes", lambda: hosts(c, name) == [("10.0.0.1", 80, True)])
    # Who was forgotten is there again by a beat.
    assert c.send_heartbeat(name, "10.0.0.3", 81, "c", metadata={"a": "b"})["code"] == 10200
    assert c.get_naming_instance(name, "10.0.0.3", 81, "c")["metadata"] == {"a": "b"}
    # One without metadata, of which nothing is known, has to register again.
    light = f"http://{ADDRESS}/nacos/v1/ns/instance/beat?serviceName={name}&ip=10.0.0.4&port=80&clusterName=c"
    with urllib.request.urlopen(urllib.request.Request(light, method="PUT")) as answer:
        assert json.load(answer)["code"] == 20404


@check
def groups_and_namespaces_are_apart():
    name = unique("apart")
    one, other = client("tenant-a"), client("tenant-b")
    assert one.add_naming_instance(name, "10.0.0.1", 80, "c")
    assert other.add_naming_instance(name, "10.0.0.2", 80, "c")
    assert one.add_naming_instance(name, "10.0.0.3", 80, "c", group_name="g")
    assert hosts(one, name) == [("10.0.0.1", 80, True)]
    assert hosts(other, name) == [("10.0.0.2", 80, True)]
    assert hosts(one, name, group_name="g") == [("10.0.0.3", 80, True)]
    assert hosts(client(), name) == []
    # Who goes in one is still in the other.
    assert other.remove_naming_instance(name, "10.0.0.1", 80, "c") and one.remove_naming_instance(name, "10.0.0.2", 80, "c")
    assert hosts(one, name) == [("10.0.0.1", 80, True)] and hosts(other, name) == [("10.0.0.2", 80, True)]

    def names(namespace, group):
        url = f"http://{ADDRESS}/nacos/v1/ns/service/list?pageNo=1&pageSize=1000&namespaceId={namespace}&groupName={group}"
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)["doms"]

    assert name in names("tenant-a", "") and name in names("tenant-a", "g") and name not in names("tenant-b", "g")


@check
def a_subscriber_hears_of_changes():
    c, name = client(), unique("heard")
    heard = []

    def listener(event, instance):
        heard.append((event, instance.instance["ip"]))

    assert c.add_naming_instance(name, "10.0.0.1", 80, "c")
    c.subscribe(SubscribeListener(listener, "listener"), 0.1, name)
    until("the first look", lambda: c.subscribed_local_manager.get_local_instances(name))
    assert c.add_naming_instance(name, "10.0.0.2", 80, "c")
    until("one more", lambda: ("ADDED", "10.0.0.2") in heard)
    assert c.modify_naming_instance(name, "10.0.0.2", 80, "c", metadata={"a": "b"})
    until("another one", lambda: ("MODIFIED", "10.0.0.2") in heard)
    assert c.remove_naming_instance(name, "10.0.0.1", 80, "c")
    until("one less", lambda: ("DELETED", "10.0.0.1") in heard)
    c.stop_subscribe()


run()
