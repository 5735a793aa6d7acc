"""What runs: the cases, the targets of each, and the order."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from bench import peers
from bench.errors import BenchError
from bench.peers import Target

MODES = ("simple", "extended", "prepared")
CLIENTS = (1, 16, 64, 256, 1000)
SYSBENCH_CLIENTS = 64
IDLE_CLIENTS = 5000

# The last column is what mission.md's source reports for one primary and two replicas against one database.
SYSBENCH_SCRIPTS = {
    "oltp_point_select": 1.26,
    "oltp_read_only": 0.99,
    "oltp_update_index": 0.99,
    "oltp_update_non_index": 0.99,
    "oltp_write_only": 0.83,
}

DIRECT = Target("direct", None, about="pgbench or sysbench straight to the primary")
KINGPOST = Target("kingpost", "kingpost", about="one node: like for like with direct and PgBouncer")
KINGPOST_SPLIT = Target(peers.KINGPOST_SPLIT, "kingpost", split=True, about="one primary and two replicas")
HAPROXY_NODES = Target(peers.HAPROXY_NODES, "haproxy", split=True, about="HAProxy in turn over the three nodes")


def chosen(inventory, kinds, wanted):
    """Those targets of these kinds that are here and wanted, one node each. Raises if there is none."""
    names = [name for name in inventory.found if name.startswith(kinds)]
    found = [Target(name, name) for name in names if name in wanted]
    if not found:
        raise BenchError(f"none of {', '.join(wanted)} is here: {', '.join(names)}")
    return found


@dataclass(frozen=True)
class Case:
    """One load at one setting. The targets run it alternately."""

    family: str
    script: str
    mode: str
    clients: int
    targets: tuple

    @property
    def id(self):
        """`select/simple/64`, `sysbench/oltp_read_only/simple/64`, `idle/5000`: what `--only` matches."""
        if self.family == "idle":
            return f"idle/{self.clients}"
        if self.family == "sysbench":
            return f"sysbench/{self.script}/{self.mode}/{self.clients}"
        return f"{self.family}/{self.mode}/{self.clients}"


def cases(names, clients=CLIENTS, pooled=lambda name: True):
    """Every case in the order they run. `names` are the peers that are here (`pgbouncer-1.25`, …); `pooled` tells
    whether one shares server connections among clients."""
    others = [Target(name, name) for name in names if name != "kingpost"]
    singles = [DIRECT, *([KINGPOST] if "kingpost" in names else []), *others]
    split = [KINGPOST_SPLIT] if "kingpost" in names else []
    planned = []
    for family, targets in (("select", singles[:2] + split + singles[2:] if split else singles), ("tpcb", singles)):
        for mode in MODES:
            planned += [Case(family, family, mode, count, tuple(targets)) for count in clients]
    for script in SYSBENCH_SCRIPTS:
        for mode in ("simple", "prepared"):
            nodes = [HAPROXY_NODES] if script == "oltp_point_select" and "haproxy" in names else []
            planned.append(Case("sysbench", script, mode, SYSBENCH_CLIENTS, (DIRECT, *split, *nodes)))
    idle = tuple(target for target in singles if target.peer and pooled(target.peer))
    if idle:
        planned.append(Case("idle", "idle", "idle", IDLE_CLIENTS, idle))
    return planned


def choose(planned, only=(), targets=()):
    """The cases whose id matches one of `only` (globs, or a beginning up to a `/`), with those of their targets that
    match one of `targets` (globs). Empty means all. A case without targets is dropped."""
    chosen = []
    for case in planned:
        if only and not any(fnmatchcase(case.id, glob) or case.id.startswith(glob.rstrip("/") + "/") for glob in only):
            continue
        kept = tuple(
            target for target in case.targets if not targets or any(fnmatchcase(target.name, glob) for glob in targets)
        )
        if kept:
            chosen.append(Case(case.family, case.script, case.mode, case.clients, kept))
    return chosen


def rotated(targets, repetition):
    """The targets in the order of a repetition (from 0): each comes first, last and in between equally often."""
    start = repetition % len(targets)
    return targets[start:] + targets[:start]
