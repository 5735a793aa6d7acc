"""Parsing of /proc, pgbench, sysbench and the protocol, on samples of their real output."""

import struct
import unittest

from bench import counters, loads, pgwire

STATUS = "Name:\tx\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n"
PROGRESS = [
    "progress: 4.6 s, 26.0 tps, lat 567.773 ms stddev 314.530, 0 failed",
    "progress: 5.0 s, 8000.0 tps, lat 80.000 ms stddev 94.795, 0 failed",
    "progress: 6.0 s, 10000.0 tps, lat 60.000 ms stddev 34.165, 0 failed",
    "progress: 8.0 s, 5000.0 tps, lat 120.000 ms stddev 34.165, 0 failed",
    "progress: 10.8 s, 300.0 tps, lat 900.000 ms stddev 293.301, 0 failed",
]
SYSBENCH = [
    "[ 1s ] thds: 64 tps: 10.00 qps: 200.00 (r/w/o: 140.00/40.00/20.00) lat (ms,99%): 9.39 err/s: 0.00 reconn/s: 0.00",
    "[ 2s ] thds: 64 tps: 20.00 qps: 400.00 (r/w/o: 280.00/80.00/40.00) lat (ms,99%): 9.39 err/s: 0.00 reconn/s: 0.00",
    "[ 3s ] thds: 64 tps: 30.00 qps: 600.00 (r/w/o: 420.00/120.00/60.00) lat (ms,99%): 9.39 err/s: 0.00 reconn/s: 0.00",
]
HISTOGRAM = [
    "       value  ------------- distribution ------------- count",
    "       0.103 |                                         5",
    "       0.105 |*************                            120",
]


class Proc(unittest.TestCase):
    def test_machine_counts_neither_idle_nor_waiting_nor_stolen_time_as_busy(self):
        machine = counters.parse_machine("cpu  100 10 50 9999 888 4 6 30 0 0")
        self.assertEqual(machine.busy_us, 170 * counters.TICK_US)
        self.assertEqual(machine.stolen_us, 30 * counters.TICK_US)

    def test_stat_survives_any_process_name(self):
        text = "42 (a) b ) (c) S 1 42 42 0 -1 4194560 1 2 3 4 700 300 0 0 20 0 9 0 100 8192 555 18446744073709551615"
        self.assertEqual(counters.parse_stat(text), (700, 300, 555))

    def test_switches(self):
        self.assertEqual(counters.parse_switches(STATUS), 42)

    def test_memory(self):
        text = "00400000-7ffd [rollup]\nRss:     2048 kB\nPss:  9 kB\nPrivate_Dirty:    512 kB\n"
        self.assertEqual(counters.parse_memory(text), counters.Memory(2048, 512))

    def test_costs_are_rates_divided(self):
        machine = counters.Machine
        begin = counters.Sample(10.0, 0.0, machine(0, 0), counters.Process(0, 0, 0, 3, 100))
        end = counters.Sample(12.0, 2.0, machine(400_000, 0), counters.Process(20_000, 60_000, 1000, 3, 200))
        cost = counters.per_query(begin, end, 2000.0)
        self.assertAlmostEqual(cost["machine_us"], 100)
        self.assertAlmostEqual(cost["proxy_user_us"], 5)
        self.assertAlmostEqual(cost["proxy_system_us"], 15)
        self.assertAlmostEqual(cost["proxy_us"], 20)
        self.assertAlmostEqual(cost["proxy_switches"], 0.25)

    def test_a_target_without_a_process_has_no_proxy_costs(self):
        begin = counters.Sample(0.0, 0.0, counters.Machine(0, 0), None)
        end = counters.Sample(1.0, 1.0, counters.Machine(10, 0), None)
        self.assertNotIn("proxy_us", counters.per_query(begin, end, 1.0))

    def test_family_begins_with_the_process_itself(self):
        import os

        self.assertEqual(counters.family(os.getpid())[0], os.getpid())


class Pgbench(unittest.TestCase):
    def reports(self):
        return [loads.pgbench_report(loads.PROGRESS.match(line)) for line in PROGRESS]

    def test_window_leaves_out_logins_and_the_end(self):
        window = loads.pgbench_window(self.reports(), 4.8, 9.0, 4)
        self.assertEqual((window["first"], window["last"]), (1, 3))
        self.assertAlmostEqual(window["tps"], 20_000 / 3)
        self.assertAlmostEqual(window["mean_ms"], (10_000 * 60 + 10_000 * 120) / 20_000)

    def test_window_is_no_longer_than_wanted(self):
        window = loads.pgbench_window(self.reports(), 4.8, 9.0, 1)
        self.assertEqual((window["first"], window["last"]), (1, 2))

    def test_a_window_may_be_too_short(self):
        self.assertIsNone(loads.pgbench_window(self.reports(), 7.0, 9.0, 2))
        self.assertIsNone(loads.pgbench_window(self.reports(), 4.8, 9.0, 10))
        self.assertIsNone(loads.pgbench_window([], 0.0, 9.0, 2))

    def test_progress_of_an_interval_without_transactions(self):
        line = "progress: 3.0 s, 0.0 tps, lat NaN ms stddev NaN, 0 failed"
        report = loads.pgbench_report(loads.PROGRESS.match(line))
        window = loads.pgbench_window([(2.0, 5.0, 1.0), report], 0.0, 9.0, 1)
        self.assertEqual(window["tps"], 0)
        self.assertIsNone(window["mean_ms"])

    def test_progress_of_older_versions(self):
        self.assertTrue(loads.PROGRESS.match("progress: 1.0 s, 873.9 tps, lat 1.1 ms stddev 0.2"))
        self.assertFalse(loads.PROGRESS.match("number of threads: 2"))

    def test_latencies_of_the_window_only(self):
        log = ["0 1 150 0 100 500000", "1 1 250 0 101 0", "0 2 failed 0 101 5", "0 2 350 0 103 0", "0 3 45"]
        self.assertEqual(loads.pgbench_latencies(log, 100.6, 102.0), [250])


class Sysbench(unittest.TestCase):
    def test_window_leaves_out_the_first_second(self):
        window = loads.sysbench_window([loads.SYSBENCH_PROGRESS.match(line) for line in SYSBENCH])
        self.assertEqual(window, {"tps": 25.0, "qps": 500.0})

    def test_histogram(self):
        self.assertEqual(loads.sysbench_histogram(HISTOGRAM), [(0.103, 5), (0.105, 120)])


class Protocol(unittest.TestCase):
    def test_startup(self):
        message = pgwire.startup("u", "d")
        self.assertEqual(struct.unpack("!II", message[:8]), (len(message), 196608))
        self.assertEqual(message[8:], b"user\0u\0database\0d\0\0")

    def test_row(self):
        self.assertEqual(pgwire.data_row(b"\0\2\0\0\0\1x\xff\xff\xff\xff"), ["x", None])

    def test_error(self):
        self.assertEqual(pgwire.error_text(b"SFATAL\0VFATAL\0C53300\0Mtoo many\0\0"), "FATAL 53300: too many")


if __name__ == "__main__":
    unittest.main()
