"""A model of a fleet: what proxies and servers of any size should carry together, from costs measured on two cores.

`python3 -m bench.fleet` prints the tables of docs/scale.md, and `--costs FILE.json` takes the costs from a run of `bench/run --only scale`.

Two ways to one number, so that each checks the other: arithmetic, in which the busiest part decides, and a simulation of each statement. A
worker runs turns: a turn costs `turn` µs and `message` µs for each message that waits for it. Servers are queues with a core for each of their
statements under way, and run times spread exponentially. Clients send their next statement when they have an answer.
"""

import argparse
import heapq
import json
import pathlib
import random
from dataclasses import dataclass
from statistics import median

US = 1e-6
# Simulated seconds: the beginning, in which queues fill, is not counted.
WARM_UP, WINDOW = 0.02, 0.03
# Most events of one simulation: an end for a model that is asked for too much.
MOST_EVENTS = 5_000_000


@dataclass(frozen=True)
class Costs:
    """µs of one core. A statement takes two messages through a worker: the client's to the server, and the answer back."""

    turn: float
    message: float
    server: float

    @property
    def floor(self):
        """The proxy's cost of a statement when turns are shared by many."""
        return 2 * self.message


@dataclass(frozen=True)
class Fleet:
    """`proxies` of `workers` cores each before `servers` of `cores` each; `clients` for all, `trip` µs from host to host."""

    proxies: int
    workers: int
    servers: int
    cores: int
    clients: int
    trip: float = 100.0


def costs(rows, target="kingpost"):
    """Fitted to a run of `bench/run --only scale`: one client has both its turns to itself, 256 clients share them."""
    of = lambda grows, value, key: median(f[key] for name, _, g, v, f in rows if (name, g, v) == (target, grows, value))  # noqa: E731
    alone, shared = of("clients", 1, "us"), of("clients", 256, "us")
    return Costs(turn=(alone - shared) / 2, message=shared / 2, server=of("parts", "reads", "server_us"))


def ceiling(fleet, cost):
    """Statements a second by arithmetic, and the part that decides: `proxies`, `servers` or `clients`."""
    alone = 4 * fleet.trip + 2 * (cost.turn + cost.message) + cost.server
    return min(
        (fleet.proxies * fleet.workers / (cost.floor * US), "proxies"),
        (fleet.servers * fleet.cores / (cost.server * US), "servers"),
        (fleet.clients / (alone * US), "clients"),
    )


class _Worker:
    """A thread with an event loop: what arrives during a turn waits for the next."""

    __slots__ = ("busy", "waiting")

    def __init__(self):
        self.busy, self.waiting = False, []


class _Server:
    """A queue before `free` cores."""

    __slots__ = ("free", "queue", "under_way")

    def __init__(self, cores):
        self.free, self.queue, self.under_way = cores, [], 0


def simulate(fleet, cost, seed=1):
    """Statements a second and the proxies' µs a statement, each statement played through."""
    dice = random.Random(seed)
    workers = [_Worker() for _ in range(fleet.proxies * fleet.workers)]
    servers = [_Server(fleet.cores) for _ in range(fleet.servers)]
    events, number, done, used = [], 0, 0, 0.0
    trip, turn, message = fleet.trip * US, cost.turn * US, cost.message * US
    end = WARM_UP + WINDOW

    def at(when, what, *values):
        nonlocal number
        number += 1
        heapq.heappush(events, (when, number, what, values))

    def begin_turn(now, worker):
        nonlocal used
        took = turn + message * len(worker.waiting)
        messages, worker.waiting, worker.busy = worker.waiting, [], True
        if now >= WARM_UP:
            used += took
        at(now + took, ended, worker, messages)

    def arrives(now, worker, client, answer):
        worker.waiting.append((client, answer))
        if not worker.busy:
            begin_turn(now, worker)

    def ended(now, worker, messages):
        nonlocal done
        worker.busy = False
        for client, answer in messages:
            if answer:
                done += now >= WARM_UP
                at(now + 2 * trip, arrives, worker, client, False)
            else:
                # The emptier of two: a proxy knows what it has under way.
                server = min(dice.choice(servers), dice.choice(servers), key=lambda one: one.under_way)
                server.under_way += 1
                at(now + trip, asked, server, worker, client)
        if worker.waiting:
            begin_turn(now, worker)

    def asked(now, server, worker, client):
        if server.free:
            server.free -= 1
            at(now + dice.expovariate(1 / (cost.server * US)), answered, server, worker, client)
        else:
            server.queue.append((worker, client))

    def answered(now, server, worker, client):
        server.under_way -= 1
        at(now + trip, arrives, worker, client, True)
        if server.queue:
            # Which of those that wait is next changes no rate.
            at(now + dice.expovariate(1 / (cost.server * US)), answered, server, *server.queue.pop())
        else:
            server.free += 1

    for client in range(fleet.clients):
        at(dice.random() * WARM_UP / 2, arrives, workers[client % len(workers)], client, False)
    for _ in range(MOST_EVENTS):
        now, _, what, values = heapq.heappop(events)
        if now >= end:
            break
        what(now, *values)
    else:
        end = max(now, WARM_UP + WINDOW / 100)
    seconds = end - WARM_UP
    return done / seconds, used / max(1, done) / US


def table(fleets, cost):
    """Markdown: a row for each fleet, arithmetic beside simulation."""
    lines = [
        "| proxies, cores each | servers, cores each | clients | arithmetic, a second | decided by | simulation | of it | proxy, µs |",
        "|---:|---:|---:|---:|---|---:|---:|---:|",
    ]
    for fleet in fleets:
        most, part = ceiling(fleet, cost)
        rate, took = simulate(fleet, cost)
        lines.append(
            f"| {fleet.proxies} x {fleet.workers} | {fleet.servers} x {fleet.cores} | {fleet.clients:,} | {most:,.0f} | {part} "
            f"| {rate:,.0f} | {rate / most:.2f} | {took:.1f} |"
        )
    return "\n".join(lines)


def main():
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--costs", type=pathlib.Path, required=True, metavar="FILE.json", help="a result of bench/run --only scale")
    parser.add_argument("--times", type=float, default=1.0, metavar="N", help="every cost N times the measured one (1)")
    options = parser.parse_args()
    cost = costs(json.loads(options.costs.read_text())["rows"])
    cost = Costs(*(options.times * part for part in (cost.turn, cost.message, cost.server)))
    print(f"a turn {cost.turn:.1f} µs, a message {cost.message:.1f} µs, a server's statement {cost.server:.1f} µs\n")
    ample = 100_000
    print(table([Fleet(1, cores, ample, 1, 100 * cores) for cores in (4, 16, 64, 96)], cost) + "\n")
    print(table([Fleet(n, 16, m, 96, 1600 * n) for n, m in ((1, 1), (2, 1), (4, 1), (4, 3))], cost))


if __name__ == "__main__":
    main()
