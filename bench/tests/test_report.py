"""Tables and the plot, from a small result."""

import unittest
import xml.dom.minidom

from bench import plot, report
from bench.errors import BenchError


def run(target, repetition, qps, proxy_us=None, **more):
    figures = {"qps": qps, "tps": qps, "mean_ms": 1.0, "p50_ms": 1.0, "p99_ms": 2.0, "machine_us": 90.0, "failed": 0}
    if proxy_us:
        figures |= {"proxy_us": proxy_us, "proxy_user_us": 1.0, "proxy_system_us": proxy_us - 1, "proxy_switches": 0.5}
        figures |= {"proxy_rss_kib": 2048}
    return {"target": target, "repetition": repetition, "background": 0.01} | figures | more


def results():
    runs = []
    for repetition in range(3):
        runs += [
            run("direct", repetition, 20_000),
            run("kingpost", repetition, 15_000, 20.0),
            run("pgbouncer", repetition, 12_000, 30.0),
            run("pgbouncer-1.25", repetition, 10_000, 25.0),
        ]
    case = {"id": "select/simple/64", "family": "select", "script": "select", "mode": "simple", "clients": 64}
    case |= {"targets": ["direct", "kingpost", "pgbouncer", "pgbouncer-1.25", "pgcat"], "runs": runs}
    case |= {"skipped": {"pgcat": "not found"}}
    settings = {"pool": 32, "workers": 2, "seconds": 3, "repetitions": 3, "pgbench_scale": 10, "pgbench_jobs": 2}
    settings |= {"sysbench": [], "targets": {"direct": "straight"}, "postgresql": {"fsync": "off"}}
    return {
        "complete": True,
        "started": "2000-01-01 00:00:00 UTC",
        "command": "bench/run",
        "commit": None,
        "machine": {"cpu": "CPU", "cores": 2, "memory_kib": 1 << 21, "kernel": "6", "system": "Debian"},
        "versions": {"pgbouncer": "PgBouncer 1.18.0", "pgbouncer-1.25": "PgBouncer 1.25.0"},
        "untested": [],
        "missing": {"odyssey": "not found on PATH"},
        "settings": settings,
        "cases": [case],
    }


def row(text, start):
    found = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in found.split("|")[1:-1]]


class Markdown(unittest.TestCase):
    def test_row_of_kingpost(self):
        cells = row(report.markdown(results()), "| 64 | kingpost")
        self.assertEqual(cells[2:6], ["15,000", "0%", "0.75", "1.50"])
        self.assertEqual(cells[9:11], ["20.0 (1.0 + 19.0)", "0.80"])

    def test_the_newest_pgbouncer_is_the_one_compared_with(self):
        self.assertEqual(report.pgbouncer_of(results()["cases"][0], results()), "pgbouncer-1.25")

    def test_targets_say_met_or_not(self):
        good = report.targets(results())
        self.assertIn("| 0.80 | met |", good)
        self.assertIn("| 1.50 | met |", good)
        slow = results()
        for one in slow["cases"][0]["runs"]:
            if one["target"] == "kingpost":
                one |= {"qps": 9_000, "proxy_us": 24.0}
        self.assertIn("| 0.96 | **not met** |", report.targets(slow))
        self.assertIn("| 0.90 | **not met** |", report.targets(slow))

    def test_a_missing_target_is_named(self):
        text = report.markdown(results())
        self.assertIn("select/simple/64, pgcat: not found.", text)
        self.assertIn("odyssey (not found on PATH)", text)

    def test_every_row_has_every_column(self):
        for line in report.load_table(results()["cases"], results()).splitlines():
            if line.startswith("|"):
                self.assertEqual(line.count("|"), 15, line)

    def test_noise_and_an_early_end_are_said(self):
        self.assertNotIn("Noisy", report.preamble(results()))
        loud = results() | {"complete": False}
        loud["cases"][0]["runs"][0]["background"] = 0.5
        self.assertIn("Noisy: before 1 of 12 runs", report.preamble(loud))
        self.assertIn("Incomplete", report.preamble(loud))

    def test_sysbench_shows_the_published_ratio(self):
        case = {"id": "sysbench/oltp_write_only/simple/64", "family": "sysbench", "script": "oltp_write_only"}
        case |= {"mode": "simple", "clients": 64, "targets": ["direct", "kingpost-split"], "skipped": {}}
        case["runs"] = [run("direct", 0, 100.0), run("kingpost-split", 0, 90.0, 9.0)]
        self.assertIn("| kingpost-split | 90 | 0% | 0.90 | 0.83 |", report.sysbench_table([case]))

    def test_idle(self):
        one = {"target": "pgbouncer", "repetition": 0, "idle_rss_kib": 0.8, "idle_dirty_kib": 0.7}
        one |= {"queried_rss_kib": 0.9, "queried_dirty_kib": 0.85, "base_rss_kib": 8192}
        case = {"id": "idle/5000", "targets": ["pgbouncer"], "skipped": {}, "runs": [one]}
        self.assertIn("| pgbouncer | 0.80 | 0.70 | 0.90 | 0.85 | 0% | 8.0 |", report.idle_table(case))


class Readme(unittest.TestCase):
    def test_only_what_is_between_the_marks_changes(self):
        text = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
        self.assertEqual(report.into_page(text, "new"), f"before\n{report.BEGIN}\nnew\n{report.END}\nafter\n")

    def test_marks_must_be_there_once(self):
        for text in ["", report.BEGIN, f"{report.END}{report.BEGIN}", report.BEGIN * 2 + report.END]:
            with self.subTest(text=text), self.assertRaises(BenchError):
                report.into_page(text, "new")


class Plot(unittest.TestCase):
    def test_is_well_formed_and_names_every_target_with_figures(self):
        text = plot.svg(results())
        xml.dom.minidom.parseString(text)
        self.assertIn(">pgbouncer-1.25<", text)
        self.assertNotIn(">pgcat<", text)

    def test_of_nothing(self):
        xml.dom.minidom.parseString(plot.svg(results() | {"cases": []}))

    def test_axis_ends(self):
        for value, expected in [(0, 1), (1, 1), (3, 4), (9.5, 10), (15_000, 20_000), (20_001, 40_000), (0.03, 0.04)]:
            with self.subTest(value=value):
                self.assertAlmostEqual(plot.nice(value), expected)


if __name__ == "__main__":
    unittest.main()
