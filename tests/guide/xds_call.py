"""gRPC's own client of xDS, by the bootstrap of GRPC_XDS_BOOTSTRAP: it asks for the service `shop`, which this program serves at 10.0.0.1:8080, and prints
what it was answered. Needs grpcio (tests/clients/setup)."""

import concurrent.futures

import grpc

WHO = "/kingpost.test.Echo/Who"


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == WHO:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"the shop")


server = grpc.server(concurrent.futures.ThreadPoolExecutor(2), handlers=[Echo()])
server.add_insecure_port("10.0.0.1:8080")
server.start()
print(grpc.insecure_channel("xds:///shop").unary_unary(WHO)(b"", timeout=30, wait_for_ready=True).decode())
