"""A client of Nacos over gRPC that does as it is told: nacos-sdk-python 3. Addresses (separated by commas) and the namespace are its arguments; each
line of its input is a call, each line of its output an answer, or what a subscription brought. Of its environment: NACOS_PASSWORD, with which it logs in;
NACOS_OFFSET, how far above the address gRPC is (1000); NACOS_CA, NACOS_CERT and NACOS_KEY, the files of TLS."""

import asyncio
import json
import os
import sys

from v2.nacos import (
    ClientConfigBuilder,
    ConfigParam,
    DeregisterInstanceParam,
    GRPCConfig,
    ListServiceParam,
    NacosConfigService,
    NacosNamingService,
    RegisterInstanceParam,
    SubscribeServiceParam,
    TLSConfig,
)

# What clients are told of an instance.
FIELDS = ["instanceId", "ip", "port", "weight", "healthy", "enabled", "ephemeral", "clusterName", "serviceName", "metadata"]


def say(**fields):
    print(json.dumps(fields), flush=True)


def configured(addresses, namespace):
    config = ClientConfigBuilder().server_address(addresses).namespace_id(namespace).log_level("ERROR")
    offset = int(os.environ.get("NACOS_OFFSET", "1000"))
    config = config.log_dir("log").cache_dir("cache").grpc_config(GRPCConfig(grpc_timeout=3000, port_offset=offset))
    if "NACOS_PASSWORD" in os.environ:
        config = config.username("anybody").password(os.environ["NACOS_PASSWORD"])
    if "NACOS_CA" in os.environ:
        files = {"ca_file": os.environ["NACOS_CA"], "cert_file": os.environ["NACOS_CERT"], "key_file": os.environ["NACOS_KEY"]}
        config = config.tls_config(TLSConfig(enabled=True, **files))
    return config.build()


def told(instances):
    """Address, health and metadata of each."""
    return sorted(([host.ip, host.healthy, host.metadata] for host in instances), key=lambda host: host[0])


CONFIGS = []


async def configs():
    """The client of the configuration service, which has a connection of its own."""
    if not CONFIGS:
        CONFIGS.append(await NacosConfigService.create_config_service(configured(*sys.argv[1:])))
    return CONFIGS[0]


def entry(asked, **more):
    return ConfigParam(data_id=asked["service"], group="g", **more)


async def carry_out_config(asked):
    client = await configs()
    if asked["do"] == "publish":
        say(published=await client.publish_config(entry(asked, content=asked["content"], cas_md5=asked.get("md5", ""))))
    elif asked["do"] == "get":
        say(got=await client.get_config(entry(asked)) or None)
    elif asked["do"] == "remove":
        say(removed=await client.remove_config(entry(asked)))
    elif asked["do"] == "listen":

        async def heard(namespace, group, data_id, content):
            say(heard=data_id, content=content)

        await client.add_listener(asked["service"], "g", heard)
        say(listening=asked["service"])


async def carry_out(client, asked):
    if asked["do"] in ("publish", "get", "remove", "listen"):
        return await carry_out_config(asked)
    service = asked["service"]
    if asked["do"] == "register":
        metadata = {"zone": asked["zone"]} if "zone" in asked else {}
        param = RegisterInstanceParam(service_name=service, group_name="DEFAULT_GROUP", ip=asked["ip"], port=80, metadata=metadata)
        say(registered=await client.register_instance(param))
    elif asked["do"] == "list":
        info = await client.grpc_client_proxy.query_instance_of_service(service, "DEFAULT_GROUP", "", False)
        say(listed=told(info.hosts))
    elif asked["do"] == "hosts":
        info = await client.grpc_client_proxy.query_instance_of_service(service, "DEFAULT_GROUP", asked["clusters"], asked["healthy"])
        say(hosts=[{field: getattr(host, field) for field in FIELDS} for host in info.hosts])
    elif asked["do"] == "deregister":
        param = DeregisterInstanceParam(service_name=service, group_name="DEFAULT_GROUP", ip=asked["ip"], port=80)
        say(deregistered=await client.deregister_instance(param))
    elif asked["do"] == "services":
        say(services=(await client.list_services(ListServiceParam(page_no=1, page_size=100))).services)
    elif asked["do"] == "subscribe":

        async def heard(instances):
            say(heard=service, hosts=told(instances))

        await client.subscribe(SubscribeServiceParam(service_name=service, subscribe_callback=heard))
        say(subscribed=service)


async def main(addresses, namespace):
    client = await NacosNamingService.create_naming_service(configured(addresses, namespace))
    say(ready=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            await carry_out(client, json.loads(line))
        except Exception as error:
            say(refused=str(error))


asyncio.run(main(*sys.argv[1:]))
