"""Statistics: tables of known answers."""

import unittest

from bench.stats import histogram_percentile, paired_ratio, percentile, spread, summary


class Percentile(unittest.TestCase):
    def test_nearest_rank(self):
        hundred = list(range(1, 101))
        for values, share, expected in [
            ([], 0.5, None),
            ([7], 0.5, 7),
            ([7], 0.99, 7),
            ([1, 2], 0.5, 1),
            ([1, 2, 3], 0.5, 2),
            (hundred, 0.5, 50),
            (hundred, 0.99, 99),
            (hundred, 1.0, 100),
        ]:
            with self.subTest(values=len(values), share=share):
                self.assertEqual(percentile(values, share), expected)

    def test_histogram(self):
        buckets = [(1.0, 50), (2.0, 48), (9.0, 2)]
        for share, expected in [(0.5, 1.0), (0.51, 2.0), (0.98, 2.0), (0.99, 9.0)]:
            with self.subTest(share=share):
                self.assertEqual(histogram_percentile(buckets, share), expected)
        self.assertIsNone(histogram_percentile([], 0.5))


class Summary(unittest.TestCase):
    def test_median_and_ends(self):
        self.assertEqual(summary([3, None, 1, 2]), {"median": 2, "min": 1, "max": 3, "n": 3})
        self.assertIsNone(summary([None]))

    def test_spread_is_half_the_range_of_the_median(self):
        self.assertAlmostEqual(spread(summary([90, 100, 110])), 0.1)
        self.assertIsNone(spread(None))


class PairedRatio(unittest.TestCase):
    def test_pairs_within_a_repetition(self):
        # The second repetition was twice as slow for both: the ratio does not see it.
        self.assertEqual(paired_ratio({0: 80, 1: 40, 2: 82}, {0: 100, 1: 50, 2: 100}), 0.8)

    def test_what_is_missing_is_left_out(self):
        self.assertEqual(paired_ratio({0: 1, 1: 6}, {1: 3, 2: 5}), 2)
        self.assertIsNone(paired_ratio({0: 1}, {1: 1}))
        self.assertIsNone(paired_ratio({0: 1}, {0: 0}))


if __name__ == "__main__":
    unittest.main()
