"""What the README claims, and what proves it: tests of tests/e2e by module and name, or figures on the bench's page."""

import re

from pages import ROOT

# A sentence, or a part of one, as it stands in the README (a line's end is a space), and the tests that would fail if it were not so.
TESTED: dict[str, list[str]] = {
    "Its **proxy** is one address over a primary and its replicas: writes go to the primary": ["routing::statements_that_only_the_primary_may_run"],
    "reads are spread over the replicas": ["routing::reads_are_spread_over_the_replicas"],
    "a client always sees its own commits": ["consistency::own_writes_are_always_read_back"],
    "takes the primary's write-ahead log, makes it durable on another host and feeds the replicas": [
        "relay::holds_the_primarys_bytes_and_feeds_everyone_from_them",
        "relay_failover::commits_wait_for_the_relay_and_outlive_the_primary",
    ],
    "knows every service instance and every database node": ["registry::a_cycle_in_its_own_api"],
    "(REST, Consul's, Eureka's, Nacos' APIs, xDS)": [
        "registry_fronts::every_field_of_consuls_structures_is_honoured_or_refused",
        "registry_fronts::every_field_of_eurekas_structures_is_honoured_or_refused_in_json_and_xml",
    ],
    "PostgreSQL's protocol on both sides": ["protocol::"],
    "Commits that are durable on another host before the client hears of them": ["gate::an_answer_waits_for_the_relay_however_it_was_committed", "gate::what_was_answered_outlives_the_primary"],
    "Quick reads of many clients share server connections, safely": ["lanes::statements_share_connections_and_can_be_kept_from_it", "lanes::nobody_hears_another_s_answer_while_servers_are_killed"],
    "A lost primary is replaced with the log that relays have, whatever the standbys lack": ["candidates::"],
    "the proxies' clients stay connected": ["failover::a_killed_primary_and_a_promoted_replica"],
    "also takes a backup under load, drops a table, and restores the moment before": ["up::agents_bring_a_former_primary_and_a_killed_server_back"],
    "a replica takes over, and the old primary comes back as a standby, without a command": ["up::agents_bring_a_former_primary_and_a_killed_server_back"],
    "which one is primary is found out": ["failover::a_killed_primary_and_a_promoted_replica"],
    "SIGHUP reads the file again, without dropping clients": ["operations::reload_changes_the_pool_size"],
    "translate what you have": [
        "moving::what_is_translated_runs_with_tls_on_both_sides_and_lets_in_the_same_users",
        "moving_others::pgcats_pools_run_with_the_same_users_and_reads",
        "moving_others::pgdogs_databases_on_two_clusters_run_with_the_same_users_and_reads",
        "moving_others::pgpools_rules_decide_as_in_pgpool_itself",
        "moving_logins::what_is_translated_logs_in_to_servers_by_scram_md5_and_trust",
    ],
}

# A figure of the README, and the words with which the bench's page has it.
MEASURED: dict[str, str] = {
    "8,586 commits a second": "| 8586 |",
    "behind the same pool 254": "| native-16 | 254 |",
    "2.14 times PgBouncer's statements a second": "2.14 of PgBouncer's",
    "1.23 times those of a direct connection": "1.23 of direct",
    "an idle client takes 0.29 KiB": "0.29 KiB",
    "1.9 s without writes": "| killed | 2 | 1.89 |",
    "none of 12,648 acknowledged inserts lost": "| 12648 | 0 |",
}


def words(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("**", "")


def count() -> int:
    return len(TESTED) + len(MEASURED)


def has_test(name: str) -> bool:
    """Whether tests/e2e has this test; a name that ends in `::` is any test of the module."""
    module, _, test = name.partition("::")
    file = ROOT / f"tests/e2e/{module}.rs"
    wanted = re.escape(test) if test else r"\w+"
    return file.exists() and re.search(rf"#\[tokio::test[^\n]*\]\s*(#\[[^\n]*\]\s*)*(pub )?async fn {wanted}\(", file.read_text()) is not None


def problems() -> list[str]:
    """What is said and not proven."""
    readme, bench = words((ROOT / "README.md").read_text()), words((ROOT / "bench/README.md").read_text())
    found = [f"claims.py: the README does not say {claim!r} any more" for claim in [*TESTED, *MEASURED] if words(claim) not in readme]
    found += [f"claims.py: {claim!r} is to be proven by {test}, which is not there" for claim, tests in TESTED.items() for test in tests if not has_test(test)]
    found += [f"claims.py: {claim!r}: bench/README.md has no {figure!r}" for claim, figure in MEASURED.items() if figure not in bench]
    # Every figure of the table of what nobody else has is in here.
    table = readme[readme.index("Three things") : readme.index("Figures are of two cores")]
    known = " ".join(MEASURED)
    found += [
        f"README.md: nothing in claims.py is about the figure {figure}"
        for figure in re.findall(r"\d[\d,]*\.?\d+", table)
        if figure not in known and figure not in ("2.5", "18", "64")
    ]
    return found
