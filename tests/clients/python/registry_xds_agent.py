"""grpcio as a client that finds its servers by xDS (`xds:///NAME`), and as those servers. Reads a command a line, writes an answer a line, both JSON.
GRPC_XDS_BOOTSTRAP says where the registry is."""

import collections
import concurrent.futures
import json
import sys

import grpc

WHO = "/kingpost.test.Echo/Who"
servers = []
channels = {}


def serve(name):
    """A server that answers with its name."""

    class Echo(grpc.GenericRpcHandler):
        def service(self, details):
            if details.method == WHO:
                return grpc.unary_unary_rpc_method_handler(lambda request, context: name.encode())

    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Echo()], options=[("grpc.so_reuseport", 0)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    servers.append(server)
    return port


def call(name, times):
    """Who answered, and with which codes calls failed."""
    channel = channels.setdefault(name, grpc.insecure_channel(f"xds:///{name}"))
    who = channel.unary_unary(WHO)
    answered, failed = collections.Counter(), collections.Counter()
    for _ in range(times):
        try:
            answered[who(b"", timeout=2, wait_for_ready=False).decode()] += 1
        except grpc.RpcError as error:
            failed[f"{error.code().name}: {error.details()}"] += 1
    return {"answered": answered, "failed": failed}


for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "serve":
        print(json.dumps({"port": serve(asked["name"])}), flush=True)
    else:
        print(json.dumps(call(asked["name"], asked["times"])), flush=True)
