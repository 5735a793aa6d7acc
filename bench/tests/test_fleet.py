"""The model of a fleet: arithmetic and simulation say the same where both should, and each part can decide."""

import unittest

from bench import fleet
from bench.fleet import Costs, Fleet

COST = Costs(turn=25.0, message=5.0, server=20.0)


class FleetTest(unittest.TestCase):
    def test_each_part_can_decide(self):
        for decides, one in (
            ("proxies", Fleet(1, 2, 100, 4, 1000)),
            ("servers", Fleet(4, 4, 1, 2, 1000)),
            ("clients", Fleet(4, 4, 4, 4, 10)),
        ):
            most, part = fleet.ceiling(one, COST)
            self.assertEqual(part, decides)
            rate, _ = fleet.simulate(one, COST)
            self.assertGreater(rate / most, 0.85, one)
            self.assertLess(rate / most, 1.1, one)

    def test_turns_are_shared_by_many(self):
        _, alone = fleet.simulate(Fleet(1, 1, 8, 8, 1), COST)
        _, crowded = fleet.simulate(Fleet(1, 1, 8, 8, 500), COST)
        self.assertAlmostEqual(alone, 2 * (COST.turn + COST.message), delta=3)
        self.assertAlmostEqual(crowded, COST.floor, delta=1)

    def test_costs_are_fitted_to_a_run(self):
        of = lambda grows, value, us, server: ["kingpost", 0, grows, value, {"us": us, "server_us": server}]  # noqa: E731
        rows = [of("clients", 1, 60.0, 0), of("clients", 256, 10.0, 0), of("parts", "reads", 9.0, 22.0)]
        self.assertEqual(fleet.costs(rows), Costs(turn=25.0, message=5.0, server=22.0))


if __name__ == "__main__":
    unittest.main()
