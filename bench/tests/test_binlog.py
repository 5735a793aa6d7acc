"""Figures and tables of the binary log's bench, on made-up runs."""

import unittest

from bench import binlog
from bench.errors import BenchError

IO = "rchar: 10\nwchar: 2048\nsyscr: 3\nsyscw: 7\nread_bytes: 0\nwrite_bytes: 4096\ncancelled_write_bytes: 0\n"
PERF = """2;;syscalls:sys_enter_fsync;5001;100.00;;
40;;syscalls:sys_enter_fdatasync;5001;100.00;;
9;;syscalls:sys_enter_futex;5001;100.00;;
"""


class Binlog(unittest.TestCase):
    def test_cases_are_chosen_by_their_beginning(self):
        self.assertEqual(
            binlog.cases(["binlog/2.5"], (64,)),
            [("binlog", 2.5, 64, arm) for arm in binlog.ARMS],
        )
        self.assertEqual(binlog.cases(["receivers/4"], (64, 800)), [("receivers", 4, 64, "source"), ("receivers", 4, 64, "relay")])
        self.assertEqual(binlog.cases(["mysql/2.5"], (64,)), [("mysql", 2.5, 64, arm) for arm in binlog.MYSQL_ARMS])
        self.assertEqual(len(binlog.cases(["binlog"], (64, 800))), 2 * 2 * 5 + 3 * 2)

    def test_what_the_kernel_counts_is_read(self):
        self.assertEqual(binlog.parse_io(IO), {"peer_kib": 2.0, "peer_writes": 7})
        self.assertEqual(binlog.parse_traces(PERF), {"fsync": 2, "fdatasync": 40, "futex": 9})
        self.assertIsNone(binlog.parse_traces("<not supported>;;syscalls:sys_enter_fsync;0;100.00;;\n"))

    def test_figures_are_of_one_commit(self):
        before = {"at": 10.0, "commits": 100, "source_us": 0, "peer_us": 50, "peer_kib": 1.0, "peer_writes": 0}
        after = {"at": 12.0, "commits": 300, "source_us": 4000, "peer_us": 250, "peer_kib": 101.0, "peer_writes": 20}
        found = binlog.figures(before, after, {"fsync": 1.0, "fdatasync": 9.0, "futex": 50.0})
        self.assertEqual((found["tps"], found["source_us"], found["peer_us"], found["peer_writes"]), (100.0, 20.0, 1.0, 0.1))
        self.assertEqual((found["peer_flushes"], found["peer_futexes"]), (0.1, 0.5))
        with self.assertRaises(BenchError):
            binlog.figures(before, before | {"at": 11.0}, None)

    def test_the_table_has_medians(self):
        rows = [["binlog", 2.5, 64, "relay", n, {"tps": tps, "source_us": 10.0, "peer_us": 2.0}] for n, tps in enumerate((90.0, 110.0))]
        rows.append(["receivers", 4, 64, "source", 0, {"tps": 50.0}])
        lines = binlog.markdown(rows).splitlines()
        self.assertIn("| 2.5 | 64 | relay | 100 ±10% | 10.0 | 2 | - | - | - | - |", lines)
        self.assertIn("| 4, source | 64 | relay | 50 | - | - | - | - | - | - |", lines)


if __name__ == "__main__":
    unittest.main()
