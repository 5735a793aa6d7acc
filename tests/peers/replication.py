"""Eureka's own server and two nodes of Kingpost's registry on one store, which replicate with each other: random changes at all of them, and a move of
all clients from one to the other and back, with restarts."""

import contextlib
import copy
import hashlib
import json
import random
import re
import signal
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import eureka
import fleet
from eureka import STATUSES, Node, Request, instances

TOKEN = "a-token-of-the-registry"
# Seconds: for a change to be everywhere, after which heartbeats help, and the lease and pace of the clients that move.
SEEN, BEATS, LEASE, PACE = 40, 5, 8, 1
FIELDS = ("ipAddr", "status", "overriddenStatus", "port", "vipAddress", "metadata", "lastDirtyTimestamp", "appGroupName", "homePageUrl", "dataCenterInfo")


class Server:
    """Eureka's own server, which can be stopped and started on its port."""

    def __init__(self, classes, directory, peers):
        self.port, self.directory, self.process = fleet.free_port(), directory, None
        own = f"http://127.0.0.1:{self.port}/eureka/"
        options = {
            "server.port": self.port, "eureka.server.my-url": own, "eureka.client.fetch-registry": "true",
            "eureka.client.service-url.defaultZone": f"{own},{peers}", "eureka.server.registry-sync-retries": 20,
            "eureka.server.registry-sync-retry-wait-ms": 500, "eureka.server.eviction-interval-timer-in-ms": 1000,
            "eureka.client.registry-fetch-interval-seconds": 1, "eureka.instance.hostname": "eureka.invalid",
        }
        self.command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, "EurekaPeer", *(f"--{key}={value}" for key, value in options.items())]

    def start(self):
        log = self.directory / "server.log"
        with open(log, "w") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out, stdin=subprocess.PIPE, cwd=self.directory)
        fleet.wait_for("Eureka's server to start", lambda: "listening" in log.read_text(), self.process, log)

    def end(self, how=signal.SIGKILL):
        if self.process is not None:
            fleet.end(self.process, how)


class Registry:
    """A node of Kingpost's registry with a token, beside a server of Eureka's."""

    def __init__(self, binary, directory, name):
        self.port, self.metrics, self.binary, self.directory, self.name, self.process = fleet.free_port(), fleet.free_port(), binary, directory, name, None

    def url(self):
        return f"http://any:{TOKEN}@127.0.0.1:{self.port}/eureka/"

    def configure(self, server):
        (self.directory / f"{self.name}.toml").write_text(
            f'[registry]\nlisten = "127.0.0.1:{self.port}"\nstore = "sqlite:{self.directory / "registry.sqlite"}"\n'
            f'[[registry.tokens]]\nname = "test"\nrole = "admin"\nsha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"\n'
            f'[[registry.eureka.servers]]\nurl = "http://127.0.0.1:{server}/eureka"\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.metrics}"\n'
        )

    def start(self):
        def ready():
            with contextlib.suppress(OSError):
                return eureka.http_status(self.metrics, "/readyz") == 200
            return False

        log = self.directory / f"{self.name}.log"
        with open(log, "a") as out:
            self.process = subprocess.Popen([self.binary, "registry", "--config", self.directory / f"{self.name}.toml"], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        fleet.wait_for("the registry to be ready", ready, self.process, log)

    def has_looked(self):
        """True once the node has taken over what the server has: what is removed meanwhile might come back for a lease."""
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5) as answer:
            return re.search(r"(?m)^kingpost_registry_eureka_server_reached\{.*\} 1$", answer.read().decode()) is not None
        return False

    def end(self, how=signal.SIGTERM):
        if self.process is not None:
            fleet.end(self.process, how)


class Side(Node):
    """A server that is asked; a request to one that is down fails with OSError."""

    def ask(self, request):
        if isinstance(request.body, str):
            request = copy.copy(request)
            request.body = request.body.encode()
        try:
            return super().ask(request)
        except Exception as error:
            self.connection.close()
            raise OSError(str(error)) from error

    def headers(self):
        return {"Authorization": f"Bearer {TOKEN}"}

    def view(self, app):
        """Returns the fields of an application's instances, by id."""
        status, kind, body = self.ask(Request("app", "GET", f"apps/{app}"))
        if status == 404:
            return {}
        assert status == 200, (status, body)
        found, _ = instances(eureka.parsed(kind, body))
        return {key[1]: {name: one.get(name) for name in FIELDS if name in one} for key, one in found.items()}


def until(what, condition):
    """Waits until a condition returns a value that is true; returns it. It is a failure after SEEN seconds."""
    end = time.monotonic() + SEEN
    while True:
        with contextlib.suppress(OSError):
            if value := condition():
                return value
        if time.monotonic() > end:
            raise AssertionError(f"in vain: {what()}")
        time.sleep(0.05)


def body(app, one, dirty, lease, **fields):
    return {
        "instanceId": one, "hostName": one, "app": app, "ipAddr": "10.0.0.1", "status": "UP", "vipAddress": app.lower(), "port": {"$": 8080, "@enabled": "true"},
        "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"}, "leaseInfo": {"durationInSecs": lease},
        "lastDirtyTimestamp": str(dirty), **fields,
    }


# === random changes ===


def walk(ports, seed, number, steps, report):
    """Makes random changes of an application at random sides. After each, all sides show the same."""
    choose = random.Random(f"{seed} {number}")
    sides, app, dirty, there, told = [Side(port) for port in ports], f"R{number}", 1_700_000_000_000, set(), []
    for _ in range(steps):
        one, side = choose.choice((f"r{number}-a", f"r{number} {{<&>}}")), choose.randrange(len(sides))
        path = f"apps/{app}/{eureka.quote(one)}"
        dirty += 1000
        kind = choose.choice(("register",) * 3 + ("heartbeat", "override", "end-override", "metadata", "deregister")) if one in there else "register"
        match kind:
            case "register":
                fields = choose.sample(
                    (("ipAddr", f"10.0.0.{choose.randint(1, 9)}"), ("status", choose.choice(STATUSES)), ("metadata", {"zone": choose.choice("ab"), "text": "<&>'\" ä"}),
                     ("vipAddress", "other"), ("appGroupName", "GROUP"), ("homePageUrl", "http://a/?x=1&y=2")), choose.randint(0, 3))
                request = eureka.registration(app, body(app, one, dirty, 600, **dict(fields)), choose.random() < 0.3)
                there.add(one)
            case "heartbeat":
                request = Request(kind, "PUT", path)
            case "override":
                request = Request(kind, "PUT", f"{path}/status?value={choose.choice(STATUSES)}&lastDirtyTimestamp={dirty}")
            case "end-override":
                request = Request(kind, "DELETE", f"{path}/status?value={choose.choice(STATUSES)}&lastDirtyTimestamp={dirty}")
            case "metadata":
                request = Request(kind, "PUT", f"{path}/metadata?zone={choose.choice('xy')}")
            case _:
                request = Request(kind, "DELETE", path)
                there.discard(one)
        told.append(f"at {('Eureka', 'the first node', 'the second node')[side]}: {request}")
        sides[side].ask(request)
        views, began = [{}], time.monotonic()

        def agree():
            views[:] = [each.view(app) for each in sides]
            # A change that changes nothing there is told all the same, and may meet the next one on its way: then heartbeats have the last word.
            if time.monotonic() > began + BEATS:
                for other in there:
                    sides[side].ask(Request("heartbeat", "PUT", f"apps/{app}/{eureka.quote(other)}"))
            return set(views[side]) == there and all(view == views[0] for view in views)

        try:
            until(lambda: "", agree)
        except AssertionError:
            for name, view in zip(("server", "node 1", "node 2"), views):
                if view != views[side] or set(view) != there:
                    report(request, f"replicated.{name}", json.dumps(views[side], sort_keys=True), json.dumps(view, sort_keys=True), told)
            return


# === the move ===


class Client(threading.Thread):
    """An instance: it renews its lease at its address, and registers where it is not known. A server that is down is left for the next one."""

    def __init__(self, one, at, others):
        super().__init__(daemon=True)
        self.one, self.at, self.others, self.stop = one, at, others, threading.Event()

    def run(self):
        sides = {}
        while not self.stop.is_set():
            port = self.at
            side = sides.setdefault(port, Side(port))
            try:
                status, *_ = side.ask(Request("heartbeat", "PUT", f"apps/MOVE/{self.one}?lastDirtyTimestamp=1700000000000"))
                if status == 404:
                    side.ask(eureka.registration("MOVE", body("MOVE", self.one, 1_700_000_000_000, LEASE, metadata={"of": self.one}), False))
            except OSError:
                if port == self.at:
                    self.at = self.others[(self.others.index(port) + 1) % len(self.others)]
                continue
            self.stop.wait(PACE)


class Watcher(threading.Thread):
    """Looks at a side all the time, and notes each look that lacks an instance, once all were there."""

    def __init__(self, name, port, all_of):
        super().__init__(daemon=True)
        self.name_of, self.port, self.all_of, self.missing, self.on, self.stop, self.looks = name, port, all_of, [], False, threading.Event(), 0

    def run(self):
        side = Side(self.port)
        while not self.stop.wait(0.1):
            with contextlib.suppress(OSError):
                view = side.view("MOVE")
                up = {one for one, fields in view.items() if fields["status"] == "UP"}
                if self.on:
                    self.looks += 1
                    if up != self.all_of:
                        self.missing.append(sorted(self.all_of - up))


def move(server, nodes, report):
    """Moves ten clients from Eureka's server to the registry and back. No server that is up ever lacks one of them."""
    names = {f"m{number}" for number in range(10)}
    ports = [server.port, *(node.port for node in nodes)]
    clients = [Client(one, server.port, ports[1:]) for one in sorted(names)]
    watchers = [Watcher(name, port, names) for name, port in zip(("server", "node 1", "node 2"), ports)]

    def everywhere(which=(0, 1, 2)):
        sides = [Side(ports[number]) for number in which]
        shown = lambda: [sorted(side.view("MOVE")) for side in sides]
        until(lambda: f"all instances at {which}: {shown()}", lambda: all(set(view) == names for view in shown()))

    def stay(seconds):
        # Longer than the lease of an instance that nobody renews.
        time.sleep(seconds)

    steps = []

    def step(what, work):
        steps.append(what)
        work()
        for watcher in watchers:
            if watcher.missing:
                report(Request("move", "GET", "apps/MOVE"), f"moved.{watcher.name_of}", "all", json.dumps(watcher.missing[:3]), steps)
                watcher.missing.clear()

    def go_to(*targets):
        for number, client in enumerate(clients):
            client.others = list(targets)
            client.at = targets[number % len(targets)]
            time.sleep(PACE / 4)
        everywhere()

    def watched(number, on):
        watchers[number].on = on

    for thread in clients + watchers:
        thread.start()
    try:
        everywhere()
        for watcher in watchers:
            watcher.on = True
        step("all clients are at Eureka's server", lambda: stay(2 * LEASE))
        step("they go to the registry one by one", lambda: go_to(*ports[1:]))
        step("and are there", lambda: stay(2 * LEASE))
        watched(0, False)
        step("Eureka's server is stopped", lambda: (server.end(), stay(2 * LEASE)))
        step("and started again", lambda: (server.start(), everywhere()))
        watched(0, True)
        step("it has all", lambda: stay(LEASE))
        step("a node is killed", lambda: (nodes[0].end(signal.SIGKILL), stay(LEASE)))
        step("and started again", lambda: (nodes[0].start(), everywhere(), stay(LEASE)))
        step("the clients go back one by one", lambda: go_to(ports[0]))
        step("and are there", lambda: stay(2 * LEASE))
        step("both nodes are stopped", lambda: ([node.end() for node in nodes], stay(2 * LEASE)))
        for number in (1, 2):
            watched(number, False)
        step("and started again", lambda: ([node.start() for node in nodes], everywhere()))
    finally:
        for thread in clients + watchers:
            thread.stop.set()
        for thread in clients + watchers:
            thread.join(2 * fleet.LIMIT)
    for watcher in watchers:
        assert watcher.looks > 50, f"{watcher.name_of} was looked at {watcher.looks} times only"
    # Each where its client was last: elsewhere a heartbeat on its way would bring it back for a lease.
    for one in sorted(names):
        Side(ports[0]).ask(Request("deregister", "DELETE", f"apps/MOVE/{one}"))
    sides = [Side(port) for port in ports]
    until(lambda: f"no instance: {[sorted(side.view('MOVE')) for side in sides]}", lambda: not any(side.view("MOVE") for side in sides))


def compare(seed, numbers, steps, cache, directory, binary, report):
    """Makes the random changes, and the move; reports each difference."""
    classes = eureka.built(cache.parent / "eureka")
    nodes = [Registry(binary, directory, name) for name in ("one", "two")]
    server = Server(classes, directory, nodes[0].url())
    lock = threading.Lock()

    def one_at_a_time(*difference):
        with lock:
            report(*difference)

    try:
        for node in nodes:
            node.configure(server.port)
            node.start()
        server.start()
        until(lambda: "the nodes to reach the server", lambda: all(node.has_looked() for node in nodes))
        ports = [server.port, *(node.port for node in nodes)]
        with ThreadPoolExecutor(max_workers=8) as pool:
            walks = [pool.submit(walk, ports, seed, number, steps, one_at_a_time) for number in numbers]
            for each in walks:
                each.result()
        move(server, nodes, report)
        for node in nodes:
            assert TOKEN not in (directory / f"{node.name}.log").read_text(), "the token is in the log"
    finally:
        server.end()
        for node in nodes:
            node.end()
