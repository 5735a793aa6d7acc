"""What the kernel counts: a process's CPU time, switches and memory, and the machine's busy time, from /proc."""

import os
import time
from dataclasses import dataclass

TICK_US = 1_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


@dataclass(frozen=True)
class Machine:
    """The whole machine since boot, in µs of CPU time summed over its cores."""

    busy_us: int
    stolen_us: int


@dataclass(frozen=True)
class Process:
    """One process with all its threads and children since its start."""

    user_us: int
    system_us: int
    switches: int
    threads: int
    rss_kib: int


@dataclass(frozen=True)
class Memory:
    """Memory of one process with its children, in KiB."""

    rss_kib: int
    private_dirty_kib: int


@dataclass(frozen=True)
class Sample:
    """Everything at one moment; `at` is in seconds of the monotonic clock, `epoch` of the wall clock."""

    at: float
    epoch: float
    machine: Machine
    process: Process | None


def sample(pid):
    """Takes a sample; `pid` is None for a target without a process of its own."""
    return Sample(time.monotonic(), time.time(), machine(), process(pid) if pid else None)


def machine():
    """Reads /proc/stat."""
    with open("/proc/stat") as file:
        return parse_machine(file.readline())


def parse_machine(line):
    """The first line of /proc/stat. Waiting for I/O is idle time; stolen time is nobody's here, so it is apart."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(word) for word in line.split()[1:9])
    return Machine((user + nice + system + irq + softirq) * TICK_US, steal * TICK_US)


def process(pid):
    """Sums over `pid` and its descendants. Raises ProcessLookupError when it is gone."""
    user = system = switches = threads = rss = 0
    for member in family(pid):
        try:
            with open(f"/proc/{member}/stat") as file:
                user_ticks, system_ticks, pages = parse_stat(file.read())
            for task in os.listdir(f"/proc/{member}/task"):
                try:
                    with open(f"/proc/{member}/task/{task}/status") as file:
                        switches += parse_switches(file.read())
                    threads += 1
                except (FileNotFoundError, ProcessLookupError):
                    continue
        except FileNotFoundError:
            if member == pid:
                raise ProcessLookupError(f"process {pid} is gone") from None
            continue
        user += user_ticks * TICK_US
        system += system_ticks * TICK_US
        rss += pages * PAGE_KIB
    return Process(user, system, switches, threads, rss)


def parse_stat(text):
    """User ticks, system ticks and resident pages of /proc/PID/stat, all threads together. The name in parentheses may
    hold anything."""
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[11]), int(fields[12]), int(fields[21])


def parse_switches(text):
    """Voluntary and involuntary context switches of /proc/PID/task/TID/status."""
    return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches:" in line)


def memory(pid):
    """Reads the memory of `pid` and its descendants."""
    rss = dirty = 0
    for member in family(pid):
        with open(f"/proc/{member}/smaps_rollup") as file:
            part = parse_memory(file.read())
        rss += part.rss_kib
        dirty += part.private_dirty_kib
    return Memory(rss, dirty)


def parse_memory(text):
    """RSS and private dirty memory of /proc/PID/smaps_rollup."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            sizes[name] = int(rest.split()[0])
    return Memory(sizes["Rss"], sizes["Private_Dirty"])


def family(pid):
    """`pid` and all its descendants."""
    members, queue = [], [pid]
    while queue:
        member = queue.pop()
        members.append(member)
        try:
            tasks = os.listdir(f"/proc/{member}/task")
        except FileNotFoundError:
            continue
        for task in tasks:
            try:
                with open(f"/proc/{member}/task/{task}/children") as file:
                    queue.extend(int(word) for word in file.read().split())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return members


def background(seconds):
    """Share of the machine that others use while we do nothing: 0 to 1."""
    before, start = machine(), time.monotonic()
    time.sleep(seconds)
    passed = (time.monotonic() - start) * 1e6 * (os.cpu_count() or 1)
    return min(1.0, (machine().busy_us - before.busy_us) / passed)


def per_query(begin, end, rate):
    """Costs of one query between two samples while queries came at `rate` a second (`rate` > 0).

    Dividing two rates, rather than two totals, keeps the logins and the end of a run out of it."""
    seconds = end.at - begin.at
    queries = rate * seconds
    cost = {
        "window_s": seconds,
        "machine_us": (end.machine.busy_us - begin.machine.busy_us) / queries,
        "stolen_share": (end.machine.stolen_us - begin.machine.stolen_us) / 1e6 / seconds / (os.cpu_count() or 1),
    }
    if begin.process and end.process:
        cost["proxy_user_us"] = (end.process.user_us - begin.process.user_us) / queries
        cost["proxy_system_us"] = (end.process.system_us - begin.process.system_us) / queries
        cost["proxy_us"] = cost["proxy_user_us"] + cost["proxy_system_us"]
        cost["proxy_switches"] = (end.process.switches - begin.process.switches) / queries
        cost["proxy_threads"] = end.process.threads
        cost["proxy_rss_kib"] = end.process.rss_kib
    return cost
