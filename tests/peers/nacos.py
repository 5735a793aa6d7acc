"""Nacos: its own server, a registry of Kingpost, and sequences of requests that both are sent."""

import contextlib
import hashlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

import fleet
from answers import differences
from servers import ANSWER, kingpost
from sources import Missing

# Seconds until a change shows in every answer of Nacos' server, which tells itself of changes by events.
SEEN = 3
SERVICES, GROUPS, NAMESPACES, CLUSTERS = ("web", "api"), ("", "G"), ("", "dev"), ("", "c1")
IPS = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
LEASE = {"preserved.heart.beat.timeout": "900000", "preserved.ip.delete.timeout": "1800000"}
CONFIGS = ("app.yaml", "db")


# === servers ===


def free_ports():
    """Returns a port whose neighbours are free too: those of Raft, and of gRPC for clients and for servers."""
    for _ in range(100):
        port = fleet.free_port()
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError, OverflowError):
            for other in (port, port - 1000, port + 1000, port + 1001):
                taken.enter_context(socket.socket()).bind(("", other))
            return port
    raise SystemExit("no four free ports at the distances that Nacos' server needs")


@contextlib.contextmanager
def peer(directory):
    """Nacos' server, alone; gives its port."""
    jar = os.environ.get("KINGPOST_PEERS_NACOS")
    if not jar or not Path(jar).exists():
        raise Missing("KINGPOST_PEERS_NACOS names no file: it is target/nacos-server.jar of a release of Nacos 2.5, which is in no package registry")
    log, home, port = directory / "peer.log", directory / "home", free_ports()
    settings = {
        "nacos.standalone": "true", "nacos.home": home, "user.home": home, "server.address": "127.0.0.1", "nacos.inetutils.ip-address": "127.0.0.1", "server.port": port,
        "server.servlet.contextPath": "/nacos", "nacos.core.auth.enabled": "false", "nacos.core.auth.caching.enabled": "false", "nacos.naming.empty-service.auto-clean": "false",
        "nacos.config.push.maxRetryTime": "1", "nacos.istio.mcp.server.enabled": "false",
    }
    home.mkdir(parents=True)
    command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", *(f"-D{key}={value}" for key, value in settings.items()), "-jar", jar]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=directory)

    def ready():
        node = Node(port)
        with contextlib.suppress(OSError, http.client.HTTPException):
            return node.ask(Request("ready", "GET", "v2/console/health/readiness")).status == 200 and node.ask(Request("ready", "GET", "v1/ns/service/list", {"pageNo": 1, "pageSize": 1})).status == 200
        return False

    try:
        fleet.wait_for("Nacos' server to start", ready, process, log)
        # Persistent instances are probed in the server's own time: here they stay as they were registered.
        yield port
    finally:
        fleet.end(process, signal.SIGKILL)


class Answer:
    """An answer."""

    def __init__(self, status, kind, text):
        self.status, self.kind, self.text = status, kind, text

    def tree(self):
        try:
            return json.loads(self.text)
        except ValueError:
            return self.text


class Node:
    """A server, by its port."""

    def __init__(self, port):
        self.connection, self.port = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER), port

    def ask(self, request):
        parameters = urlencode({key: value for key, value in request.parameters.items() if value is not None})
        path, body, headers = f"/nacos/{request.path}", None, dict(request.headers)
        if request.form:
            body, headers["Content-Type"] = parameters.encode(), "application/x-www-form-urlencoded"
        elif parameters:
            path += "?" + parameters
        self.connection.request(request.method, path, body=body, headers=headers)
        answer = self.connection.getresponse()
        return Answer(answer.status, (answer.getheader("Content-Type") or "").partition(";")[0], answer.read().decode(errors="replace"))


class Request:
    """A request; `name` is its kind, for rules."""

    def __init__(self, name, method, path, parameters=None, form=False, headers=None):
        self.name, self.method, self.path, self.parameters, self.form, self.headers = name, method, path, parameters or {}, form, headers or {}

    def __str__(self):
        return f"{self.method} /nacos/{self.path} {self.parameters}{' in a form' if self.form else ''} {self.headers or ''}"


# === sequences ===


class Sequence:
    """A random sequence of requests. The same seed and number give the same sequence. A service's instances are ephemeral or not, all of them: so it is at Nacos."""

    def __init__(self, seed, number, port):
        self.random, self.port = random.Random(f"{seed} {number}"), port
        # Each sequence has services of its own: the original remembers of which kind one was.
        self.places = [(f"{service}{number}", group, namespace) for service in SERVICES for group in GROUPS for namespace in NAMESPACES]
        self.persistent = {place: self.chance(0.3) for place in self.places}
        # The place of the last change: most reads are about it.
        self.last = self.places[0]
        # An address is in one cluster: the original moves it to another one, where Kingpost has a second instance.
        self.clusters, self.registered = {}, set()

    def chance(self, share):
        return self.random.random() < share

    def choose(self, *values):
        return self.random.choice(values)

    def some(self, **fields):
        names = self.random.sample(sorted(fields), self.random.randint(0, len(fields)))
        return {name: self.random.choice(fields[name]) for name in names}

    def place(self):
        return self.random.choice(self.places[:4] if self.chance(0.7) else self.places)

    @staticmethod
    def service(place):
        service, group, namespace = place
        return {"serviceName": service} | ({"groupName": group} if group else {}) | ({"namespaceId": namespace} if namespace else {})

    def instance(self, place):
        """Returns the parameters that say which instance."""
        own = {"ip": "127.0.0.1", "port": self.port, "ephemeral": "false"} if self.persistent[place] else {"ip": self.random.choice(IPS), "port": self.choose(80, 8080)}
        cluster = self.clusters.setdefault((place, own["ip"], own["port"]), {"clusterName": "c1"} if self.chance(0.3) else {})
        return self.service(place) | cluster | own

    def metadata(self, place):
        own = self.choose({}, {}, {"zone": "a"}, {"zone": "b", "text": "ä <&> \""})
        return json.dumps(own if self.persistent[place] else own | LEASE, ensure_ascii=False)

    def naming(self):
        """Returns a request that changes instances or services."""
        place = self.last = self.place()
        version, form = self.choose("v1", "v1", "v2"), self.chance(0.3)
        kind = self.choose(*("register",) * 6, *("override",) * 2, "patch", *("deregister",) * 2, *("beat",) * 2, "service-create", "service-change", "service-delete", "health", "metadata")
        path = f"{version}/ns/instance"
        match kind:
            case "register":
                one = self.instance(place)
                self.registered.add((place, one["ip"], one["port"]))
                return Request(kind, "POST", path, one | self.some(weight=("1.0", "2.5", "0", "100"), enabled=("true", "false"), healthy=("true",)) | {"metadata": self.metadata(place)}, form)
            case "override" | "patch" if (place, (one := self.instance(place))["ip"], one["port"]) not in self.registered:
                # The original keeps what is said of an instance that is not there, for the time when it is; Kingpost refuses it (`odd`).
                return Request("deregister", "DELETE", path, one)
            case "override":
                return Request(kind, "PUT", path, one | self.some(weight=("1.0", "3", "0"), enabled=("true", "false")) | {"metadata": self.metadata(place)}, form)
            case "patch":
                return Request(kind, "PATCH", path, one | self.some(weight=("4", "0"), enabled=("true", "false"), metadata=(self.metadata(place),)))
            case "deregister":
                return Request(kind, "DELETE", path, self.instance(place))
            case "beat":
                # As clients name it: the original refuses a name without its group. A beat describes an ephemeral instance.
                one = self.instance(place) | {"serviceName": f"{place[1] or 'DEFAULT_GROUP'}@@{place[0]}"}
                if self.chance(0.5) and not self.persistent[place]:
                    beat = {"ip": one["ip"], "port": one["port"], "serviceName": f"{place[1] or 'DEFAULT_GROUP'}@@{place[0]}", "cluster": one.get("clusterName", "DEFAULT"), "weight": 1.0, "metadata": LEASE, "scheduled": True}
                    one["beat"] = json.dumps(beat)
                return Request(kind, "PUT", f"{path}/beat", one)
            case "service-create" | "service-change":
                method = "POST" if kind == "service-create" else "PUT"
                # Version 1 of the original makes persistent services only, which then refuse ephemeral instances.
                version = version if self.persistent[place] else "v2"
                return Request(kind, method, f"{version}/ns/service", self.service(place) | {"protectThreshold": self.choose("0", "0.5", "1")} | self.some(metadata=('{"a": "b"}', "a=b,c=d")) | {"ephemeral": str(not self.persistent[place]).lower()}, form)
            case "service-delete":
                return Request(kind, "DELETE", f"{version}/ns/service", self.service(place))
            case "health":
                return Request(kind, "PUT", f"{version}/ns/health/instance", self.instance(place) | {"healthy": self.choose("true", "false")})
            case _:
                one = self.instance(place)
                listed = [{key: value for key, value in (("ip", one["ip"]), ("port", str(one["port"])), ("clusterName", one.get("clusterName", "DEFAULT")), ("ephemeral", str(not self.persistent[place]).lower()))}]
                fields = self.service(place) | {"consistencyType": "persist" if self.persistent[place] else "ephemeral", "metadata": '{"batch": "1"}'}
                fields["serviceName"] = f"{place[1] or 'DEFAULT_GROUP'}@@{place[0]}"
                fields |= self.choose({}, {"instances": json.dumps(listed)})
                return Request("batch-metadata", self.choose("PUT", "PUT", "DELETE"), f"{version}/ns/instance/metadata/batch", fields)

    def config(self):
        """Returns a request that changes an entry."""
        fields = {"dataId": self.random.choice(CONFIGS), "group": self.choose("DEFAULT_GROUP", "G")} | self.choose({}, {}, {"tenant": "dev"})
        kind = self.choose("publish", "publish", "publish", "beta", "remove", "stop-beta", "cas")
        publish = fields | {"content": self.choose("a: 1", "ä\n", "b: 2\r\n", " ")} | self.some(type=("yaml", "text", "json", "odd"), appName=("shop",), desc=("what it is",), config_tags=("a,b",))
        match kind:
            case "publish":
                if self.chance(0.3):
                    publish["namespaceId"] = publish.pop("tenant", "")
                    return Request("publish-2", "POST", "v2/cs/config", publish, True)
                return Request(kind, "POST", "v1/cs/configs", publish, True)
            case "cas":
                return Request(kind, "POST", "v1/cs/configs", publish, True, {"casMd5": self.choose("0" * 32, hashlib.md5(b"a: 1").hexdigest())})
            case "beta":
                return Request(kind, "POST", "v1/cs/configs", publish, True, {"betaIps": self.choose("127.0.0.1", "10.0.0.9")})
            case "stop-beta":
                return Request(kind, "DELETE", "v1/cs/configs", fields | {"beta": "true"})
        return Request(kind, "DELETE", "v1/cs/configs", fields)

    def write(self):
        return self.config() if self.chance(0.3) else self.naming()

    def reads(self):
        """Gives ways to ask about what the sequence changes."""
        place = self.last if self.chance(0.6) else self.place()
        service, one = self.service(place), self.instance(place)
        page = {"pageNo": self.choose(1, 1, 2), "pageSize": self.choose(10, 1)}
        where = {key: value for key, value in service.items() if key != "serviceName"}
        for version in ("v1", "v2"):
            clusters = "clusters" if version == "v1" else "clusterName"
            yield Request(f"list-{version}", "GET", f"{version}/ns/instance/list", service | self.choose({}, {clusters: "c1"}, {"healthyOnly": "true"}, {clusters: "DEFAULT,c1"}))
            yield Request(f"instance-{version}", "GET", f"{version}/ns/instance", one)
            yield Request(f"service-{version}", "GET", f"{version}/ns/service", service)
            yield Request(f"services-{version}", "GET", f"{version}/ns/service/list", where | page)
        yield Request("catalog-instances", "GET", "v1/ns/catalog/instances", service | {"clusterName": "DEFAULT", "pageNo": 1, "pageSize": 10})
        entry = {"dataId": self.random.choice(CONFIGS), "group": self.choose("DEFAULT_GROUP", "G")}
        tenant = self.choose("", "dev")
        yield Request("config", "GET", "v1/cs/configs", entry | {"tenant": tenant})
        yield Request("config-all", "GET", "v1/cs/configs", entry | {"tenant": tenant, "show": "all"})
        yield Request("config-beta", "GET", "v1/cs/configs", entry | {"tenant": tenant, "beta": "true"})
        yield Request("config-2", "GET", "v2/cs/config", entry | {"namespaceId": tenant})
        yield Request("config-search", "GET", "v1/cs/configs", {"dataId": self.choose("*", "app*", ""), "group": "", "tenant": tenant, "pageNo": 1, "pageSize": 10, "search": self.choose("accurate", "blur")})
        yield Request("config-history", "GET", "v1/cs/history", entry | {"tenant": tenant, "search": "accurate", "pageNo": 1, "pageSize": 5})

    def end(self):
        """Gives requests that remove everything."""
        for place in self.places:
            for cluster in CLUSTERS:
                for ip, port in ([("127.0.0.1", self.port)] if self.persistent[place] else [(ip, port) for ip in IPS for port in (80, 8080)]):
                    fields = self.service(place) | {"ip": ip, "port": port, "ephemeral": str(not self.persistent[place]).lower()} | ({"clusterName": cluster} if cluster else {})
                    yield Request("deregister", "DELETE", "v1/ns/instance", fields)
            yield Request("service-delete", "DELETE", "v1/ns/service", self.service(place))
        for name in CONFIGS:
            for group in ("DEFAULT_GROUP", "G"):
                for tenant in ("", "dev"):
                    for more in ({"beta": "true"}, {}):
                        yield Request("remove", "DELETE", "v1/cs/configs", {"dataId": name, "group": group, "tenant": tenant} | more)


def odd():
    """Gives requests that one of the servers may refuse."""
    good = {"serviceName": "odd", "ip": "10.0.0.1", "port": 80}
    for version in ("v1", "v2"):
        for name, fields in (
            ("no-service", {"ip": "10.0.0.1", "port": 80}), ("no-ip", {"serviceName": "odd", "port": 80}), ("no-port", {"serviceName": "odd", "ip": "10.0.0.1"}), ("text-port", good | {"port": "web"}), ("big-port", good | {"port": 70000}),
            ("negative-port", good | {"port": -1}), ("text-weight", good | {"weight": "much"}), ("negative-weight", good | {"weight": "-1"}), ("big-weight", good | {"weight": "20000"}), ("odd-enabled", good | {"enabled": "maybe"}), ("odd-metadata", good | {"metadata": "nonsense"}),
            ("list-metadata", good | {"metadata": "[1]"}), ("odd-cluster", good | {"clusterName": "a b"}), ("odd-name", good | {"serviceName": "a b"}), ("empty-name", good | {"serviceName": "@@"}), ("group-in-name", good | {"serviceName": "G@@odd"}), ("odd-ephemeral", good | {"ephemeral": "maybe"}),
            ("odd-lease", good | {"metadata": '{"preserved.heart.beat.timeout": "soon"}'}), ("short-lease", good | {"metadata": '{"preserved.heart.beat.timeout": "1000", "preserved.heart.beat.interval": "5000"}'}), ("name-as-ip", good | {"ip": "host.example"}), ("number-metadata", good | {"metadata": '{"a": 1}'}),
        ):
            yield Request(f"odd-{version}-register-{name}", "POST", f"{version}/ns/instance", fields)
        for method, path, fields in (
            ("GET", "ns/instance", good), ("GET", "ns/instance", {"serviceName": "odd"}), ("PUT", "ns/instance", good | {"weight": "2"}), ("PATCH", "ns/instance", good | {"weight": "2"}), ("DELETE", "ns/instance", good), ("DELETE", "ns/instance", {"serviceName": "odd"}), ("PUT", "ns/instance/beat", {"serviceName": "odd"}),
            ("PUT", "ns/instance/beat", good), ("PUT", "ns/instance/beat", {"serviceName": "odd", "beat": "{"}), ("GET", "ns/instance/list", {}), ("GET", "ns/instance/list", {"serviceName": "none"}), ("GET", "ns/service", {"serviceName": "none"}), ("GET", "ns/service", {}), ("POST", "ns/service", {}),
            ("POST", "ns/service", {"serviceName": "odd", "protectThreshold": "2"}), ("POST", "ns/service", {"serviceName": "odd", "protectThreshold": "half"}), ("PUT", "ns/service", {"serviceName": "none", "protectThreshold": "0"}), ("DELETE", "ns/service", {"serviceName": "none"}), ("GET", "ns/service/list", {}),
            ("GET", "ns/service/list", {"pageNo": 0, "pageSize": 10}), ("GET", "ns/service/list", {"pageNo": "x", "pageSize": 10}), ("PUT", "ns/health/instance", good), ("PUT", "ns/health/instance", good | {"healthy": "true"}), ("GET", "ns/nothing", {}), ("GET", "nothing", {}), ("PUT", "ns/instance/list", {}), ("PUT", "ns/instance/metadata/batch", {}),
            ("PUT", "ns/instance/metadata/batch", {"serviceName": "none", "metadata": '{"a": "b"}'}),
        ):
            yield Request(f"odd-{version}-{method}-{path.replace('/', '-')}-{'-'.join(sorted(fields.keys() - {'serviceName', 'ip', 'port'})) or len(fields)}", method, f"{version}/{path}", fields)
    entry = {"dataId": "odd", "group": "DEFAULT_GROUP"}
    for method, path, fields in (
        ("GET", "v1/cs/configs", {}), ("GET", "v1/cs/configs", {"dataId": "odd"}), ("GET", "v1/cs/configs", entry), ("GET", "v2/cs/config", entry), ("GET", "v2/cs/config", {}), ("POST", "v1/cs/configs", entry), ("POST", "v1/cs/configs", entry | {"content": ""}), ("POST", "v1/cs/configs", {"dataId": "odd", "content": "a"}),
        ("POST", "v1/cs/configs", entry | {"content": "a", "dataId": "a b"}), ("POST", "v1/cs/configs", entry | {"content": "a", "tenant": "a b"}), ("POST", "v2/cs/config", entry), ("DELETE", "v1/cs/configs", entry), ("DELETE", "v1/cs/configs", {}), ("DELETE", "v2/cs/config", entry), ("GET", "v1/cs/history", {}),
        ("GET", "v1/cs/configs/listener", entry), ("POST", "v1/cs/configs/listener", {}), ("POST", "v1/cs/configs/listener", {"Listening-Configs": "nonsense"}), ("GET", "v1/cs/nothing", {}), ("PUT", "v1/cs/configs", entry), ("GET", "v1/console/namespaces", {}), ("POST", "v1/auth/login", {"username": "nacos", "password": "nacos"}),
        ("POST", "v1/auth/login", {}), ("GET", "v1/ns/operator/metrics", {}), ("GET", "v1/console/server/state", {}), ("GET", "v2/console/namespace/list", {}),
    ):
        yield Request(f"odd-{method}-{path.replace('/', '-')}-{'-'.join(sorted(fields.keys() - {'dataId', 'group'})) or len(fields)}", method, path, fields, method == "POST")


# === comparison ===


def name_of(part):
    """Returns the id of an entry of a list."""
    if not isinstance(part, dict):
        return None
    if "ip" in part:
        return f"{part['ip']}:{part.get('port')}:{part.get('clusterName')}"
    return next((str(part[key]) for key in ("dataId", "name") if part.get(key)), None)


def compared(request, ours, theirs):
    """Gives the differences of two answers."""
    if ours.status != theirs.status:
        yield "status-code", str(ours.status), str(theirs.status)
        yield "error", ours.text[:200], theirs.text[:200]
        return
    trees = [answer.tree() for answer in (ours, theirs)]
    if ours.status >= 400 and not all(isinstance(tree, dict) for tree in trees):
        if ours.text.strip() != theirs.text.strip():
            yield "error", ours.text[:200].strip(), theirs.text[:200].strip()
        return
    if ours.kind != theirs.kind:
        yield "content-type", ours.kind, theirs.kind
    yield from differences("", *trees, name_of)


class Pair:
    """Both servers; `report` is told each difference that stays."""

    def __init__(self, ours, theirs, report):
        self.nodes, self.report, self.told = (Node(ours), Node(theirs)), report, []

    def both(self, request, seen=0):
        end = time.monotonic() + seen
        while True:
            found = list(compared(request, *(node.ask(request) for node in self.nodes)))
            if all(self.report.allows(request, *difference) for difference in found) or time.monotonic() > end:
                break
            time.sleep(0.05)
        for difference in found:
            self.report(request, *difference, self.told)

    def listen(self, sequence):
        """Listens at both for an entry, which is then published."""
        entry = {"dataId": "app.yaml", "group": "G"}
        content = str(sequence.random.random())
        publish = Request("publish", "POST", "v1/cs/configs", entry | {"content": content}, True)
        self.told.append(publish)
        answers = [None, None]
        # A client with a gray release is told of changes of the other content by the original, which then shows it the same as before.
        for node in self.nodes:
            node.ask(Request("stop-beta", "DELETE", "v1/cs/configs", entry | {"beta": "true"}))

        def wait(number, port):
            node = Node(port)
            before = node.ask(Request("before", "GET", "v1/cs/configs", entry))
            known = hashlib.md5(before.text.encode()).hexdigest() if before.status == 200 else ""
            listening[number].set()
            asked = Request("listen", "POST", "v1/cs/configs/listener", {"Listening-Configs": f"app.yaml\x02G\x02{known}\x01"}, True, {"Long-Pulling-Timeout": "20000"})
            answers[number] = node.ask(asked)

        listening = [threading.Event(), threading.Event()]
        threads = [threading.Thread(target=wait, args=(number, node.port), daemon=True) for number, node in enumerate(self.nodes)]
        for thread, event in zip(threads, listening):
            thread.start()
            event.wait(ANSWER)
        for node in self.nodes:
            node.ask(publish)
        for thread in threads:
            thread.join(ANSWER)
        for difference in compared(Request("listen", "POST", "v1/cs/configs/listener"), *answers):
            self.report(publish, *difference, self.told)


def compare(seed, numbers, steps, cache, directory, binary, report):
    """Sends sequences to both servers, and reports each difference."""
    with socket.socket() as listening, peer(directory) as theirs, kingpost(binary, directory) as ours:
        # Probes of persistent instances find somebody here.
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        pair = Pair(ours, theirs, report)
        for number in numbers:
            sequence = Sequence(seed, number, listening.getsockname()[1])
            pair.told.clear()
            for _ in range(steps):
                request = sequence.write()
                pair.told.append(request)
                pair.both(request)
                for read in sequence.reads():
                    pair.both(read, SEEN)
            pair.listen(sequence)
            for request in sequence.end():
                for node in pair.nodes:
                    node.ask(request)
        for request in odd():
            pair.told[:] = [request]
            pair.both(request)
            for node in pair.nodes:
                for name in ("odd", "G@@odd"):
                    node.ask(Request("deregister", "DELETE", "v1/ns/instance", {"serviceName": name, "ip": "10.0.0.1", "port": 80}))
                    node.ask(Request("service-delete", "DELETE", "v1/ns/service", {"serviceName": name}))
