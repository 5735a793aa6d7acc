"""py_eureka_client at its usual work: register, heartbeat, discover, status, expire, deregister. EUREKA_URL says where."""

import asyncio
import os
import uuid

import py_eureka_client.eureka_basic as basic
from py_eureka_client.eureka_client import EurekaClient
from tap import check, run

URL = os.environ["EUREKA_URL"]
LIMIT = 20


def unique(stem):
    return f"{stem}-{uuid.uuid4().hex[:8]}"


def make(app, **more):
    return EurekaClient(
        eureka_server=URL, app_name=app, instance_ip="10.0.0.1", instance_host="a.example", instance_port=8080,
        renewal_interval_in_secs=1, metadata={"zone": "z1", "a.b": "<&>"}, **more,
    )


async def statuses(app):
    applications = await basic.get_applications(URL)
    found = applications.get_application(app.upper())
    return sorted(instance.status for instance in found.instances) if found else []


async def until(what, condition):
    for _ in range(LIMIT * 50):
        if await condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(what)


@check
async def a_client_comes_is_found_and_goes():
    app = unique("shop")
    client = make(app, duration_in_secs=5)
    await client.start()
    try:
        found = await basic.get_application(URL, app.upper())
        (instance,) = found.instances
        assert (instance.ipAddr, instance.hostName, instance.port.port) == ("10.0.0.1", "a.example", 8080)
        assert instance.status == "UP" and instance.vipAddress == app
        assert instance.metadata["a.b"] == "<&>" and instance.metadata["zone"] == "z1", instance.metadata
        assert "kingpost.eureka" not in instance.metadata
        await client.send_heartbeat()
        same = await basic.get_app_instance(URL, app.upper(), instance.instanceId)
        assert same.instanceId == instance.instanceId
        applications = await basic.get_applications(URL)
        counts = {}
        for application in applications.applications:
            for one in application.instances:
                counts[one.status] = counts.get(one.status, 0) + 1
        code = "".join(f"{status}_{count}_" for status, count in sorted(counts.items()))
        assert applications.appsHashcode == code, (applications.appsHashcode, code)
        delta = await basic.get_delta(URL)
        assert any(application.name == app.upper() for application in delta.applications)
        by_vip = await basic.get_vip(URL, app)
        assert [application.name for application in by_vip.applications] == [app.upper()]
        await client.status_update("OUT_OF_SERVICE")
        assert await statuses(app) == ["OUT_OF_SERVICE"]
        await client.delete_status_override()

        async def up():
            return await statuses(app) == ["UP"]

        # UNKNOWN until its next heartbeat is told to register again.
        await until("it has its own status again", up)
    finally:
        await client.stop()
    assert await statuses(app) == []


@check
async def who_is_silent_expires():
    app = unique("silent")

    async def up():
        # On a slow machine the lease may be over before it is looked.
        await basic.register(URL, instance(app, lease=1))
        return await statuses(app) == ["UP"]

    async def gone():
        return await statuses(app) == []

    await until("it is seen", up)
    await until("the lease ends", gone)


@check
async def a_stranger_has_to_register():
    try:
        await basic.send_heartbeat(URL, "NOBODY", "nobody", 1)
    except Exception as error:
        assert "404" in str(error), error
    else:
        raise AssertionError("a heartbeat of a stranger is accepted")


def instance(app, lease):
    return basic.Instance(
        instanceId=f"10.0.0.2:{app}:80", hostName="b.example", app=app.upper(), ipAddr="10.0.0.2",
        port=basic.PortWrapper(port=80, enabled=True), securePort=basic.PortWrapper(port=443, enabled=False),
        status="UP", vipAddress=app, leaseInfo=basic.LeaseInfo(renewalIntervalInSecs=1, durationInSecs=lease),
        dataCenterInfo=basic.DataCenterInfo(), metadata={},
    )


run()
