"""What is planned, and how peers are configured."""

import pathlib
import tempfile
import tomllib
import unittest

from bench import neighbour, plan, wal
from bench.cli import _without_paths
from bench.peers import HAProxy, Kingpost, Nodes, PgBouncer, PgCat, PgDog, Terms

HERE = ["kingpost", "pgbouncer", "pgbouncer-1.25", "haproxy"]
TWO_BUILDS = ["kingpost", "kingpost-before"]


def find(cases, case_id):
    return next(case for case in cases if case.id == case_id)


def names(case):
    return [target.name for target in case.targets]


class Plan(unittest.TestCase):
    def setUp(self):
        self.cases = plan.cases(HERE, (1, 64), lambda name: name != "haproxy")

    def test_targets_of_each_family(self):
        singles = ["direct", "kingpost", "pgbouncer", "pgbouncer-1.25", "haproxy"]
        for case_id, expected in [
            ("select/simple/64", ["direct", "kingpost", "kingpost-split", *singles[2:]]),
            ("tpcb/prepared/1", singles),
            ("sysbench/oltp_point_select/simple/64", ["direct", "kingpost-split", "haproxy-3"]),
            ("sysbench/oltp_write_only/prepared/64", ["direct", "kingpost-split"]),
            ("idle/5000", ["kingpost", "pgbouncer", "pgbouncer-1.25"]),
        ]:
            with self.subTest(case=case_id):
                self.assertEqual(names(find(self.cases, case_id)), expected)

    def test_without_peers_only_direct_is_left(self):
        cases = plan.cases([], (1,))
        self.assertEqual(names(cases[0]), ["direct"])
        self.assertNotIn("idle", [case.family for case in cases])

    def test_two_builds_of_kingpost_can_be_compared(self):
        cases = plan.cases(TWO_BUILDS, (1,))
        self.assertEqual(names(cases[0]), ["direct", "kingpost", "kingpost-split", "kingpost-before"])

    def test_ids_are_unique(self):
        ids = [case.id for case in self.cases]
        self.assertEqual(len(ids), len(set(ids)))

    def test_only_takes_beginnings_and_globs(self):
        for only, expected in [
            (["select"], 6),
            (["select/simple"], 2),
            (["select/*/64"], 3),
            (["select/simple/64", "idle"], 2),
            (["sel"], 0),
            ([], len(self.cases)),
        ]:
            with self.subTest(only=only):
                self.assertEqual(len(plan.choose(self.cases, only)), expected)

    def test_targets_are_chosen_by_glob(self):
        chosen = plan.choose(self.cases, ["select/simple/1"], ["direct", "pgbouncer*"])
        self.assertEqual(names(chosen[0]), ["direct", "pgbouncer", "pgbouncer-1.25"])
        self.assertEqual(plan.choose(self.cases, ["select"], ["nothing"]), [])

    def test_everyone_is_first_once(self):
        targets = ("a", "b", "c")
        self.assertEqual([plan.rotated(targets, repetition)[0] for repetition in range(4)], ["a", "b", "c", "a"])
        self.assertEqual(sorted(plan.rotated(targets, 2)), sorted(targets))


class Files:
    """Stands for the workspace: writes a file, gives it to nobody."""

    def write(self, path, text):
        path.write_text(text)
        return path


class Configurations(unittest.TestCase):
    def configure(self, kind, version=None):
        peer = kind(pathlib.Path("/nowhere/program"))
        if version:
            peer.version = version
        with tempfile.TemporaryDirectory() as directory:
            nodes, terms = Nodes((5001, 5002, 5003)), Terms(32, 2, 1200)
            command = peer.command(Files(), pathlib.Path(directory), 6000, nodes, terms)
            texts = {word.name: word.read_text() for word in command[1:] if isinstance(word, pathlib.Path)}
        return command, texts

    def test_kingpost(self):
        command, texts = self.configure(Kingpost)
        config = tomllib.loads(texts["kingpost.toml"])
        self.assertEqual(command[1:3], ["proxy", "--config"])
        self.assertEqual(config["proxy"]["listen"], ["127.0.0.1:6000"])
        self.assertEqual(config["proxy"]["pool"], {"mode": "transaction", "size": 32})
        addresses = [node["address"] for node in config["cluster"]["nodes"]]
        self.assertEqual(addresses, ["127.0.0.1:5001", "127.0.0.1:5002", "127.0.0.1:5003"])
        self.assertIn("listen", config["metrics"])

    def test_toml_of_others(self):
        _, texts = self.configure(PgCat)
        self.assertEqual(tomllib.loads(texts["pgcat.toml"])["pools"]["bench"]["users"]["0"]["pool_size"], 32)
        _, texts = self.configure(PgDog)
        self.assertEqual(tomllib.loads(texts["pgdog.toml"])["general"]["default_pool_size"], 32)
        self.assertEqual(tomllib.loads(texts["users.toml"])["users"][0]["name"], "postgres")

    def test_haproxy_has_every_node(self):
        _, texts = self.configure(HAProxy)
        self.assertEqual(texts["haproxy.cfg"].count("  server node"), 3)

    def test_pgbouncer_by_version(self):
        for version, prepared in [("PgBouncer 1.18.0", False), ("PgBouncer 1.21.0", True), ("PgBouncer 1.25.1", True)]:
            with self.subTest(version=version):
                _, texts = self.configure(PgBouncer, version)
                self.assertEqual("max_prepared_statements" in texts["pgbouncer.ini"], prepared)
                peer = PgBouncer(pathlib.Path("x"))
                peer.version = version
                self.assertEqual(peer.refuses("prepared") is None, prepared)
                self.assertIsNone(peer.refuses("extended"))


class Command(unittest.TestCase):
    def test_directories_are_not_repeated(self):
        words = ["--only", "select/simple", "--kingpost", "/a/b", "--peer", "pgbouncer-1.25=/x/y", "--dir=/z"]
        expected = ["--only", "select/simple", "--kingpost", "…", "--peer", "pgbouncer-1.25=…", "--dir=…"]
        self.assertEqual(_without_paths(words), expected)


class SlowNeighbour(unittest.TestCase):
    def test_ratios_are_of_the_same_repetition(self):
        rows = [
            ("kingpost", 0, "alone", {"qps": 100.0, "p99_ms": 1.0}),
            ("kingpost", 0, "sleep", {"qps": 90.0, "p99_ms": 2.0}),
            ("kingpost", 1, "sleep", {"qps": 196.0, "p99_ms": 2.0}),
            ("kingpost", 1, "alone", {"qps": 200.0, "p99_ms": 1.0}),
        ]
        table = neighbour.markdown(rows)
        self.assertIn("| kingpost | alone | 150 |  | 1.0 |", table)
        self.assertIn("| kingpost | sleep | 143 | 0.94 | 2.0 |", table)


class Relay(unittest.TestCase):
    def test_cases_by_their_receivers(self):
        everything = wal.planned(["relay"], ["relay", "relay-before"])
        self.assertEqual(len(everything), 4 + 3 * len(wal.RECEIVERS))
        alone = [("pg_receivewal", "-", 0), ("relay", "-", 0), ("relay-before", "-", 0), ("standby", "-", 0)]
        self.assertEqual(wal.planned(["relay/0"], ["relay", "relay-before"]), alone)
        four = [("relay", "relay", 4), ("relay", "primary", 4), ("standby", "standby", 4)]
        self.assertEqual(wal.planned(["relay/4"], ["relay"]), four)


if __name__ == "__main__":
    unittest.main()
