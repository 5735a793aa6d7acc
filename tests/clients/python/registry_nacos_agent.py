"""A client of Nacos over gRPC that does as it is told: nacos-sdk-python 3. Addresses (separated by commas) and the namespace are its arguments; each
line of its input is a call, each line of its output an answer, or what a subscription brought."""

import asyncio
import json
import sys

from v2.nacos import (
    ClientConfigBuilder,
    GRPCConfig,
    NacosNamingService,
    RegisterInstanceParam,
    SubscribeServiceParam,
)


def say(**fields):
    print(json.dumps(fields), flush=True)


async def main(addresses, namespace):
    config = ClientConfigBuilder().server_address(addresses).namespace_id(namespace).log_level("ERROR")
    config = config.log_dir("log").cache_dir("cache").grpc_config(GRPCConfig(grpc_timeout=3000))
    client = await NacosNamingService.create_naming_service(config.build())
    say(ready=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        service = asked["service"]
        if asked["do"] == "register":
            param = RegisterInstanceParam(service_name=service, group_name="DEFAULT_GROUP", ip=asked["ip"], port=80)
            say(registered=await client.register_instance(param))
        elif asked["do"] == "list":
            info = await client.grpc_client_proxy.query_instance_of_service(service, "DEFAULT_GROUP", "", False)
            say(listed=sorted(host.ip for host in info.hosts))
        elif asked["do"] == "subscribe":

            async def told(instances, service=service):
                say(heard=service, ips=sorted(host.ip for host in instances))

            await client.subscribe(SubscribeServiceParam(service_name=service, subscribe_callback=told))
            say(subscribed=service)


asyncio.run(main(*sys.argv[1:]))
