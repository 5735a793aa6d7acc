import unittest

from bench import registry_report as report


def figure(**more):
    return {"section": "register", "what": "new", "store": "sqlite", "clients": 256, "instances": 20_000, "bytes": 20, "p50": 1.0, "p99": 2.0,
            "us": 90.0, **more}


FIGURES = [
    figure(entries=0, repetition=0, rate=9000.0), figure(entries=0, repetition=1, rate=11000.0),
    figure(entries=16, repetition=0, rate=9600.0), figure(entries=16, repetition=1, rate=9400.0),
    {"section": "etcd", "what": "new", "clients": 256, "entries": 16, "bytes": 20, "repetition": 0, "rate": 3800.0, "p50": 1.0,
     "p99": 2.0, "us": 320.0},
    {"section": "tables", "what": "full load", "store": "sqlite", "entries": 8, "bytes": 20, "repetition": 0, "unit": "ms",
     "three": 900.0, "one": 300.0},
]
MACHINE = {"cores": 2, "date": "2026-01-01 00:00", "load": 0.1, "noisy": False, "seconds": 9}


class RegistryReport(unittest.TestCase):
    def test_medians_spreads_and_ratios(self):
        text = report.markdown(FIGURES, MACHINE, "bench/registry")
        self.assertIn("| 0 entries | 10,000 ±10% | 1.00 | 1.0 ±0% |", text)
        self.assertIn("| 16 entries | 9,500 ±1% | 0.96 |", text)
        self.assertIn("| 2.50 |", text)
        self.assertIn("| sqlite | full load | 8 entries | 900 | 300 | ms | 3.00 (3.00 to 3.00) |", text)

    def test_targets_say_what_is_not_met(self):
        text = "\n".join(report.targets(FIGURES))
        self.assertIn("| sqlite: 16 entries of 0 entries | at least 0.95 | 0.96 | yes |", text)
        self.assertIn("| sqlite: us CPU each, 16 entries | at most 120 | 90 | yes |", text)
        slow = [figure(entries=16, repetition=0, rate=7000.0)]
        self.assertIn("| at least 8,000 | 7,000 | no |", "\n".join(report.targets(slow)))

    def test_answers_about_all_services(self):
        whole = [{"section": "whole", "what": what, "instances": 50_000, "rate": 900.0, "p50": p50, "p99": p50, "us": 40.0} for what, p50 in [
            ("Eureka's delta with nothing new", 0.1), ("/eureka/apps, after a change", 30.0),
            ("heartbeats, 500 a second, beside 8 watchers", 12.0)]]
        whole.append({"section": "whole", "what": "eight ask for /eureka/apps at once", "answer_mb": 60.0, "grown_mb": 2.5, "first_mb": 55.0})
        text = report.markdown(whole, MACHINE, "bench/registry")
        self.assertIn("| Eureka's delta with nothing new, us CPU | at most 50 | 40 | yes |", text)
        self.assertIn("| /eureka/apps, after a change, p50 ms | at most 20 | 30.0 | no |", text)
        self.assertIn("| heartbeats beside 8 watchers, p99 ms | at most 20 | 12.0 | yes |", text)
        self.assertIn("60.0 MB each: 2.5 MB more in memory", text)
        self.assertIn("| /eureka/apps for the first and eight more, MB of memory | at most 60.0 | 55.0 | yes |", text)
        self.assertIn("| /eureka/apps, after a change, ms CPU | at most 20 | 0.0 | yes |", text)

    def test_heartbeats_beside_the_clients_of_all_fronts(self):
        beside = {"section": "crowd", "what": "heartbeats, 500 a second, beside the clients of all fronts", "instances": 200_000, "clients": 100,
                  "rate": 500.0, "p50": 0.5, "p99": 21.0, "us": 90.0, "core": 0.4, "peak_mb": 321.0}
        front = {"section": "crowd", "what": "DNS, SRV", "instances": 200_000, "clients": 100, "operations": 900, "rate": 90.0, "p50": 0.3, "p99": 2.0}
        text = report.markdown([beside, front], MACHINE, "bench/registry")
        self.assertIn("| heartbeats, 500 a second, beside the clients of all fronts | 100 | 500 | 0.50 | 21.0 | 0.40 | 321 |", text)
        self.assertIn("| DNS, SRV | 100 | 90 | 0.30 | 2.0 |  |  |", text)
        self.assertIn("| heartbeats beside the clients of all fronts, p99 ms | at most 20 | 21.0 | no |", text)

    def test_a_ratio_is_taken_within_each_repetition(self):
        # The second repetition had half the machine: of what both kinds lost nothing is seen.
        found = [figure(entries=entries, repetition=n, rate=rate)
                 for entries, rates in [(0, (10000.0, 5000.0)), (16, (9000.0, 4500.0))] for n, rate in enumerate(rates)]
        self.assertIn("| at least 0.95 | 0.90 | no |", "\n".join(report.targets(found)))

    def test_what_was_not_measured_is_left_out(self):
        text = report.markdown([], MACHINE, "bench/registry")
        self.assertNotIn("|", text)


if __name__ == "__main__":
    unittest.main()
