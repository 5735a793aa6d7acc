"""A gRPC server with grpcio's own health service, on 127.0.0.1 at the port of the first argument: as a whole and as `shop` it
serves. After SIGUSR1 `shop` does not."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

STATUS = health_pb2.HealthCheckResponse.ServingStatus
# What one thread waits for, another one must not take.
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
servicer = health.HealthServicer()
server = grpc.server(ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
for service in ["", "shop"]:
    servicer.set(service, STATUS.Value("SERVING"))
server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
server.start()
while True:
    signal.sigwait([signal.SIGUSR1])
    servicer.set("shop", STATUS.Value("NOT_SERVING"))
