"""Configuration entries over gRPC, by Polaris' and Nacos' protocols: who may not read an entry learns nothing of it, not even that it exists.

GRPC_ADDRESS and NACOS_ADDRESS say where. OWNER is a token that may write the group "one" of the namespace THEIRS, STRANGER one that may write the group GROUP of
the namespace OWN and nothing of the other."""

import json
import os
import queue

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from tap import check, run

LIMIT = 20
OWNER, STRANGER = os.environ["OWNER"], os.environ["STRANGER"]
THEIRS, OWN, GROUP = os.environ["THEIRS"], os.environ["OWN"], os.environ["GROUP"]
host, port = os.environ["NACOS_ADDRESS"].split(":")
polaris = grpc.insecure_channel(os.environ["GRPC_ADDRESS"])
described = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(polaris))


def envelope():
    """Returns the class of Nacos' messages, which reflection does not describe."""
    file = descriptor_pb2.FileDescriptorProto(name="nacos.proto", syntax="proto3", dependency=["google/protobuf/any.proto"])
    metadata = file.message_type.add(name="Metadata")
    text, many, inner = 9, 3, 11
    metadata.field.add(name="type", number=3, type=text, label=1)
    metadata.field.add(name="headers", number=7, type=inner, label=many, type_name=".Metadata.HeadersEntry")
    entry = metadata.nested_type.add(name="HeadersEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=text, label=1)
    entry.field.add(name="value", number=2, type=text, label=1)
    payload = file.message_type.add(name="Payload")
    payload.field.add(name="metadata", number=2, type=inner, label=1, type_name=".Metadata")
    payload.field.add(name="body", number=3, type=inner, label=1, type_name=".google.protobuf.Any")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Payload"))


Payload = envelope()


def call(name, token, fields):
    """Returns the future of a call of Polaris' service."""
    method = described.FindServiceByName("v1.PolarisConfigGRPC").FindMethodByName(name)
    sent, answer = (message_factory.GetMessageClass(kind) for kind in (method.input_type, method.output_type))
    request = json_format.ParseDict(fields, sent())
    who = [("authorization", f"Bearer {token}")]
    path = f"/v1.PolarisConfigGRPC/{name}"
    if method.client_streaming:
        stream = polaris.stream_stream(path, sent.SerializeToString, answer.FromString)
        return stream(iter([request]), timeout=LIMIT, metadata=who)
    return polaris.unary_unary(path, sent.SerializeToString, answer.FromString).future(request, timeout=LIMIT, metadata=who)


def answer(name, token, fields):
    asked = call(name, token, fields)
    return json_format.MessageToDict(next(iter(asked)) if name == "Discover" else asked.result())


def publish(content, namespace=THEIRS, group="one", entry="entry-one", token=OWNER):
    fields = {"namespace": namespace, "group": group, "file_name": entry, "content": content}
    said = answer("UpsertAndPublishConfigFile", token, fields)
    assert said["code"] == 200000, said
    return int(said["configFile"]["version"])


class Nacos:
    """A connection with its stream."""

    def __init__(self, token):
        self.token, self.pushes, self.out = token, queue.Queue(), queue.Queue()
        self.channel = grpc.insecure_channel(f"{host}:{int(port) + 1000}")
        stream = self.channel.stream_stream("/BiRequestStream/requestBiStream", Payload.SerializeToString, Payload.FromString)
        assert self.ask("ServerCheckRequest", {})[0] == "ServerCheckResponse"
        self.out.put(self.payload("ConnectionSetupRequest", {"clientVersion": "rights", "labels": {}}))
        self.stream = stream(iter(self.out.get, None))

    def payload(self, kind, fields):
        body = any_pb2.Any(value=json.dumps(fields).encode())
        payload = Payload()
        payload.metadata.type = kind
        payload.metadata.headers["accessToken"] = self.token
        payload.body.ParseFromString(body.SerializeToString())
        return payload

    def ask(self, kind, fields):
        unary = self.channel.unary_unary("/Request/request", Payload.SerializeToString, Payload.FromString)
        said = unary(self.payload(kind, fields), timeout=LIMIT)
        return said.metadata.type, json.loads(said.body.value)

    def close(self):
        self.out.put(None)
        self.channel.close()


def alike(ask):
    """Compares the answers about an entry that exists and one that does not."""
    found, missing = (json.dumps(ask(entry), sort_keys=True).replace(entry, "ID") for entry in ("entry-one", "entry-two"))
    assert found == missing, (found, missing)
    assert "mine" not in found, found


@check
def polaris_says_the_same_of_what_is_and_what_is_not():
    publish("mine")
    named = {"namespace": THEIRS, "group": "one"}
    for name, fields in [
        ("GetConfigFile", lambda entry: named | {"file_name": entry}),
        ("CreateConfigFile", lambda entry: named | {"name": entry, "content": "stranger"}),
        ("UpdateConfigFile", lambda entry: named | {"name": entry, "content": "stranger"}),
        ("PublishConfigFile", lambda entry: named | {"file_name": entry, "name": "r"}),
        ("UpsertAndPublishConfigFile", lambda entry: named | {"file_name": entry, "content": "stranger"}),
        ("Discover", lambda entry: {"type": 1, "config_file": named | {"file_name": entry}}),
    ]:
        alike(lambda entry: answer(name, STRANGER, fields(entry)))
    for name, fields in [
        ("GetConfigFileMetadataList", {"config_file_group": {"namespace": THEIRS, "name": "one"}}),
        ("Discover", {"type": 2, "config_file": named}),
        ("Discover", {"type": 3, "config_file": named}),
    ]:
        said = json.dumps(answer(name, STRANGER, fields))
        assert "entry-one" not in said and '"one"' not in said.replace('"group": "one"', ""), said
        assert "one" in json.dumps(answer(name, OWNER, fields))
    assert answer("GetConfigFile", OWNER, named | {"file_name": "entry-one"})["configFile"]["content"] == "mine"


@check
def a_change_wakes_no_stranger_of_polaris():
    version = publish("mine")

    def watch(token, *files):
        return call("WatchConfigFiles", token, {"watch_files": [
            {"namespace": namespace, "group": group, "file_name": entry, "version": version} for namespace, group, entry, version in files
        ]})

    own = publish("own", OWN, GROUP, "own", STRANGER)
    theirs, missing = (THEIRS, "one", "entry-one", 0), (THEIRS, "one", "entry-two", 0)
    if THEIRS != OWN:
        # The namespace itself is closed.
        said = [json_format.MessageToDict(watch(STRANGER, file).result()) for file in (theirs, missing)]
        assert said[0] == said[1] and said[0]["code"] != 200000, said
        return
    stranger = watch(STRANGER, theirs, missing, (OWN, GROUP, "own", own))
    owner = watch(OWNER, (THEIRS, "one", "entry-one", version))
    publish("mine again")
    assert owner.result().configFile.version.value > version
    assert not stranger.done()
    publish("own again", OWN, GROUP, "own", STRANGER)
    assert stranger.result().configFile.file_name.value == "own", stranger.result()


@check
def nacos_says_the_same_of_what_is_and_what_is_not():
    publish("mine")
    connection = Nacos(STRANGER)
    for kind, more in [
        ("ConfigQueryRequest", {}),
        ("ConfigPublishRequest", {"content": "stranger"}),
        ("ConfigPublishRequest", {"content": "stranger", "casMd5": "x"}),
        ("ConfigRemoveRequest", {}),
    ]:
        alike(lambda entry: connection.ask(kind, {"dataId": entry, "group": "one", "tenant": THEIRS, **more}))
    connection.close()
    owner = Nacos(OWNER)
    assert owner.ask("ConfigQueryRequest", {"dataId": "entry-one", "group": "one", "tenant": THEIRS})[1]["content"] == "mine"
    owner.close()


@check
def a_change_wakes_no_stranger_of_nacos():
    publish("mine")
    publish("own", OWN, GROUP, "own", STRANGER)
    connection = Nacos(STRANGER)

    def listen(*entries):
        contexts = [{"dataId": entry, "group": group, "tenant": namespace, "md5": md5} for namespace, group, entry, md5 in entries]
        return connection.ask("ConfigBatchListenRequest", {"listen": True, "configListenContexts": contexts})[1]

    for md5 in ("", "0123456789abcdef"):
        alike(lambda entry: listen((THEIRS, "one", entry, md5)))
    said = listen((OWN, GROUP, "own", ""))
    assert [entry["dataId"] for entry in said["changedConfigs"]] == ["own"], said
    publish("mine again")
    publish("own again", OWN, GROUP, "own", STRANGER)
    push = next(message for message in connection.stream if message.metadata.type == "ConfigChangeNotifyRequest")
    assert json.loads(push.body.value)["dataId"] == "own", push
    connection.close()


run()
