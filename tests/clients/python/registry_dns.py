"""dnspython asks what py-consul has registered. CONSUL_PORT and DNS_PORT say where."""

import os
import uuid

import consul
import dns.flags
import dns.message
import dns.query
import dns.rcode
import dns.resolver
from tap import check, run

DNS = int(os.environ["DNS_PORT"])


def client():
    return consul.Consul(host="127.0.0.1", port=int(os.environ["CONSUL_PORT"]))


def unique(stem):
    return f"{stem}-{uuid.uuid4().hex[:8]}"


def resolver():
    it = dns.resolver.Resolver(configure=False)
    it.nameservers, it.port, it.lifetime = ["127.0.0.1"], DNS, 10
    return it


def addresses(name, kind="A"):
    return sorted(record.address for record in resolver().resolve(name, kind))


def fails(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError(f"expected {kind.__name__}")


@check
def a_service_has_addresses():
    c, name = client(), unique("web")
    for n in (1, 2):
        c.agent.service.register(name, service_id=f"{name}-{n}", address=f"10.0.0.{n}", port=8000 + n)
    c.agent.service.register(name, service_id=f"{name}-6", address="fd00::6", port=8006)
    assert addresses(f"{name}.service.consul") == ["10.0.0.1", "10.0.0.2"]
    assert addresses(f"{name.upper()}.service.dc1.consul") == ["10.0.0.1", "10.0.0.2"]
    assert addresses(f"{name}.service.consul", "AAAA") == ["fd00::6"]


@check
def srv_records_bring_their_addresses():
    c, name = client(), unique("api")
    c.agent.service.register(name, service_id=name, address="10.1.2.3", port=9090)
    query = dns.message.make_query(f"_{name}._tcp.service.consul", "SRV", use_edns=0)
    answer = dns.query.udp(query, "127.0.0.1", timeout=10, port=DNS)
    (srv,) = answer.answer[0]
    assert (srv.port, srv.weight, srv.priority) == (9090, 100, 0), srv
    (additional,) = [rrset for rrset in answer.additional if rrset.name == srv.target]
    assert [record.address for record in additional] == ["10.1.2.3"]
    # And the target can be asked for by itself.
    assert addresses(srv.target.to_text()) == ["10.1.2.3"]
    assert answer.flags & dns.flags.AA


@check
def who_is_not_well_is_not_told():
    c, name = client(), unique("sick")
    c.agent.service.register(name, service_id=name, address="10.0.0.1", port=1, check=consul.Check.ttl("20s"))
    fails(dns.resolver.NXDOMAIN, lambda: addresses(f"{name}.service.consul"))
    c.agent.check.ttl_pass(f"service:{name}")
    assert addresses(f"{name}.service.consul") == ["10.0.0.1"]
    c.agent.check.ttl_fail(f"service:{name}")
    fails(dns.resolver.NXDOMAIN, lambda: addresses(f"{name}.service.consul"))


@check
def tags_choose():
    c, name = client(), unique("tagged")
    c.agent.service.register(name, service_id=f"{name}-1", address="10.0.0.1", port=1, tags=["v1"])
    c.agent.service.register(name, service_id=f"{name}-2", address="10.0.0.2", port=2, tags=["v2", "primary"])
    assert addresses(f"primary.{name}.service.consul") == ["10.0.0.2"]
    assert addresses(f"_{name}._v1.service.consul") == ["10.0.0.1"]
    fails(dns.resolver.NXDOMAIN, lambda: addresses(f"v3.{name}.service.consul"))


@check
def what_does_not_fit_comes_over_tcp():
    c, name = client(), unique("many")
    for n in range(60):
        c.agent.service.register(name, service_id=f"{name}-{n}", address=f"10.9.0.{n + 1}", port=1)
    query = dns.message.make_query(f"{name}.service.consul", "A", use_edns=False)
    cut = dns.query.udp(query, "127.0.0.1", timeout=10, port=DNS)
    assert cut.flags & dns.flags.TC
    whole, over_tcp = dns.query.udp_with_fallback(query, "127.0.0.1", timeout=10, port=DNS)
    assert over_tcp and len(whole.answer[0]) == 60
    assert len(addresses(f"{name}.service.consul")) == 60


@check
def a_host_name_is_an_alias():
    c, name = client(), unique("alias")
    c.agent.service.register(name, service_id=name, address="db.example.org", port=5432)
    query = dns.message.make_query(f"{name}.service.consul", "A")
    answer = dns.query.udp(query, "127.0.0.1", timeout=10, port=DNS)
    assert answer.answer[0][0].target.to_text() == "db.example.org."


@check
def an_address_has_the_name_of_its_owner():
    c, name, node = client(), unique("rev"), unique("node")
    c.agent.service.register(name, service_id=name, address="10.77.0.1", port=8001)
    c.agent.service.register(f"{name}-6", service_id=f"{name}-6", address="fd00::77", port=8001)
    c.catalog.register(node, "10.77.0.2")
    for address, owner in (
        ("10.77.0.1", f"{name}.service.dc1.consul."),
        ("fd00::77", f"{name}-6.service.dc1.consul."),
        ("10.77.0.2", f"{node}.node.dc1.consul."),
    ):
        answer = resolver().resolve_address(address)
        assert [str(record.target) for record in answer] == [owner], answer.rrset
        assert answer.rrset.ttl == 0
    fails(dns.resolver.NXDOMAIN, lambda: resolver().resolve_address("10.77.0.3"))


@check
def other_zones_are_refused():
    query = dns.message.make_query("example.org", "A")
    assert dns.query.udp(query, "127.0.0.1", timeout=10, port=DNS).rcode() == dns.rcode.REFUSED
    query = dns.message.make_query("nobody.service.consul", "A")
    answer = dns.query.udp(query, "127.0.0.1", timeout=10, port=DNS)
    assert answer.rcode() == dns.rcode.NXDOMAIN
    assert answer.authority[0][0].minimum == 0, "may not be remembered"


run()
