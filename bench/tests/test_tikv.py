"""The table of `bench/run --only tikv`."""

import unittest

from bench import tikv


class Table(unittest.TestCase):
    def test_medians_and_the_ratio_of_cpu(self):
        def figures(timestamps, cpu, batches=0):
            return {"timestamps": timestamps, "seconds": 2.0, "p50_us": 500, "p99_us": 2500, "cpu": cpu, "batches": batches}

        runs = [
            [0, 2, 16, 0, "ours", figures(1000, 0.01, 100)],
            [0, 2, 16, 0, "tikv-client", figures(1000, 0.02)],
            [0, 2, 16, 0, "go-2022", figures(1000, 0.03)],
            [0, 2, 16, 1, "ours", figures(3000, 0.03, 300)],
            [0, 2, 16, 1, "tikv-client", figures(1000, 0.02)],
            [2.5, 0, 1, 0, "ours", figures(1000, 0.01, 100)],
        ]
        lines = tikv.markdown(runs).splitlines()
        self.assertEqual(lines[2], "| 0 | 2 | 16 | ours | 1000 | 50% | 0.50 | 2.50 | 10.0 | 0.50 | 100 | 10.0 |")
        self.assertEqual(lines[3], "| 0 | 2 | 16 | tikv-client | 500 | 0% | 0.50 | 2.50 | 20.0 | 1.00 |  |  |")
        self.assertEqual(lines[4], "| 0 | 2 | 16 | go-2022 | 500 | 0% | 0.50 | 2.50 | 30.0 | 1.50 |  |  |")
        self.assertEqual(lines[5], "| 2.5 | 0 | 1 | ours | 500 | 0% | 0.50 | 2.50 | 10.0 |  | 50 | 10.0 |")


if __name__ == "__main__":
    unittest.main()
