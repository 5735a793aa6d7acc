"""Consul: its own agent, a registry of Kingpost, and sequences of requests that both are sent."""

import base64
import concurrent.futures
import contextlib
import http.client
import json
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from urllib.parse import quote, urlencode

import fleet
from answers import differences
from servers import ANSWER, kingpost
from sources import Missing

HERE = Path(__file__).resolve().parent
# Seconds: for downloads and the compiler, for a change of the agent to be in its catalog, and for a blocking query.
BUILD, SETTLED, WAIT = 1800, 20, 3
# The agent's name is its address, as at Kingpost.
AGENT = "127.0.0.1"
STATUSES = ("passing", "warning", "critical")
HEADERS = ("x-consul-index", "x-consul-knownleader", "x-consul-lastcontact", "x-consul-effective-consistency", "x-consul-default-acl-policy", "x-consul-results-filtered-by-acls", "content-type")
MANAGER = "2f0c9a3e-8a53-4b5e-9d0e-3b8f6a1c7d11"


# === servers ===


def built(cache):
    """Returns Consul's agent, which Go gets and compiles into `cache` once."""
    if shutil.which("go") is None:
        raise Missing("needs Go 1.22 or newer; on Debian: apt-get install golang-go")
    project, stamp, program = HERE / "consul", cache / "complete", cache / "consul"
    text = "".join(path.read_text() for path in sorted(project.iterdir()))
    if not stamp.exists() or stamp.read_text() != text:
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        try:
            done = subprocess.run(["go", "build", "-o", program, "."], cwd=project, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD)
        except subprocess.TimeoutExpired:
            raise Missing(f"Go took longer than {BUILD} s") from None
        if done.returncode != 0:
            raise Missing("Go: " + (done.stderr.strip().splitlines() or ["it failed"])[-1])
        stamp.write_text(text)
    return program


@contextlib.contextmanager
def peer(cache, directory, with_rules):
    """Consul's agent, the server of a datacenter of its own; gives its port."""
    log, config = directory / "peer.log", directory / "peer.json"
    ports = {name: fleet.free_port() for name in ("http", "server", "serf_lan", "serf_wan")}
    settings = {
        "node_name": AGENT, "bind_addr": AGENT, "client_addr": AGENT, "ports": ports | {"dns": -1, "grpc": -1, "grpc_tls": -1}, "log_level": "WARN",
        "disable_update_check": True, "check_update_interval": "0s",
    }
    if with_rules:
        settings["acl"] = {"enabled": True, "default_policy": "deny", "tokens": {"initial_management": MANAGER, "agent": MANAGER}}
    config.write_text(json.dumps(settings))
    with open(log, "w") as out:
        process = subprocess.Popen([built(cache), "-dev", f"-config-file={config}"], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=directory)
    node = Node(ports["http"])

    def ready():
        with contextlib.suppress(OSError, http.client.HTTPException):
            token = MANAGER if with_rules else None
            return AGENT in node.ask(Request("ready", "GET", "catalog/nodes", token=token)).text
        node.connection.close()
        return False

    try:
        fleet.wait_for("Consul's agent to start", ready, process, log)
        yield ports["http"]
    finally:
        fleet.end(process, signal.SIGKILL)


class Answer:
    """An answer; `text` has placeholders in the place of the server's own ids."""

    def __init__(self, status, headers, text):
        self.status, self.headers, self.text = status, headers, text

    def tree(self):
        try:
            return json.loads(self.text)
        except ValueError:
            return self.text


class Node:
    """A server, by its port. `names` has its own ids by their placeholders: a session has another id at each."""

    def __init__(self, port):
        self.connection, self.names, self.port, self.seen = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER), {}, port, {}

    def own(self, text):
        """Returns a text with this server's ids; `{M:KEY}` is the key's ModifyIndex."""
        for name, value in self.names.items():
            text = text.replace(name, value)
        for key in set(re.findall(r"\{M:([^}]*)\}", text)):
            found = self.ask(Request("index", "GET", f"kv/{key}")).tree()
            text = text.replace(f"{{M:{key}}}", str(found[0]["ModifyIndex"] if isinstance(found, list) else 1))
        return text

    def ask(self, request):
        body = request.body
        if isinstance(body, str):
            body = self.own(body).encode()
        elif body is not None and not isinstance(body, bytes):
            body = self.own(json.dumps(body)).encode()
        headers = {} if request.token is None else {"X-Consul-Token": self.own(request.token)}
        self.connection.request(request.method, quote("/v1/" + self.own(request.path), safe="/?&=%+,:"), body=body, headers=headers)
        answer = self.connection.getresponse()
        text = answer.read().decode(errors="replace")
        if request.makes and answer.status == 200:
            for field, name in request.makes.items():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self.names[name] = json.loads(text)[field]
        for name, value in self.names.items():
            text = text.replace(value, name)
        return Answer(answer.status, {name: answer.getheader(name) for name in HEADERS}, text)


class Request:
    """A request; `name` is its kind, for rules, and `makes` the placeholders of ids in its answer."""

    def __init__(self, name, method, path, body=None, makes=None, token=None):
        self.name, self.method, self.path, self.body, self.makes, self.token = name, method, path, body, makes or {}, token

    def __str__(self):
        body = self.body if isinstance(self.body, (str, bytes, type(None))) else json.dumps(self.body)
        return f"{self.method} /v1/{self.path} {body if body is not None else ''}{'' if self.token is None else f' as {self.token}'}"


# === sequences ===


SERVICES = ("web", "Api/v1")
IDS = {"web": ("web-1", "web-2"), "Api/v1": ("api-3", "api/1")}
# Ids of services that are put into the catalog: Kingpost finds an id of one host from everywhere.
OTHERS = ("other-1", "other/2")
NODES = ("db-1", "DB-2")
KEYS = ("a", "a/b", "a/b/c", "a/ä", "lock")
CHECKS = ("mem", "disk/1")


class Sequence:
    """A random sequence of requests. The same seed and number give the same sequence."""

    def __init__(self, seed, number):
        self.random = random.Random(f"{seed} {number}")
        self.sessions, self.queries, self.made, self.number = [], [], 0, number

    def chance(self, share):
        return self.random.random() < share

    def choose(self, *values):
        return self.random.choice(values)

    def some(self, **fields):
        """Returns some of the fields, each with one of its values."""
        names = self.random.sample(sorted(fields), self.random.randint(0, min(4, len(fields))))
        return {name: self.random.choice(fields[name]) for name in names}

    def check(self, **more):
        kind = self.choose({"TTL": "600s"}, {"TTL": "10m"}, {"TTL": "600s"}, {"HTTP": "http://127.0.0.1:1/", "Interval": "600s"}, {"TCP": "127.0.0.1:1", "Interval": "600s", "Timeout": "1s"})
        return kind | self.some(
            Status=STATUSES, Notes=("a note", "ä"), Name=("Memory", ""), DeregisterCriticalServiceAfter=("90m",), SuccessBeforePassing=(0, 2), FailuresBeforeCritical=(0, 3)) | more

    def service(self, name):
        return self.some(
            Tags=(["v1"], ["v1", "Primary"], [], None), Port=(0, 80, 65535), Address=(AGENT, ""), Meta=({"version": "1"}, {}, {"a-b_c": "ä <&>"}),
            Weights=({"Passing": 10, "Warning": 1}, {"Passing": 1, "Warning": 1}, {"Passing": 3}), EnableTagOverride=(True, False),
            TaggedAddresses=({"lan": {"Address": "10.0.0.9", "Port": 80}}, {}),
        ) | {name: self.random.choice(SERVICES)}

    def write(self):
        """Returns a request that changes something."""
        kind = self.choose(
            *("agent-register",) * 5, *("agent-report",) * 5, *("agent-deregister",) * 2, *("agent-maintenance",) * 2, *("agent-check",) * 2, "agent-check-deregister",
            "node-maintenance", *("catalog-register",) * 4, *("catalog-deregister",) * 2, *("kv-put",) * 6, *("kv-delete",) * 2, *("session-create",) * 2,
            "session-end", "session-renew", *("txn",) * 3, *("query-write",) * 2, "query-delete", "event-fire")
        return getattr(self, kind.replace("-", "_"))()

    def one(self):
        service = self.random.choice(SERVICES)
        return service, self.random.choice(IDS[service])

    def agent_register(self):
        body = self.service("Name")
        body["ID"] = self.random.choice(IDS[body["Name"]])
        if self.chance(0.1):
            del body["ID"]
        # An id is one check's of an agent at the original, and of a service at Kingpost.
        own = body.get("ID", body["Name"])
        checks = [self.check(**self.some(CheckID=(f"{own}-c1", f"{own}/c2"))) for _ in range(self.choose(0, 1, 1, 2))]
        if len({check.get("CheckID") for check in checks}) < len(checks):
            checks = checks[:1]
        if len(checks) == 1 and self.chance(0.5):
            body["Check"] = checks[0]
        elif checks:
            body["Checks"] = checks
        return Request("agent-register", "PUT", f"agent/service/register{self.choose('', '', '?replace-existing-checks=true')}", body)

    def agent_report(self):
        _, one = self.one()
        check = self.choose(f"service:{one}", f"service:{one}", f"service:{one}", f"service:{one}:1", f"service:{one}:2", f"{one}-c1", f"{one}/c2", *CHECKS)
        how = self.choose("pass", "warn", "fail", "update")
        if how == "update":
            return Request("agent-update", "PUT", f"agent/check/update/{check}", self.some(Output=("all good", "ä\nbad")) | {"Status": self.random.choice(STATUSES)})
        return Request("agent-report", "PUT", f"agent/check/{how}/{check}{self.choose('', '?note=so%20it%20is')}")

    def agent_deregister(self):
        return Request("agent-deregister", "PUT", f"agent/service/deregister/{self.one()[1]}")

    def agent_maintenance(self):
        return Request("agent-maintenance", "PUT", f"agent/service/maintenance/{self.one()[1]}?enable={self.choose('true', 'false')}{self.choose('', '&reason=work')}")

    def agent_check(self):
        one = self.random.choice(CHECKS)
        body = self.check(**self.some(ID=(one,))) | {"Name": one} | ({"ServiceID": "web-1"} if one == "mem" else {})
        return Request("agent-check", "PUT", "agent/check/register", body)

    def agent_check_deregister(self):
        return Request("agent-check-deregister", "PUT", f"agent/check/deregister/{self.choose(*CHECKS, 'web-1-c1', 'service:web-1')}")

    def node_maintenance(self):
        return Request("node-maintenance", "PUT", f"agent/maintenance?enable={self.choose('true', 'false')}{self.choose('', '&reason=work')}")

    def catalog_register(self):
        node = self.random.choice(NODES)
        body = {"Node": node, "Address": f"10.0.1.{NODES.index(node) + 1}"} | self.some(NodeMeta=({"rack": "1"}, {"rack": "2", "os": "ä"}), TaggedAddresses=({"lan": "10.0.2.1"},), SkipNodeUpdate=(True, False))
        if body.get("SkipNodeUpdate"):
            # Kingpost takes them of a node that is known only through its services.
            body = {key: value for key, value in body.items() if key not in ("NodeMeta", "TaggedAddresses")}
        if self.chance(0.8):
            body["Service"] = self.service("Service")
            # With the address of an agent it would be that agent's service, as an imported one is.
            body["Service"]["Address"] = f"10.0.3.{NODES.index(node) + 1}"
            body["Service"]["ID"] = self.random.choice(OTHERS)
        if self.chance(0.5):
            one = f"node-{self.choose('mem', 'disk')}"
            body["Check"] = {"CheckID": one, "Name": one, "Status": self.random.choice(STATUSES)} | self.some(Notes=("a note",), Output=("fine", "bad"))
            if "Service" in body and self.chance(0.7):
                body["Check"] |= {"CheckID": f"{one} of {body['Service']['ID']}", "ServiceID": body["Service"]["ID"]}
        return Request("catalog-register", "PUT", "catalog/register", body)

    def catalog_deregister(self):
        return Request("catalog-deregister", "PUT", "catalog/deregister", {"Node": self.random.choice(NODES)} | self.choose({}, {"ServiceID": self.random.choice(OTHERS)}, {"CheckID": self.choose("node-mem", "node-disk", "node-mem of other-1")}))

    def session(self):
        return self.choose(*self.sessions[-3:], "00000000-0000-4000-8000-000000000000")

    def kv_put(self):
        key = self.random.choice(KEYS)
        condition = self.choose("", "", "cas=0", "cas={M:%s}" % key, "cas=1", f"acquire={self.session()}", f"acquire={self.session()}", f"release={self.session()}")
        parameters = "&".join(filter(None, (condition, self.choose("", "flags=42", "flags=18446744073709551615"))))
        return Request("kv-" + (condition.partition("=")[0] or "put"), "PUT", f"kv/{key}{'?' if parameters else ''}{parameters}", self.choose("", "a value", "ä\n", '{"a": 1}'))

    def kv_delete(self):
        key = self.random.choice(KEYS)
        return Request("kv-delete", "DELETE", f"kv/{key}{self.choose('', '?recurse', '?cas={M:%s}' % key, '?cas=1', '?cas=0')}")

    def placeholder(self, letter):
        self.made += 1
        return f"{{{letter}{self.number}-{self.made}}}"

    def session_create(self):
        name = self.placeholder("S")
        self.sessions.append(name)
        body = self.some(Name=("mine",), Behavior=("release", "delete"), TTL=("600s", "10m")) | {"LockDelay": self.choose("0s", "0s", "15s", "1ms")}
        body |= self.choose({}, {}, {"NodeChecks": []}, {"Checks": []}, {"ServiceChecks": [{"ID": "service:web-1"}]}, {"Node": "db-1", "NodeChecks": []}, {"Node": "DB-2", "NodeChecks": ["node-disk"]}, {"Checks": ["mem", "serfHealth"]})
        return Request("session-create", "PUT", "session/create", body, {"ID": name})

    def session_end(self):
        return Request("session-end", "PUT", f"session/destroy/{self.session()}")

    def session_renew(self):
        return Request("session-renew", "PUT", f"session/renew/{self.session()}")

    def txn(self):
        operations = []
        for _ in range(self.random.randint(1, 4)):
            key = self.random.choice(KEYS)
            verb = self.choose("set", "set", "cas", "lock", "unlock", "get", "get-tree", "check-index", "check-session", "delete", "delete-tree", "delete-cas", "check-not-exists", "get-or-empty")
            one = {"Verb": verb, "Key": key}
            if verb in ("set", "cas", "lock", "unlock"):
                one["Value"] = base64.b64encode(self.choose(b"", b"of a txn")).decode()
                one |= self.some(Flags=(1, 42))
            if verb in ("cas", "check-index", "delete-cas"):
                one["Index"] = self.choose(0, 1, "INDEX")
            if verb in ("lock", "unlock", "check-session"):
                one["Session"] = self.session()
            operations.append({"KV": one})
        text = re.sub(r'"Key": "([^"]*)"(.*?)"INDEX"', r'"Key": "\1"\2{M:\1}', json.dumps(operations, ensure_ascii=False))
        return Request("txn", "PUT", "txn", text)

    def query_write(self):
        body = {"Name": self.choose("q1", "q2", "")} | self.some(DNS=({"TTL": "10s"},), Session=(self.session(),))
        body["Service"] = {"Service": self.random.choice(SERVICES)} | self.some(
            OnlyPassing=(True, False), Tags=(["v1"], ["!Primary"], []), Near=("_agent", ""), NodeMeta=({"rack": "1"},), ServiceMeta=({"version": "1"},), IgnoreCheckIDs=(["mem"],),
            Failover=({"NearestN": 0, "Datacenters": []},))
        if self.chance(0.2):
            body |= {"Name": "geo-", "Template": {"Type": "name_prefix_match", "Regexp": "^geo-(.+)$", "RemoveEmptyTags": self.chance(0.5)}}
            body["Service"]["Service"] = "${match(1)}"
        if self.queries and self.chance(0.4):
            one = self.random.choice(self.queries)
            return Request("query-update", "PUT", f"query/{one}", body)
        name = self.placeholder("Q")
        self.queries.append(name)
        return Request("query-create", "POST", "query", body, {"ID": name})

    def query_delete(self):
        return Request("query-delete", "DELETE", f"query/{self.choose(*self.queries[-3:], '00000000-0000-4000-8000-000000000000')}")

    def event_fire(self):
        # Services are no filter: Consul's agent asks for them when the event arrives, Kingpost when the list is asked for.
        parameters = self.choose("", "", "?node=127.*", "?node=none")
        makes = {"ID": self.placeholder("E")}
        return Request("event-fire", "PUT", f"event/fire/{self.choose('deploy', 'of/all')}{parameters}", self.choose("", "ä payload"), makes)

    def reads(self):
        """Gives ways to ask about everything that the sequence changes."""
        get = lambda name, path, **parameters: Request(name, "GET", path + ("?" + urlencode(parameters, quote_via=quote) if parameters else ""))
        (service, one), key = self.one(), self.random.choice(KEYS)
        node = self.choose(AGENT, "db-1", "DB-2", "DB-1")
        spelled = self.choose(service, service, service.upper())
        yield get("agent-services", "agent/services")
        yield get("agent-services-filter", "agent/services", filter=self.choose("Service == web", '"v1" in Tags', "Meta.version == 1", "Port != 80"))
        yield get("agent-service", f"agent/service/{one}")
        yield get("agent-checks", "agent/checks")
        yield get("agent-checks-filter", "agent/checks", filter=self.choose("Status != passing", "ServiceName == web", "CheckID == mem"))
        yield get("agent-health-id", f"agent/health/service/id/{one}", **self.choose({}, {"format": "text"}))
        yield get("agent-health-name", f"agent/health/service/name/{service}", **self.choose({}, {"format": "text"}))
        yield get("catalog-services", "catalog/services", **self.choose({}, {"node-meta": "rack:1"}))
        yield get("catalog-nodes", "catalog/nodes", **self.choose({}, {"node-meta": "rack:1"}, {"filter": "Meta.rack == 1"}, {"near": "_agent"}))
        yield get("catalog-node", f"catalog/node/{node}")
        yield get("catalog-node-services", f"catalog/node-services/{node}")
        yield get("catalog-service", f"catalog/service/{spelled}", **self.choose({}, {"tag": "v1"}, {"tag": "primary"}, {"node-meta": "rack:1"}, {"filter": "ServiceMeta.version == 1"}, {"near": "_agent"}))
        yield get("health-service", f"health/service/{spelled}", **self.choose({}, {"passing": ""}, {"passing": "1"}, {"passing": "false"}, {"tag": "v1"}, {"filter": "Checks.Status == passing"}, {"node-meta": "rack:1"}, {"near": AGENT}))
        yield get("health-checks", f"health/checks/{spelled}", **self.choose({}, {"filter": "Status == passing"}, {"node-meta": "rack:1"}))
        yield get("health-node", f"health/node/{node}")
        yield get("health-state", f"health/state/{self.choose('any', *STATUSES)}")
        yield get("kv-key", f"kv/{key}")
        yield get("kv-raw", f"kv/{key}", raw="")
        yield get("kv-recurse", f"kv/{self.choose('', 'a', 'a/', 'a/b/', 'none')}", recurse="")
        yield get("kv-keys", f"kv/{self.choose('', 'a', 'a/', 'a/b', 'none')}", keys="", **self.choose({}, {"separator": "/"}, {"separator": "b"}))
        yield get("sessions", "session/list")
        yield get("session", f"session/info/{self.session()}")
        yield get("sessions-of-node", f"session/node/{node}")
        yield get("events", f"event/list{self.choose('', '?name=deploy', '?name=none')}")
        yield get("queries", "query")
        if self.queries:
            yield get("query", f"query/{self.random.choice(self.queries)}")
        name = self.choose("q1", "q2", "geo-web", *self.queries[-1:])
        yield get("query-execute", f"query/{name}/execute")
        yield get("query-explain", f"query/{name}/explain")

    def blocked(self):
        """Returns a write, and the reads that wait for it."""
        value = str(self.random.random())
        get = lambda path: Request(f"blocking-{path.partition('/')[0].partition('?')[0]}", "GET", path)
        return self.choose(
            (Request("kv-put", "PUT", "kv/a/b", value), (get("kv/a/b"), get("kv/a/?recurse"), get("kv/a?keys"), get("kv/none"))),
            (Request("agent-register", "PUT", "agent/service/register", {"ID": "web-1", "Name": "web", "Meta": {"value": value}, "Check": {"TTL": "600s"}}),
             (get("catalog/service/web"), get("health/service/web"), get(f"catalog/node/{AGENT}"), get("health/service/web?passing"), get("catalog/services"), get("health/checks/web"))),
            (Request("agent-deregister", "PUT", "agent/service/deregister/web-1"), (get("catalog/service/web"), get("health/service/web"), get("health/state/any"))),
            (Request("catalog-register", "PUT", "catalog/register", {"Node": "db-1", "Address": "10.0.1.1", "NodeMeta": {"value": value}}), (get("catalog/nodes"), get("catalog/node/db-1"))),
            (self.session_create(), (get("session/list"), get(f"session/node/{AGENT}"))),
        )

    def end(self):
        """Gives requests that remove everything."""
        for node in NODES:
            yield Request("catalog-deregister", "PUT", "catalog/deregister", {"Node": node})
        for ids in IDS.values():
            for one in ids:
                yield Request("agent-deregister", "PUT", f"agent/service/deregister/{one}")
        for service in SERVICES:
            yield Request("agent-deregister", "PUT", f"agent/service/deregister/{service}")
        for check in CHECKS:
            yield Request("agent-check-deregister", "PUT", f"agent/check/deregister/{check}")
        yield Request("node-maintenance", "PUT", "agent/maintenance?enable=false")
        yield Request("kv-delete", "DELETE", "kv/?recurse")
        for one in self.sessions:
            yield Request("session-end", "PUT", f"session/destroy/{one}")
        for one in self.queries:
            yield Request("query-delete", "DELETE", f"query/{one}")


def odd():
    """Gives requests that one of the servers may refuse."""
    put = lambda name, path, body=None: Request(f"odd-{name}", "PUT", path, body)
    get = lambda name, path: Request(f"odd-{name}", "GET", path)
    register = "agent/service/register"
    for name, body in (
        ("nothing", None), ("garbage", "{"), ("a-list", []), ("no-name", {"ID": "a"}), ("odd-port", {"Name": "odd", "Port": 70000}), ("negative-port", {"Name": "odd", "Port": -1}),
        ("text-port", {"Name": "odd", "Port": "80"}), ("zero-weight", {"Name": "odd", "Weights": {"Passing": 0, "Warning": 1}}), ("big-weight", {"Name": "odd", "Weights": {"Passing": 70000, "Warning": 1}}),
        ("odd-meta-key", {"Name": "odd", "Meta": {"a b": "c"}}), ("empty-meta-key", {"Name": "odd", "Meta": {"": "c"}}), ("long-meta-key", {"Name": "odd", "Meta": {"a" * 129: "c"}}),
        ("long-meta-value", {"Name": "odd", "Meta": {"a": "c" * 513}}), ("much-meta", {"Name": "odd", "Meta": {f"a{number}": "c" for number in range(65)}}), ("meta-number", {"Name": "odd", "Meta": {"a": 1}}),
        ("reserved-meta", {"Name": "odd", "Meta": {"consul-a": "b"}}), ("text-tags", {"Name": "odd", "Tags": "a"}), ("empty-check", {"Name": "odd", "Check": {"Name": "x"}}), ("two-kinds", {"Name": "odd", "Check": {"TTL": "9s", "HTTP": "http://a", "Interval": "9s"}}),
        ("no-interval", {"Name": "odd", "Check": {"HTTP": "http://a"}}), ("odd-ttl", {"Name": "odd", "Check": {"TTL": "soon"}}), ("odd-status", {"Name": "odd", "Check": {"TTL": "9s", "Status": "fine"}}),
        ("unknown-field", {"Name": "odd", "Colour": "red"}), ("odd-kind", {"Name": "odd", "Kind": "odd"}), ("any-address", {"Name": "odd", "Address": "0.0.0.0"}), ("odd-name", {"Name": "a b!"}),
        ("lower-case", {"name": "odd", "port": 80, "tags": ["a"], "check": {"ttl": "9s", "deregister_critical_service_after": "1h"}}), ("same-check-ids", {"Name": "odd", "Checks": [{"CheckID": "x", "TTL": "9s"}, {"CheckID": "x", "TTL": "9s"}]}),
        ("short-interval", {"Name": "odd", "Check": {"HTTP": "http://127.0.0.1:1", "Interval": "1ms"}}), ("negative-ttl", {"Name": "odd", "Check": {"TTL": "-5s"}}), ("number-ttl", {"Name": "odd", "Check": {"TTL": 9000000000}}),
    ):
        yield put(f"register-{name}", register, body)
    for path in ("agent/check/pass/none", "agent/check/warn/none", "agent/check/fail/none", "agent/service/deregister/none", "agent/check/deregister/none", "agent/service/maintenance/none?enable=true", "agent/service/maintenance/odd",
                 "agent/service/maintenance/odd?enable=maybe", "agent/maintenance", "agent/maintenance?enable=maybe", "agent/service/deregister/", "agent/check/pass/", "session/destroy/none", "session/renew/none",
                 "session/destroy/", "session/renew/", "kv/", "kv/a?cas=soon", "kv/a?flags=-1", "kv/a?acquire=none", "kv/a?release=none", "kv/a?cas=1&acquire=none", "kv/a?acquire=", "kv/a?acquire=00000000-0000-4000-8000-000000000000",
                 "query/none", "catalog/services", "health/service/odd", "status/leader", "txn", "catalog/nodes", "agent/services", "event/fire/", "query"):
        yield put(re.sub(r"\W+", "-", path).strip("-"), path, "")
    for name, body in (("nothing", None), ("no-node", {"Address": "10.0.0.1"}), ("no-address", {"Node": "odd"}), ("unnamed-service", {"Node": "odd", "Address": "10.0.0.1", "Service": {"ID": "a"}}), ("odd-status", {"Node": "odd", "Address": "10.0.0.1", "Check": {"Name": "a", "Status": "fine"}}),
                       ("no-status", {"Node": "odd", "Address": "10.0.0.1", "Check": {"Name": "a"}}), ("unnamed-check", {"Node": "odd", "Address": "10.0.0.1", "Check": {"Status": "passing"}}), ("odd-id", {"Node": "odd", "Address": "10.0.0.1", "ID": "x"}), ("unknown-service", {"Node": "odd", "Address": "10.0.0.1", "Check": {"Name": "a", "Status": "passing", "ServiceID": "none"}}),
                       ("other-datacenter", {"Datacenter": "dc9", "Node": "odd", "Address": "10.0.0.1"}), ("odd-port", {"Node": "odd", "Address": "10.0.0.1", "Service": {"Service": "odd", "Port": 70000}}), ("checks", {"Node": "odd", "Address": "10.0.0.1", "Checks": [{"Name": "a", "Status": "passing"}, {"Name": "b", "Status": "critical"}]})):
        yield put(f"catalog-register-{name}", "catalog/register", body)
    for name, body in (("nothing", None), ("no-node", {}), ("unknown-node", {"Node": "none"}), ("unknown-service", {"Node": "odd", "ServiceID": "none"}), ("unknown-check", {"Node": "odd", "CheckID": "none"}), ("all", {"Node": "odd"})):
        yield put(f"catalog-deregister-{name}", "catalog/deregister", body)
    for name, body in (("nothing", None), ("odd-behavior", {"Behavior": "keep"}), ("short-ttl", {"TTL": "1s"}), ("long-ttl", {"TTL": "99999h"}), ("odd-ttl", {"TTL": "soon"}), ("odd-delay", {"LockDelay": "soon"}), ("long-delay", {"LockDelay": "61s"}),
                       ("negative-delay", {"LockDelay": "-1s"}), ("number-delay", {"LockDelay": 5000000000}), ("small-number-delay", {"LockDelay": 5}), ("unknown-check", {"Checks": ["none"]}), ("unknown-node", {"Node": "none"}), ("garbage", "{"), ("unknown-service-check", {"ServiceChecks": [{"ID": "none"}]})):
        yield put(f"session-{name}", "session/create", body)
    for name, body in (("nothing", None), ("object", {}), ("no-operation", []), ("empty-operation", [{}]), ("odd-verb", [{"KV": {"Verb": "odd", "Key": "a"}}]), ("no-key", [{"KV": {"Verb": "set", "Value": "YQ=="}}]), ("odd-value", [{"KV": {"Verb": "set", "Key": "a", "Value": "?"}}]),
                       ("many", [{"KV": {"Verb": "get", "Key": "a"}}] * 129), ("missing-key", [{"KV": {"Verb": "get", "Key": "none"}}]), ("two-errors", [{"KV": {"Verb": "get", "Key": "none"}}, {"KV": {"Verb": "set", "Key": "z"}}, {"KV": {"Verb": "check-index", "Key": "none", "Index": 5}}]),
                       ("node", [{"Node": {"Verb": "get", "Node": {"Node": "none"}}}]), ("service", [{"Service": {"Verb": "get", "Node": "none", "Service": {"ID": "a"}}}])):
        yield put(f"txn-{name}", "txn", body)
    for name, body in (("nothing", None), ("no-service", {"Name": "odd"}), ("odd-session", {"Name": "odd", "Session": "none", "Service": {"Service": "web"}}), ("odd-ttl", {"Name": "odd", "DNS": {"TTL": "soon"}, "Service": {"Service": "web"}}), ("with-id", {"ID": "x", "Service": {"Service": "web"}}),
                       ("odd-template", {"Template": {"Type": "odd"}, "Service": {"Service": "web"}}), ("odd-regexp", {"Name": "odd", "Template": {"Type": "name_prefix_match", "Regexp": "("}, "Service": {"Service": "web"}}), ("odd-near", {"Service": {"Service": "web", "Near": "none"}}), ("negative-nearest", {"Service": {"Service": "web", "Failover": {"NearestN": -1}}})):
        yield Request(f"odd-query-{name}", "POST", "query", body)
    for path in ("health/state/odd", "health/state/", "health/service/", "health/service/none", "health/service/none?passing=odd", "health/checks/none", "health/node/none", "catalog/node/none", "catalog/node-services/none", "catalog/service/none", "catalog/node/",
                 "catalog/service/", "catalog/services?index=soon", "catalog/services?index=1&wait=soon", "catalog/services?dc=dc9", "catalog/services?stale&consistent", "catalog/services?filter=(", "health/service/none?filter=Bogus==1", "kv/", "kv/none", "kv/none?raw",
                 "kv/none?keys", "kv/none?recurse", "kv/?keys", "session/info/none", "session/info/", "session/node/", "session/node/none", "query/none", "query/none/execute", "query/none/explain", "query/", "agent/service/none", "agent/service/", "agent/health/service/id/none",
                 "agent/health/service/name/none", "agent/health/service/id/", "agent/nothing", "catalog/nothing", "health/nothing", "nothing", "status/leader", "status/peers", "status/nothing", "catalog/datacenters", "event/list", "event/list?name=none", "acl/tokens", "acl/token/self", "acl/policies",
                 "kv/none?index=1&wait=1ms", "catalog/nodes?node-meta=rack", "catalog/connect/web", "health/connect/web", "health/ingress/web", "catalog/gateway-services/web", "agent/service/register", "session/create", "txn", "catalog/register", "query/none/execute?limit=soon", "health/service/none?near=none", "catalog/nodes?near=none"):
        yield get(re.sub(r"\W+", "-", path).strip("-"), path)
    for method, path in (("DELETE", "kv/"), ("DELETE", "kv/none"), ("DELETE", "kv/none?cas=soon"), ("DELETE", "kv/none?cas=5"), ("DELETE", "kv/none?cas=1&recurse"), ("POST", "kv/a"), ("DELETE", "session/create"), ("POST", "catalog/register"), ("DELETE", "query/none"), ("DELETE", "catalog/nodes"),
                         ("POST", "agent/service/register"), ("HEAD", "kv/none"), ("HEAD", "catalog/services"), ("OPTIONS", "kv/a"), ("PATCH", "kv/a"), ("POST", "session/create"), ("POST", "txn")):
        yield Request(f"odd-{method}-{re.sub(chr(92) + 'W+', '-', path).strip('-')}", method, path)
    yield put("long-value", "kv/long", "x" * (512 * 1024 + 1))


class Rules:
    """A random sequence about tokens, policies and roles, and requests with the tokens."""

    TEXTS = (
        'key_prefix "a" { policy = "read" }', 'key "a/b" { policy = "write" }', 'key_prefix "" { policy = "list" }', 'service "web" { policy = "write" }', 'service_prefix "" { policy = "read" }', 'node_prefix "" { policy = "read" }',
        'session_prefix "" { policy = "write" }', 'query_prefix "" { policy = "write" }', 'event_prefix "" { policy = "write" }', 'agent_prefix "" { policy = "read" }', 'acl = "read"', 'operator = "read"',
        'key_prefix "a" { policy = "deny" }', '{"key_prefix": {"a": {"policy": "write"}}}', "service \"web\" {\n  policy = \"deny\"\n}", "",
    )

    def __init__(self, seed, number):
        self.random, self.number, self.made = random.Random(f"rules {seed} {number}"), number, 0
        self.policies, self.tokens, self.roles = [], [], []

    def choose(self, *values):
        return self.random.choice(values)

    def placeholder(self, letter):
        self.made += 1
        return f"{{{letter}{self.number}-{self.made}}}"

    def some(self, **fields):
        return Sequence.some(self, **fields)

    def text(self):
        return "\n".join(self.random.sample(self.TEXTS[:-3], self.random.randint(1, 4))) if self.random.random() < 0.7 else self.random.choice(self.TEXTS)

    def links(self):
        """Returns what a token or a role has."""
        links = {}
        if self.policies:
            links["Policies"] = [self.choose({"ID": one}, {"Name": name}) for one, name in self.random.sample(self.policies, self.random.randint(0, min(2, len(self.policies))))]
        return links | self.some(ServiceIdentities=([{"ServiceName": "web"}],), NodeIdentities=([{"NodeName": "db-1", "Datacenter": "dc1"}],), Description=("what it is for", ""))

    def write(self):
        kind = self.choose(*("policy",) * 3, *("token",) * 4, "role", "policy-update", "token-update", "role-update", "clone", "policy-delete", "token-delete", "role-delete")
        manager = lambda *arguments: Request(f"acl-{kind}", *arguments, token="{MANAGER}")
        none = "00000000-0000-4000-8000-000000000000"
        match kind:
            case "policy":
                one = self.placeholder("P")
                name = self.choose(f"p{self.number}-{self.made}", f"p{self.number}-{self.made}", f"p{self.number}-same")
                self.policies.append((one, name))
                return manager("PUT", "acl/policy", {"Name": name, "Rules": self.text()} | self.some(Description=("a policy",), Datacenters=(["dc1"],)), {"ID": one})
            case "policy-update":
                one, name = self.choose(*self.policies, (none, "none"))
                return manager("PUT", f"acl/policy/{one}", {"ID": one, "Name": name, "Rules": self.text()})
            case "policy-delete":
                one, _ = self.choose(*self.policies, (none, "none"))
                return manager("DELETE", f"acl/policy/{one}")
            case "token":
                one, secret = self.placeholder("T"), self.placeholder("U")
                self.tokens.append((one, secret))
                return manager("PUT", "acl/token", self.links() | self.some(Roles=([{"ID": one} for one in self.roles[-1:]],), ExpirationTTL=("1h",), Local=(True, False)), {"AccessorID": one, "SecretID": secret})
            case "clone":
                before, _ = self.choose(*self.tokens, (none, none))
                one, secret = self.placeholder("T"), self.placeholder("U")
                self.tokens.append((one, secret))
                return manager("PUT", f"acl/token/{before}/clone", self.some(Description=("a clone",)), {"AccessorID": one, "SecretID": secret})
            case "token-update":
                one, _ = self.choose(*self.tokens, (none, none))
                return manager("PUT", f"acl/token/{one}", self.links() | {"AccessorID": one})
            case "token-delete":
                one, _ = self.choose(*self.tokens, (none, none))
                return manager("DELETE", f"acl/token/{one}")
            case "role":
                one = self.placeholder("R")
                self.roles.append(one)
                return manager("PUT", "acl/role", self.links() | {"Name": f"r{self.number}-{self.made}"}, {"ID": one})
            case "role-update":
                one = self.choose(*self.roles, none)
                return manager("PUT", f"acl/role/{one}", self.links() | {"ID": one, "Name": f"r{self.number}-of-{self.made}"})
        return manager("DELETE", f"acl/role/{self.choose(*self.roles, none)}")

    def reads(self):
        """Gives questions about the rules, and requests with one of the tokens."""
        (accessor, secret), none = self.choose(*self.tokens, ("none", "none")), "none"
        (policy, name), role = self.choose(*self.policies, (none, none)), self.choose(*self.roles, none)
        for token in ("{MANAGER}", secret):
            who = "manager" if token == "{MANAGER}" else "token"
            for name_of_read, path in (
                ("tokens", "acl/tokens"), ("policies", "acl/policies"), ("roles", "acl/roles"), ("token", f"acl/token/{accessor}"), ("self", "acl/token/self"), ("policy", f"acl/policy/{policy}"), ("policy-by-name", f"acl/policy/name/{name}"), ("role", f"acl/role/{role}"),
            ):
                if not (who == "manager" and name_of_read == "self"):
                    yield Request(f"acl-{name_of_read}-by-{who}", "GET", path, token=token)
        for token in (secret, secret, None, "00000000-0000-4000-8000-000000000000"):
            who = "anonymous" if token is None else "token" if token == secret else "unknown"
            method, path, body = self.choose(
                ("GET", "kv/a", None), ("GET", "kv/a/b", None), ("GET", "kv/a?recurse", None), ("GET", "kv/?keys", None), ("PUT", "kv/a", "1"), ("PUT", "kv/a/b", "2"), ("PUT", "kv/other", "3"), ("DELETE", "kv/a?recurse", None), ("DELETE", "kv/a/b", None),
                ("GET", "catalog/services", None), ("GET", "catalog/nodes", None), ("GET", "catalog/service/web", None), ("GET", "health/service/web", None), ("GET", "health/state/any", None), ("GET", "agent/services", None), ("GET", "agent/checks", None), ("GET", "agent/service/web", None),
                ("PUT", "agent/service/register", {"Name": "web", "Check": {"TTL": "600s"}}), ("PUT", "agent/service/register", {"Name": "api"}), ("PUT", "agent/check/pass/service:web", None), ("PUT", "agent/service/deregister/web", None), ("PUT", "agent/service/maintenance/web?enable=false", None),
                ("PUT", "catalog/register", {"Node": "db-1", "Address": "10.0.0.1", "Service": {"ID": "other", "Service": "web"}}), ("PUT", "catalog/deregister", {"Node": "db-1"}), ("PUT", "session/create", {"NodeChecks": []}), ("GET", "session/list", None), ("GET", "query", None), ("PUT", "agent/maintenance?enable=false", None),
                ("PUT", "txn", [{"KV": {"Verb": "get", "Key": "a"}}, {"KV": {"Verb": "set", "Key": "a/b", "Value": ""}}]), ("GET", "agent/self", None), ("GET", "agent/health/service/name/web", None), ("GET", "catalog/node/db-1", None), ("GET", "health/node/db-1", None), ("GET", "status/leader", None),
            )
            yield Request(f"{who}-{method}-{re.split(chr(92) + 'W', path)[0]}", method, path, body, token=token)

    def end(self):
        for kind, each in (("token", [one for one, _ in self.tokens]), ("role", self.roles), ("policy", [one for one, _ in self.policies])):
            for one in each:
                yield Request("acl-end", "DELETE", f"acl/{kind}/{one}", token="{MANAGER}")
        for path in ("kv/?recurse",):
            yield Request("kv-delete", "DELETE", path, token="{MANAGER}")
        yield Request("agent-deregister", "PUT", "agent/service/deregister/web", token="{MANAGER}")
        yield Request("agent-deregister", "PUT", "agent/service/deregister/api", token="{MANAGER}")
        yield Request("catalog-deregister", "PUT", "catalog/deregister", {"Node": "db-1"}, token="{MANAGER}")


# === comparison ===


def name_of(part):
    """Returns the id of an entry of a list."""
    if not isinstance(part, dict):
        return None
    if isinstance(part.get("Service"), dict) and isinstance(part.get("Node"), dict):
        return f"{part['Node']['Node']}/{part['Service'].get('ID')}"
    if part.get("Service") and part.get("AggregatedStatus"):
        return part["Service"].get("ID")
    if "CheckID" in part:
        return f"{part.get('Node')}/{part['CheckID']}"
    if "ServiceID" in part:
        return f"{part.get('Node')}/{part['ServiceID']}"
    # A session and a query have an ID that both know; of a node each has another.
    keys = ("Key", "AccessorID", "ID", "Name") if "Behavior" in part or "Address" not in part else ("Node", "ID", "Name")
    return next((str(part[key]) for key in keys if part.get(key)), None)


def plain(value):
    """Returns a tree whose indexes say only whether an entry was changed."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    value = {key: plain(part) for key, part in value.items()}
    if "CreateIndex" in value and "ModifyIndex" in value:
        created, modified = value.pop("CreateIndex"), value.pop("ModifyIndex")
        value["Indexes"] = "none" if modified == 0 else "unchanged" if created == modified else "changed" if created < modified else "odd"
    return value


def compared(request, ours, theirs):
    """Gives the differences of two answers."""
    if ours.status != theirs.status:
        yield "status-code", str(ours.status), str(theirs.status)
        yield "error", ours.text[:200], theirs.text[:200]
        return
    if ours.status >= 400 and request.name != "txn" and not request.name.startswith("agent-health"):
        if ours.text.strip() != theirs.text.strip():
            yield "error", ours.text[:200].strip(), theirs.text[:200].strip()
        return
    for name in HEADERS:
        one, other = (answer.headers[name] for answer in (ours, theirs))
        # An index is the server's own.
        if name in ("x-consul-index", "x-consul-lastcontact"):
            one, other = ("there" if value is not None else None for value in (one, other))
        if one != other:
            yield name, one, other
    yield from differences("", *(plain(answer.tree()) for answer in (ours, theirs)), name_of)


def settled(node, token=None, limit=SETTLED):
    """Waits until the catalog of Consul's agent has what the agent has: the agent writes there by and by. False if it did not within the limit."""
    end = time.monotonic() + limit
    get = lambda path: node.ask(Request("settled", "GET", path, token=token)).tree()
    while time.monotonic() < end:
        services, checks = get("agent/services"), get("agent/checks")
        catalog, health = get(f"catalog/node/{AGENT}"), get(f"health/node/{AGENT}")
        known = {one: it for one, it in (catalog or {}).get("Services", {}).items() if one != "consul"}
        same = lambda one, other, fields: all((one.get(field) or None) == (other.get(field) or None) for field in fields)
        if known.keys() == services.keys() and all(same(known[one], it, ("Service", "Tags", "Meta", "Port", "Address", "Weights", "EnableTagOverride", "TaggedAddresses")) for one, it in services.items()):
            state = {it["CheckID"]: it for it in health if it["CheckID"] != "serfHealth"}
            if state.keys() == checks.keys() and all(same(state[one], it, ("Status", "Output", "Notes", "Name", "ServiceID", "ServiceTags")) for one, it in checks.items()):
                return True
        time.sleep(0.005)
    return False


class Pair:
    """Both servers; `report` is told each difference."""

    def __init__(self, ours, theirs, report, token=None):
        self.nodes, self.report, self.told, self.token, self.index = (Node(ours), Node(theirs)), report, [], token, {}

    def settle(self):
        # With tokens an agent may lack the right to tell.
        limit = SETTLED if self.token is None else 0.5
        if not settled(self.nodes[1], self.token, limit) and self.token is None:
            raise SystemExit(f"Consul's agent did not bring its state into its catalog in {SETTLED} s")

    def both(self, request):
        answers = [node.ask(request) for node in self.nodes]
        for difference in compared(request, *answers):
            self.report(request, *difference, self.told)
        return answers

    def write(self, request):
        self.told.append(request)
        answers = self.both(request)
        self.settle()
        if request.name == "event-fire" and answers[1].status == 200 and "node=none" not in request.path:
            # Consul's agents tell each other, and themselves, by and by.
            one, end = next(iter(request.makes.values())), time.monotonic() + SETTLED
            while one not in self.nodes[1].ask(Request("settled", "GET", "event/list")).text:
                if time.monotonic() > end:
                    raise SystemExit(f"Consul's agent did not tell itself of an event in {SETTLED} s")
                time.sleep(0.005)
        return answers

    def read(self, request):
        """Asks both. Kingpost's index must have risen if its answer is another one than before."""
        answer = self.both(request)[0]
        index = int(answer.headers["x-consul-index"] or 0)
        before = self.index.get(request.path)
        if before and request.name not in ("query-execute", "events") and index and answer.text != before[1] and index <= before[0]:
            self.report(request, "index-of-a-change", str(index), f"more than {before[0]}", self.told)
        self.index[request.path] = (index, answer.text)

    def wait(self, write, reads):
        """Sends blocking queries, and then a write."""
        indexes = [[node.ask(read).headers["x-consul-index"] for read in reads] for node in self.nodes]
        waiting = [[Node(node.port) for _ in reads] for node in self.nodes]
        for one, node in zip(waiting, self.nodes):
            for other in one:
                other.names = node.names

        def ask(node, read, index):
            path = f"{read.path}{'&' if '?' in read.path else '?'}index={index}&wait={WAIT}s"
            return node.ask(Request(read.name, "GET", path))

        with concurrent.futures.ThreadPoolExecutor(2 * len(reads)) as pool:
            answers = [[pool.submit(ask, *each) for each in zip(nodes, reads, side)] for nodes, side in zip(waiting, indexes)]
            self.told.append(write)
            for node in self.nodes:
                node.ask(write)
            self.settle()
            for number, read in enumerate(reads):
                for difference in compared(read, *(side[number].result() for side in answers)):
                    self.report(read, *difference, self.told)


def compare_rules(seed, numbers, steps, cache, directory, binary, report):
    """Sends sequences about tokens and policies to both servers, and reports each difference."""
    with peer(cache, directory, True) as theirs, kingpost(binary, directory, 'auth = "acl"\n') as ours:
        pair = Pair(ours, theirs, report, MANAGER)
        first = pair.nodes[0].ask(Request("bootstrap", "PUT", "acl/bootstrap", makes={"SecretID": "{MANAGER}"}))
        assert first.status == 200, first.text
        pair.nodes[1].names["{MANAGER}"] = MANAGER
        for number in numbers:
            sequence = Rules(seed, number)
            pair.told.clear()
            for _ in range(steps):
                pair.write(sequence.write())
                for read in sequence.reads():
                    if read.method == "GET":
                        pair.both(read)
                    else:
                        pair.write(read)
            for request in sequence.end():
                pair.both(request)


def compare(seed, numbers, steps, cache, directory, binary, report):
    """Sends sequences to both servers, and reports each difference."""
    with peer(cache, directory, False) as theirs, kingpost(binary, directory) as ours:
        pair = Pair(ours, theirs, report)
        for number in numbers:
            sequence = Sequence(seed, number)
            pair.told.clear()
            for _ in range(steps):
                pair.write(sequence.write())
                for read in sequence.reads():
                    pair.read(read)
            pair.wait(*sequence.blocked())
            for request in sequence.end():
                pair.both(request)
            pair.settle()
            for read in sequence.reads():
                pair.read(read)
        pair.told.clear()
        base = Request("register", "PUT", "agent/service/register", {"ID": "odd", "Name": "odd"})
        for request in odd():
            for node in pair.nodes:
                node.ask(base)
            pair.told[:] = [request]
            pair.both(request)
            for node in pair.nodes:
                node.ask(Request("deregister", "PUT", "agent/service/deregister/odd"))
