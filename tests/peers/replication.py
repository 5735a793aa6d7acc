"""Eureka's own server and two nodes of Kingpost's registry on one store, which replicate with each other: random changes at all of them, and a move of
all clients from one to the other and back, with restarts. With TLS, the server asks for a user and a password over https, as Spring Security does."""

import base64
import contextlib
import hashlib
import http.client
import json
import random
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import eureka
import fleet
from eureka import STATUSES, Node, Request, instances
from servers import ANSWER, http_status
from sources import Missing

TOKEN = "a-token-of-the-registry"
USER, PASSWORD = "eureka", "a-password-of-eurekas-server"
# Seconds: for a change to be everywhere, after which heartbeats help, and the lease and pace of the clients that move.
SEEN, BEATS, LEASE, PACE = 40, 5, 8, 1
FIELDS = ("ipAddr", "status", "overriddenStatus", "port", "vipAddress", "metadata", "lastDirtyTimestamp", "appGroupName", "homePageUrl", "dataCenterInfo")


class Door(NamedTuple):
    """How a server is asked."""

    port: int
    authorization: str
    context: ssl.SSLContext | None = None


class Certificates:
    """A certificate of the loopback, with its authority, and as Java trusts it."""

    def __init__(self, directory):
        for program in ("openssl", "keytool"):
            if shutil.which(program) is None:
                raise Missing(f"needs {program}; on Debian: apt-get install openssl default-jdk-headless")
        self.ca, self.certificate, self.key, self.trusted = (directory / name for name in ("ca.pem", "server.pem", "server.key", "trusted.p12"))
        (directory / "names").write_text("subjectAltName=IP:127.0.0.1")
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        for command in (
            ["openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", self.ca],
            ["openssl", "req", *key, "-subj", "/CN=127.0.0.1", "-keyout", self.key, "-out", "server.csr"],
            ["openssl", "x509", "-req", "-in", "server.csr", "-CA", self.ca, "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", self.certificate],
            ["keytool", "-importcert", "-noprompt", "-storetype", "PKCS12", "-storepass", "changeit", "-keystore", self.trusted, "-alias", "ca", "-file", self.ca],
        ):
            subprocess.run(command, cwd=directory, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=fleet.LIMIT)


class Server:
    """Eureka's own server, which can be stopped and started on its port."""

    def __init__(self, classes, directory, peers, certificates=None):
        port, self.directory, self.process = fleet.free_port(), directory, None
        self.address, self.door = f"http://127.0.0.1:{port}/eureka", Door(port, f"Bearer {TOKEN}")
        own, java, more = f"{self.address}/", ["-Xmx256m", "-XX:TieredStopAtLevel=1"], {}
        if certificates is not None:
            self.address = f"https://127.0.0.1:{port}/eureka"
            self.door = Door(port, "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode(), ssl.create_default_context(cafile=certificates.ca))
            own = f"https://{USER}:{PASSWORD}@127.0.0.1:{port}/eureka/"
            java += [f"-Djavax.net.ssl.trustStore={certificates.trusted}", "-Djavax.net.ssl.trustStorePassword=changeit"]
            more = {
                "server.ssl.certificate": f"file:{certificates.certificate}", "server.ssl.certificate-private-key": f"file:{certificates.key}",
                "spring.security.user.name": USER, "spring.security.user.password": PASSWORD,
            }
        options = {
            "server.port": port, "eureka.server.my-url": own, "eureka.client.fetch-registry": "true",
            "eureka.client.service-url.defaultZone": f"{own},{peers}", "eureka.server.registry-sync-retries": 20,
            "eureka.server.registry-sync-retry-wait-ms": 500, "eureka.server.eviction-interval-timer-in-ms": 1000,
            "eureka.client.registry-fetch-interval-seconds": 1, "eureka.instance.hostname": "eureka.invalid", **more,
        }
        self.command = ["java", *java, "-cp", classes, "EurekaPeer", *(f"--{key}={value}" for key, value in options.items())]

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

        self.door = Door(self.port, f"Bearer {TOKEN}")

    def url(self):
        return f"http://any:{TOKEN}@127.0.0.1:{self.port}/eureka/"

    def configure(self, server, certificates=None):
        access = ""
        if certificates is not None:
            password = self.directory / "password"
            password.write_text(PASSWORD + "\n")
            access = f'user = "{USER}"\npassword_file = "{password}"\nca_file = "{certificates.ca}"\n'
        (self.directory / f"{self.name}.toml").write_text(
            f'[registry]\nlisten = "127.0.0.1:{self.port}"\nstore = "sqlite:{self.directory / "registry.sqlite"}"\n'
            f'[[registry.tokens]]\nname = "test"\nrole = "admin"\nsha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"\n'
            f'[[registry.eureka.servers]]\nurl = "{server.address}"\n{access}'
            f'[metrics]\nlisten = "127.0.0.1:{self.metrics}"\n'
        )

    def start(self):
        def ready():
            with contextlib.suppress(OSError):
                return http_status(self.metrics, "/readyz") == 200
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

    def __init__(self, door):
        super().__init__(door.port)
        self.door = door
        if door.context is not None:
            self.connection = http.client.HTTPSConnection("127.0.0.1", door.port, timeout=ANSWER, context=door.context)

    def ask(self, request):
        try:
            return super().ask(request)
        except Exception as error:
            self.connection.close()
            raise OSError(str(error)) from error

    def headers(self):
        return {"Authorization": self.door.authorization}

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


def walk(doors, seed, number, steps, report):
    """Makes random changes of an application at random sides. After each, all sides show the same."""
    choose = random.Random(f"{seed} {number}")
    sides, app, dirty, there, told = [Side(door) for door in doors], f"R{number}", 1_700_000_000_000, set(), []
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
            door = self.at
            side = sides.setdefault(door.port, Side(door))
            try:
                status, *_ = side.ask(Request("heartbeat", "PUT", f"apps/MOVE/{self.one}?lastDirtyTimestamp=1700000000000"))
                if status == 404:
                    side.ask(eureka.registration("MOVE", body("MOVE", self.one, 1_700_000_000_000, LEASE, metadata={"of": self.one}), False))
            except OSError:
                if door is self.at:
                    self.at = self.others[(self.others.index(door) + 1) % len(self.others)]
                continue
            self.stop.wait(PACE)


class Watcher(threading.Thread):
    """Looks at a side all the time, and notes each look that lacks an instance, once all were there."""

    def __init__(self, name, door, all_of):
        super().__init__(daemon=True)
        self.name_of, self.door, self.all_of, self.missing, self.on, self.stop, self.looks = name, door, all_of, [], False, threading.Event(), 0

    def run(self):
        side = Side(self.door)
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
    doors = [server.door, *(node.door for node in nodes)]
    clients = [Client(one, server.door, doors[1:]) for one in sorted(names)]
    watchers = [Watcher(name, door, names) for name, door in zip(("server", "node 1", "node 2"), doors)]

    def everywhere(which=(0, 1, 2)):
        sides = [Side(doors[number]) for number in which]
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
        step("they go to the registry one by one", lambda: go_to(*doors[1:]))
        step("and are there", lambda: stay(2 * LEASE))
        watched(0, False)
        step("Eureka's server is stopped", lambda: (server.end(), stay(2 * LEASE)))
        step("and started again", lambda: (server.start(), everywhere()))
        watched(0, True)
        step("it has all", lambda: stay(LEASE))
        step("a node is killed", lambda: (nodes[0].end(signal.SIGKILL), stay(LEASE)))
        step("and started again", lambda: (nodes[0].start(), everywhere(), stay(LEASE)))
        step("the clients go back one by one", lambda: go_to(doors[0]))
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
        Side(doors[0]).ask(Request("deregister", "DELETE", f"apps/MOVE/{one}"))
    sides = [Side(door) for door in doors]
    until(lambda: f"no instance: {[sorted(side.view('MOVE')) for side in sides]}", lambda: not any(side.view("MOVE") for side in sides))


def compare(seed, numbers, steps, cache, directory, binary, report):
    """Makes the random changes, and the move; reports each difference."""
    replicate(seed, numbers, steps, cache, directory, binary, report, None)


def compare_tls(seed, numbers, steps, cache, directory, binary, report):
    """The same beside a server that is asked over https, with a user and a password."""
    replicate(seed, numbers, steps, cache, directory, binary, report, Certificates(directory))


def replicate(seed, numbers, steps, cache, directory, binary, report, certificates):
    classes = eureka.built(cache.parent / "eureka")
    nodes = [Registry(binary, directory, name) for name in ("one", "two")]
    server = Server(classes, directory, nodes[0].url(), certificates)
    lock = threading.Lock()

    def one_at_a_time(*difference):
        with lock:
            report(*difference)

    try:
        for node in nodes:
            node.configure(server, certificates)
            node.start()
        server.start()
        until(lambda: "the nodes to reach the server", lambda: all(node.has_looked() for node in nodes))
        doors = [server.door, *(node.door for node in nodes)]
        with ThreadPoolExecutor(max_workers=8) as pool:
            walks = [pool.submit(walk, doors, seed, number, steps, one_at_a_time) for number in numbers]
            for each in walks:
                each.result()
        move(server, nodes, report)
        for node in nodes:
            log = (directory / f"{node.name}.log").read_text()
            assert TOKEN not in log and PASSWORD not in log, "the token or the password is in the log"
    finally:
        server.end()
        for node in nodes:
            node.end()
