"""Figures of a window and the gate's tables, on made-up runs."""

import argparse
import unittest

from bench import gate, strong, window

METRICS = """# HELP kingpost_gated_total Answers held back
# TYPE kingpost_gated_total counter
kingpost_gated_total 40
kingpost_client_bytes_total{direction="in"} 5
kingpost_client_bytes_total{direction="out"} 7
kingpost_oracle_wait_seconds_count 10
"""


def _figures(tps, **more):
    cpu = {"primary": 100.0, "receiver": 20.0, "proxy": 50.0}
    return {"tps": tps, "p50": 1.0, "p99": 2.0, "busy": 0.9, "cpu": cpu} | more


class Window(unittest.TestCase):
    def test_metrics_with_labels_are_added_up(self):
        values = window.parse_metrics(METRICS)
        self.assertEqual((values["kingpost_gated_total"], values["kingpost_client_bytes_total"]), (40, 12))

    def test_only_what_ended_in_the_window_counts(self):
        lines = ["0 1 1500 0 99 900000", "0 2 2500 0 100 100000", "0 3 skipped 0 100 200000", "0 4 3500 0 103 0", "cut of"]
        self.assertEqual(window._latencies(lines, 100.0, 102.0), [2.5])

    def test_figures_are_of_the_difference_of_two_samples(self):
        metrics = {
            "kingpost_oracle_wait_seconds_count": 100,
            "kingpost_oracle_wait_seconds_sum": 1.0,
            "kingpost_oracle_round_trip_seconds_count": 100,
            "kingpost_oracle_round_trip_seconds_sum": 0.5,
            "kingpost_gated_total": 400,
            "kingpost_gate_seconds_count": 400,
            "kingpost_gate_seconds_sum": 2.0,
        }
        before = window.Sample(10.0, 0, {"proxy": 1000}, {})
        after = window.Sample(12.0, 0, {"proxy": 5000}, metrics)
        found = window.figures(before, after, [3.0, 1.0, 2.0, 4.0])
        self.assertEqual((found["tps"], found["p50"], found["cpu"]["proxy"]), (2.0, 2.0, 1000.0))
        self.assertEqual(found["oracle"]["size"], 4.0)
        self.assertEqual((found["oracle"]["batches"], found["oracle"]["wait_ms"], found["oracle"]["held_ms"]), (50.0, 10.0, 5.0))


class Tables(unittest.TestCase):
    def test_cases_are_chosen_by_their_beginning(self):
        options = argparse.Namespace(only=["gate/2.5", "hot-row"], clients=(64,))
        self.assertEqual(gate.cases(options), [("gate", 2.5, 64), ("hot-row", 2.5, 64)])

    def test_ratios_are_taken_within_a_repetition(self):
        rows = []
        for repetition, noise in enumerate((1.0, 0.5)):
            for arm, tps in (("native-16", 100), ("native-64", 200), ("gate-16", 150)):
                rows.append(["gate", 0.0, 64, repetition, arm, _figures(tps * noise)])
        table = gate.markdown(rows).splitlines()
        self.assertIn("| 64 | gate-16 | 112 | 33% | 1.50 | 0.75 |", table[-1])

    def test_every_row_has_as_many_cells_as_the_header(self):
        rows = [["gate", 0.0, 64, 0, "native-direct", _figures(10) | {"cpu": {"primary": 1.0, "receiver": 2.0}}]]
        lines = [line for line in gate.markdown(rows).splitlines() if line.startswith("|")]
        self.assertEqual({line.count("|") for line in lines}, {lines[0].count("|")})
        rows = [[64, 0, 0, arm, _figures(10, stayed=0.1)] for arm in strong.ARMS]
        lines = strong.markdown(rows).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {lines[0].count("|")})


if __name__ == "__main__":
    unittest.main()
