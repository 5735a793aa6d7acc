"""An application that gets tokens from an OpenID provider and logs in to PostgreSQL with them, for tests/e2e/oauth_provider.rs. Each line of its input is a
call, each line of its output an answer. CA in its environment is the file of the authority that it trusts.

psycopg logs in with the libpq that its package has: libpq asks the server who gives tokens, and this program's hook gets one there."""

import base64
import ctypes
import glob
import hashlib
import html.parser
import http.cookiejar
import json
import os
import secrets
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

import psycopg
import psycopg_binary

BACK = "http://127.0.0.1/back"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
TLS = ssl.create_default_context(cafile=os.environ["CA"])


class Back(Exception):
    """The provider has sent the browser back to the application."""


class Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, request, fp, code, message, headers, url):
        if url.startswith(BACK):
            raise Back(url)
        return super().redirect_request(request, fp, code, message, headers, url)


class Form(html.parser.HTMLParser):
    """The only form of a page."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form":
            self.action = attributes["action"]
        elif tag == "input" and "name" in attributes:
            self.fields[attributes["name"]] = attributes.get("value") or ""


def browse(url, user):
    """What somebody does with a browser who logs in as this user, and agrees to everything. The address that the provider sends back to, if it does."""
    cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    browser = urllib.request.build_opener(Redirects, cookies, urllib.request.HTTPSHandler(context=TLS))
    try:
        answer = browser.open(url, timeout=30)
        for _ in range(10):
            form = Form(answer.read().decode())
            if form.action is None:
                return None
            if "login" in form.fields:
                form.fields.update(login=user, password="any")
            action = urllib.parse.urljoin(answer.url, form.action)
            answer = browser.open(action, urllib.parse.urlencode(form.fields).encode(), timeout=30)
    except Back as back:
        return str(back)
    raise RuntimeError("the provider asks without end")


def ask(url, fields=None, login=None):
    """The answer in JSON, also where it is an error."""
    request = urllib.request.Request(url, urllib.parse.urlencode(fields).encode() if fields else None)
    if login:
        request.add_header("Authorization", "Basic " + base64.b64encode(":".join(login).encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=30, context=TLS if url.startswith("https") else None) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def discovered(issuer):
    return ask(issuer + "/.well-known/openid-configuration")


def itself(issuer, name, secret, scope="db", resource="urn:db"):
    fields = {"grant_type": "client_credentials", "scope": scope, "resource": resource}
    return ask(discovered(issuer)["token_endpoint"], fields, (name, secret))


def device(issuer, user, scope):
    """As libpq's own flow: it names no resource."""
    at = discovered(issuer)
    given = ask(at["device_authorization_endpoint"], {"client_id": "psql", "scope": scope})
    fields = {"grant_type": DEVICE, "device_code": given["device_code"], "client_id": "psql"}
    before = ask(at["token_endpoint"], fields)
    assert before["error"] == "authorization_pending", before
    browse(given["verification_uri_complete"], user)
    return ask(at["token_endpoint"], fields)


def code(issuer, user, scope):
    at = discovered(issuer)
    verifier, state = secrets.token_urlsafe(40), secrets.token_urlsafe(10)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
    fields = {"client_id": "psql", "response_type": "code", "redirect_uri": BACK, "scope": scope, "state": state}
    fields.update(code_challenge=challenge, code_challenge_method="S256")
    back = browse(at["authorization_endpoint"] + "?" + urllib.parse.urlencode(fields), user)
    said = dict(urllib.parse.parse_qsl(urllib.parse.urlparse(back).query))
    assert said["state"] == state and said["iss"] == issuer, said
    fields = {"grant_type": "authorization_code", "code": said["code"], "redirect_uri": BACK}
    return ask(at["token_endpoint"], {**fields, "client_id": "psql", "code_verifier": verifier})


class Request(ctypes.Structure):
    """PGoauthBearerRequest of PostgreSQL 18."""

    _fields_ = [
        ("openid_configuration", ctypes.c_char_p),
        ("scope", ctypes.c_char_p),
        ("asynchronous", ctypes.c_void_p),
        ("cleanup", ctypes.c_void_p),
        ("token", ctypes.c_char_p),
        ("user", ctypes.c_void_p),
    ]


BEARER_TOKEN = 1  # PQAUTHDATA_OAUTH_BEARER_TOKEN
asked = {}


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
def hook(kind, connection, data):
    if kind != BEARER_TOKEN:
        return 0
    request = ctypes.cast(data, ctypes.POINTER(Request)).contents
    try:
        asked["told"] = {"at": request.openid_configuration.decode(), "scope": (request.scope or b"").decode()}
        token = asked.get("token")
        if token is None:
            issuer = asked["told"]["at"].removesuffix("/.well-known/openid-configuration")
            token = device(issuer, asked["as"], asked["told"]["scope"])["access_token"]
        # The text lives as long as the call does.
        asked["text"] = ctypes.create_string_buffer(token.encode())
        request.token = ctypes.cast(asked["text"], ctypes.c_char_p)
    except Exception as error:  # noqa: BLE001 - ctypes would print it, and libpq would not know
        print(repr(error), file=sys.stderr)
        return -1
    return 1


def connect(conninfo, **how):
    """Logs in: by the token that is given, or by one that the provider gives for a device whose user is `as`."""
    asked.clear()
    asked.update(how)
    try:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            who = connection.execute("SELECT current_user, current_database()").fetchone()
        return {"in": list(who), "told": asked.get("told")}
    except psycopg.OperationalError as error:
        return {"error": str(error), "told": asked.get("told")}


def main():
    (library,) = glob.glob(os.path.join(os.path.dirname(psycopg_binary.__file__), os.pardir, "psycopg_binary.libs", "libpq-*"))
    libpq = ctypes.CDLL(library)
    assert libpq.PQlibVersion() == psycopg.pq.version() >= 180000, psycopg.pq.version()
    libpq.PQsetAuthDataHook(hook)
    calls = {"browse": lambda url, user: {"back": browse(url, user)}, "itself": itself, "device": device, "code": code, "connect": connect}
    for line in sys.stdin:
        call = json.loads(line)
        print(json.dumps(calls[call.pop("do")](**call)), flush=True)


main()
