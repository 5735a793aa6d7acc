"""Eureka: its own server, a registry of Kingpost, and sequences of requests that both are sent."""

import contextlib
import gzip
import http.client
import json
import random
import re
import shutil
import signal
import subprocess
import xml.etree.ElementTree
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import fleet
from servers import ANSWER, kingpost
from sources import Missing

HERE = Path(__file__).resolve().parent
# Seconds for downloads and the compiler.
FETCH = 600
STATUSES = ("UP", "DOWN", "STARTING", "OUT_OF_SERVICE", "UNKNOWN")
JSON, XML = "application/json", "application/xml"


# === servers ===


def built(cache):
    """Returns the class path of Eureka's server, which Maven gets and compiles into `cache` once."""
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            raise Missing("needs Maven and Java 17; on Debian: apt-get install default-jdk-headless maven")
    project, stamp = HERE / "eureka", cache / "complete"
    text = "".join(path.read_text() for path in sorted(project.rglob("*")) if path.is_file())
    if not stamp.exists() or stamp.read_text() != text:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        command = ["mvn", "-q", "-B", "package", "dependency:copy-dependencies", f"-DoutputDirectory={cache / 'lib'}", f"-Dkingpost.build={cache}"]
        try:
            done = subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH)
        except subprocess.TimeoutExpired:
            raise Missing(f"Maven took longer than {FETCH} s") from None
        if done.returncode != 0:
            raise Missing("Maven: " + next((line for line in done.stdout.splitlines() if "ERROR" in line), str(done.returncode)))
        stamp.write_text(text)
    return f"{cache / 'classes'}:{cache / 'lib'}/*"


@contextlib.contextmanager
def peer(cache, directory):
    """Eureka's server; gives its port."""
    log = directory / "peer.log"
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", built(cache), "EurekaPeer"]
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.PIPE, cwd=directory)
    try:
        port = lambda: re.search(r"(?m)^listening (\d+)$", log.read_text())
        fleet.wait_for("Eureka's server to start", port, process, log)
        yield int(port()[1])
    finally:
        fleet.end(process, signal.SIGKILL)


class Node:
    """A server, by its port."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER)

    def headers(self):
        """Returns further headers of each request."""
        return {}

    def ask(self, request):
        """Returns status, kind and body of an answer."""
        headers = {"Accept": request.accept, "Content-Type": request.kind} | self.headers()
        if request.packed:
            headers["Accept-Encoding"] = "gzip"
        # Of a text http.client would make latin-1.
        body = request.body.encode() if request.body is not None else None
        self.connection.request(request.method, f"/eureka/{request.path}", body=body, headers=headers)
        answer = self.connection.getresponse()
        body = answer.read()
        if answer.getheader("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        return answer.status, (answer.getheader("Content-Type") or "").partition(";")[0], body.decode()


# === requests ===


class Request:
    """A request; `name` is its kind, for rules."""

    def __init__(self, name, method, path, body=None, kind=JSON, accept=JSON, packed=False):
        self.name, self.method, self.path, self.body, self.kind, self.accept, self.packed = name, method, path, body, kind, accept, packed

    def __str__(self):
        form = "xml" if XML in (self.accept, self.kind) else "json"
        return f"{self.method} /eureka/{self.path} ({form}) {self.body or ''}"


def xml_of(name, value):
    if isinstance(value, dict):
        attributes = "".join(f" {key[1:]}={quoteattr(str(text))}" for key, text in value.items() if key.startswith("@"))
        inner = "".join(escape(str(part)) if key == "$" else xml_of(key, part) for key, part in value.items() if not key.startswith("@"))
        return f"<{name}{attributes}>{inner}</{name}>"
    return f"<{name}>{escape(str(value))}</{name}>"


def registration(app, instance, xml):
    path = f"apps/{app}"
    if xml:
        return Request("register", "POST", path, xml_of("instance", instance), kind=XML)
    return Request("register", "POST", path, json.dumps({"instance": instance}))


class Sequence:
    """A random sequence of requests, in applications of its own. The same seed and number give the same sequence.

    An id is in one application only: Eureka's server keeps the statuses that operators set by the id alone. An instance tells its lastDirtyTimestamp always
    or never: Eureka's server takes its own clock for one that is not told."""

    def __init__(self, seed, number):
        self.random = random.Random(f"{seed} {number}")
        self.apps = [f"S{number}{letter}" for letter in "AB"]
        self.ids = {app: [f"{app.lower()}-0", f"10.0.0.1:{app.lower()}:8080", f"{app.lower()} {{<&>}}"] for app in self.apps}
        self.dirty = {one: 1_700_000_000_000 for ids in self.ids.values() for one in ids if self.chance(0.8)}
        self.sent = {}

    def chance(self, share):
        return self.random.random() < share

    def instance(self, app, one):
        """Returns an instance: a new one, or the last one with something changed."""
        choose, chance = self.random.choice, self.chance
        if one in self.sent and chance(0.7):
            instance = json.loads(json.dumps(self.sent[one]))
        else:
            instance = {
                "instanceId": one, "hostName": one, "app": choose((app, app.lower())), "ipAddr": "10.0.0.1", "status": "UP",
                "port": {"$": 8080, "@enabled": "true"},
                "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
                "leaseInfo": {"durationInSecs": 900}, "vipAddress": app.lower(),
            }
            if chance(0.1):
                # The host name is the id then.
                del instance["instanceId"]
        fields = {
            "ipAddr": lambda: f"10.0.0.{self.random.randint(1, 9)}",
            "status": lambda: choose(STATUSES),
            "port": lambda: {"$": choose((0, 80, 65535)), "@enabled": choose(("true", "false"))},
            "securePort": lambda: choose((None, {"$": choose((443, 8443)), "@enabled": choose(("true", "false"))})),
            "vipAddress": lambda: choose((None, app.lower(), f"{app.lower()},other", f"{app.lower()}, spaced", "Mixed")),
            "secureVipAddress": lambda: choose((None, app.lower(), f"a,{app.lower()}")),
            "metadata": lambda: choose((None, {}, {"zone": "a"}, {"zone": "b", "management.port": "8081"}, {"text": "<&>'\" ä", "empty": ""})),
            "leaseInfo": lambda: choose((None, {"durationInSecs": 600}, {"durationInSecs": 1200, "renewalIntervalInSecs": 7}, {"durationInSecs": 0})),
            "overriddenstatus": lambda: choose((None, "UNKNOWN", "UNKNOWN", "OUT_OF_SERVICE", "UP")),
            "homePageUrl": lambda: choose((None, "http://a/?x=1&y=2")),
            "statusPageUrl": lambda: choose((None, "http://a/status")),
            "healthCheckUrl": lambda: choose((None, "http://a/health")),
            "secureHealthCheckUrl": lambda: choose((None, "https://a/health")),
            "appGroupName": lambda: choose((None, "Group")),
            "asgName": lambda: choose((None, "asg")),
            "sid": lambda: choose((None, "na", "s1")),
            "countryId": lambda: choose((None, 1, 49)),
            "isCoordinatingDiscoveryServer": lambda: choose((None, "true", "false")),
            "dataCenterInfo": lambda: choose((
                {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"},
                {"@class": "com.netflix.appinfo.AmazonInfo", "name": "Amazon", "metadata": {"ami-id": "a1", "instance-id": one}},
            )),
        }
        for name in self.random.sample(sorted(fields), self.random.randint(0, 3)):
            value = fields[name]()
            instance.pop(name, None)
            if value is not None:
                instance[name] = value
        self.sent[one] = instance
        if one in self.dirty:
            self.dirty[one] += choose((0, 1, 1000))
            instance = instance | {"lastDirtyTimestamp": str(self.dirty[one] - (500 if chance(0.15) else 0))}
        return instance

    def write(self):
        """Returns a request that changes something, and the application and id that it is about."""
        choose, chance = self.random.choice, self.chance
        app = choose(self.apps)
        one = choose(self.ids[app])
        path = f"apps/{choose((app, app, app.lower()))}/{quote(one, safe=':')}"
        if one not in self.sent and chance(0.8):
            kind = "register"
        else:
            kind = choose(("register",) * 4 + ("heartbeat",) * 4 + ("override",) * 4 + ("end-override",) * 2 + ("metadata", "metadata", "deregister"))
        dirty = ""
        if one in self.dirty and chance(0.6):
            dirty = f"lastDirtyTimestamp={self.dirty[one] + choose((0, 0, 0, -2000, 2000))}"
        join = lambda *parts: "?" + "&".join(part for part in parts if part) if any(parts) else ""
        match kind:
            case "register":
                request = registration(choose((app, app.lower())), self.instance(app, one), chance(0.3))
            case "heartbeat":
                request = Request(kind, "PUT", path + join(choose(("", f"status={choose(STATUSES)}")), dirty))
            case "override":
                request = Request(kind, "PUT", f"{path}/status" + join(f"value={choose(STATUSES)}", choose(("", dirty))))
            case "end-override":
                request = Request(kind, "DELETE", f"{path}/status" + join(choose(("", f"value={choose(STATUSES)}")), choose(("", dirty))))
            case "metadata":
                request = Request(kind, "PUT", f"{path}/metadata" + join(*(f"{choose(('zone', 'a', 'b.c'))}={choose(('1', '', 'x%20y'))}" for _ in range(2))))
            case _:
                self.sent.pop(one, None)
                request = Request(kind, "DELETE", path)
        return request, app, one

    def reads(self, app, one):
        """Returns every way to ask about an instance."""
        form = lambda: self.random.choice((JSON, JSON, XML))
        packed = lambda: self.chance(0.3)
        yield Request("apps", "GET", self.random.choice(("apps", "apps/")), accept=form(), packed=packed())
        yield Request("delta", "GET", "apps/delta", accept=form(), packed=packed())
        yield Request("app", "GET", f"apps/{self.random.choice((app, app.lower()))}", accept=form())
        yield Request("instance", "GET", f"apps/{app}/{quote(one)}", accept=form())
        yield Request("by-id", "GET", f"instances/{quote(one)}", accept=form())
        for vip in (app.lower(), self.random.choice(("other", "spaced", "Mixed", "mixed", "a", "none"))):
            yield Request("vip", "GET", f"vips/{vip}", accept=form())
            yield Request("svip", "GET", f"svips/{vip}", accept=form())

    def end(self):
        """Returns requests that deregister everything."""
        for app, ids in self.ids.items():
            for one in ids:
                yield Request("deregister", "DELETE", f"apps/{app}/{quote(one)}")


def odd():
    """Returns requests that one of the servers may refuse, each with an application of its own."""
    whole = {
        "instanceId": "a", "hostName": "h", "app": "ODD", "ipAddr": "10.0.0.1", "status": "UP", "port": {"$": 80, "@enabled": "true"},
        "dataCenterInfo": {"@class": "com.netflix.appinfo.InstanceInfo$DefaultDataCenterInfo", "name": "MyOwn"}, "leaseInfo": {"durationInSecs": 900},
    }
    for name in ("instanceId", "hostName", "app", "ipAddr", "port", "dataCenterInfo", "leaseInfo", "status"):
        yield Request(f"register-without-{name}", "POST", "apps/ODD", json.dumps({"instance": {key: value for key, value in whole.items() if key != name}}))
    for name, value in (
        ("status", "FINE"), ("status", "up"), ("overriddenstatus", "FINE"), ("app", "OTHER"), ("port", {"$": 99999, "@enabled": "true"}),
        ("countryId", "Utopia"), ("lastDirtyTimestamp", "yesterday"), ("leaseInfo", {"durationInSecs": "soon"}), ("metadata", {"a": {"b": "c"}}),
    ):
        yield Request(f"register-with-odd-{name}", "POST", "apps/ODD", json.dumps({"instance": whole | {name: value}}))
    for name, body in (("nothing", ""), ("garbage", "{"), ("a-list", "[]"), ("no-instance", "{}")):
        yield Request(f"register-{name}", "POST", "apps/ODD", body)
    for path in ("apps/ODD/a/status?value=FINE", "apps/ODD/a/status?value=up", "apps/ODD/a/status", "apps/ODD/a?lastDirtyTimestamp=now", "apps/ODD/a/status?value=DOWN&lastDirtyTimestamp=now"):
        yield Request("odd-" + re.sub(r"\W+", "-", path.rpartition("/a")[2].strip("/?")), "PUT", path)
    for method, path in (
        ("GET", "nothing"), ("GET", "vips"), ("GET", "instances"), ("GET", "apps/NONE/none"), ("PUT", "apps/NONE/none"), ("DELETE", "apps/NONE/none"),
        ("PUT", "apps/NONE/none/status?value=UP"), ("DELETE", "apps/NONE/none/status"), ("PUT", "apps/NONE/none/metadata?a=b"),
        ("POST", "apps"), ("PUT", "apps"), ("DELETE", "apps/ODD"), ("POST", "apps/ODD/a"), ("PUT", "vips/a"),
    ):
        yield Request(f"odd-{method}-{re.sub(r'[^a-z]+', '-', path.partition('?')[0].lower())}", method, path)


# === answers ===


def tree_of_xml(element):
    """Returns an element as JSON would have it."""
    attributes = {f"@{key}": value for key, value in element.attrib.items()}
    parts = [(part.tag, tree_of_xml(part)) for part in element]
    tree = attributes | {key: value for key, value in parts if key not in ("application", "instance")}
    for name in ("application", "instance"):
        if found := [value for key, value in parts if key == name]:
            tree[name] = found
    if not tree:
        return element.text or ""
    return tree | ({"$": element.text} if element.text and element.text.strip() else {})


def parsed(kind, body):
    """Returns a body as a tree; text if it is neither JSON nor XML."""
    try:
        if kind == XML:
            root = xml.etree.ElementTree.fromstring(body)
            return {root.tag: tree_of_xml(root)}
        return json.loads(body)
    except (ValueError, xml.etree.ElementTree.ParseError):
        return body


def flat(value, path=""):
    """Gives the path and text of each value of a tree."""
    if isinstance(value, dict):
        if not value:
            yield path, "{}"
        for key, part in value.items():
            yield from flat(part, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from flat(part, f"{path}[{number}]")
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)


def instances(tree, only=lambda app: True):
    """Returns the instances of an answer, by application and id, and the rest of it without them: of the applications that are asked for."""
    found = {}

    def add(application):
        for instance in application.pop("instance", None) or []:
            found[application.get("name"), instance.get("instanceId") or instance.get("hostName")] = instance

    if "applications" in tree:
        rest = dict(tree["applications"]) if isinstance(tree["applications"], dict) else {"text": tree["applications"]}
        names = []
        for application in filter(lambda application: only(application.get("name")), rest.pop("application", None) or []):
            add(application)
            names.append(application.get("name"))
        return found, {"applications": rest | {"names": " ".join(sorted(map(str, names)))}}
    if "application" in tree:
        add(tree["application"])
        return found, tree
    if "instance" in tree:
        return {(tree["instance"].get("app"), ""): tree["instance"]}, {}
    return found, tree


def differences(request, ours, theirs, apps):
    """Gives the differences of two answers: the field, and both values. A value is None where it is missing.

    A delta is compared in `apps` only: what was changed three minutes ago leaves the two servers' deltas at different times."""
    if ours[0] != theirs[0]:
        yield "status-code", str(ours[0]), str(theirs[0])
    if request.method != "GET" or ours[0] != 200 or theirs[0] != 200:
        return
    if ours[1] != theirs[1]:
        yield "content-type", ours[1], theirs[1]
    trees = [parsed(answer[1], answer[2]) for answer in (ours, theirs)]
    if not all(isinstance(tree, dict) for tree in trees):
        yield "body", ours[2][:200], theirs[2][:200]
        return
    lists, rests = zip(*(instances(tree, lambda app: request.name != "delta" or app in apps) for tree in trees))
    yield from fields("", *rests)
    for key in sorted(lists[0].keys() | lists[1].keys(), key=str):
        one = [which.get(key) for which in lists]
        if None in one:
            yield "instance", *(None if it is None else f"{key[0]} {key[1]} {it.get('status')} {it.get('actionType')}" for it in one)
        else:
            yield from fields("instance", *one)


def fields(path, *trees):
    ours, theirs = (dict(flat(tree, path)) for tree in trees)
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield name, ours.get(name), theirs.get(name)


# === the client ===


class Client:
    """The cache of Eureka's client: everything once, then deltas; everything again only if the numbers of instances by status are not a delta's."""

    def __init__(self, node):
        self.node, self.seen = node, None

    def list(self, path):
        status, kind, body = self.node.ask(Request("client", "GET", path))
        assert status == 200, (path, status)
        return instances(parsed(kind, body))

    def poll(self):
        """Returns what the client has after one more poll."""
        if self.seen is not None:
            delta, rest = self.list("apps/delta")
            for key, instance in delta.items():
                if instance["actionType"] == "DELETED":
                    self.seen.pop(key, None)
                else:
                    self.seen[key] = instance["status"]
            counts = {}
            for status in self.seen.values():
                counts[status] = counts.get(status, 0) + 1
            code = "".join(f"{status}_{count}_" for status, count in sorted(counts.items()))
            if code == rest["applications"]["apps__hashcode"]:
                return self.seen
        self.seen = {key: instance["status"] for key, instance in self.list("apps")[0].items()}
        return self.seen


# === comparison ===


def compare(seed, numbers, steps, cache, directory, binary, report):
    """Sends sequences to both servers, and reports each difference."""
    with peer(cache, directory) as theirs, kingpost(binary, directory) as ours:
        nodes = Node(ours), Node(theirs)
        clients = [Client(node) for node in nodes]

        def both(request, told, apps=()):
            answers = [node.ask(request) for node in nodes]
            for field, one, other in differences(request, *answers, apps):
                report(request, field, one, other, told)
            return answers[0][0] == answers[1][0]

        for number in numbers:
            sequence, told = Sequence(seed, number), []
            for _ in range(steps):
                request, app, one = sequence.write()
                told.append(request)
                both(request, told, sequence.apps)
                for read in sequence.reads(app, one):
                    both(read, told, sequence.apps)
                if sequence.chance(0.3):
                    seen = [client.poll() for client in clients]
                    if seen[0] != seen[1]:
                        report(Request("client", "GET", "apps/delta"), "cache", *(json.dumps(sorted(map(str, it.items()))) for it in seen), told)
            for request in sequence.end():
                both(request, told)
        base = Request("register", "POST", "apps/ODD", json.dumps({"instance": json.loads(next(odd()).body)["instance"] | {"instanceId": "a"}}))
        for request in odd():
            if request.method != "POST":
                for node in nodes:
                    node.ask(base)
            if both(request, [request]):
                both(Request("odd-app", "GET", "apps/ODD"), [request])
            for node in nodes:
                for one in ("a", "h"):
                    node.ask(Request("deregister", "DELETE", f"apps/ODD/{one}"))
