"""Results as Markdown. Medians over the repetitions; ratios are medians of each repetition's ratio."""

import re

from bench.errors import BenchError
from bench.plan import MODES, SYSBENCH_SCRIPTS
from bench.stats import paired_ratio, spread, summary

BEGIN, END = "<!-- results -->", "<!-- /results -->"
# Above this share of the machine used by others just before a run, its figures are in doubt.
NOISE = 0.10

TITLES = {"select": "pgbench -S", "tpcb": "pgbench TPC-B"}

# The first version's targets (issue: the house): proxy CPU at 64 clients, and throughput everywhere.
CPU_TARGET = 0.85


def markdown(results, level=2, plot=None):
    """The whole report, its headings from `level` down; `plot` is a relative link to the picture."""
    head = "#" * level
    parts = [preamble(results)]
    if plot:
        parts.append(f"![Throughput, proxy CPU and p99 latency by clients]({plot})")
    checked = targets(results)
    if checked:
        parts += [f"{head} Against the targets", checked]
    for family in ("select", "tpcb"):
        for mode in MODES:
            cases = [case for case in results["cases"] if case["family"] == family and case["mode"] == mode]
            if cases:
                parts += [f"{head} {TITLES[family]}, {mode}", load_table(cases, results)]
    cases = [case for case in results["cases"] if case["family"] == "sysbench"]
    if cases:
        parts += [f"{head} sysbench over one primary and two replicas", sysbench_table(cases)]
    for case in results["cases"]:
        if case["family"] == "idle":
            parts += [f"{head} {case['clients']} idle clients", idle_table(case)]
    parts += [f"{head} What it ran on", conditions(results)]
    return "\n\n".join(parts)


def preamble(results):
    """One paragraph: when, what, how often, how noisy."""
    machine, settings = results["machine"], results["settings"]
    text = (
        f"{results['started']}, {machine['cores']} cores ({machine['cpu']}), `{results['command'].strip()}`: "
        f"{settings['repetitions']} repetitions of {settings['seconds']} s, targets alternating, "
        f"{settings['pool']} server connections a node."
    )
    if not results["complete"]:
        text += " **Incomplete: the run was ended early.**"
    noisy, total, worst = noise(results)
    if noisy:
        text += (
            f" **Noisy: before {noisy} of {total} runs something else used more than {NOISE:.0%} of the machine (at "
            f"worst {worst:.0%}): draw no conclusion.**"
        )
    return text


def noise(results):
    """(noisy runs, all runs, worst background share)."""
    runs = [run for case in results["cases"] for run in case["runs"]]
    shares = [max(run.get("background", 0), run.get("stolen_share", 0)) for run in runs]
    return sum(share > NOISE for share in shares), len(shares), max(shares, default=0)


def values(case, target, key):
    """`repetition -> value` of one target's runs that gave it."""
    return {run["repetition"]: run[key] for run in case["runs"] if run["target"] == target and run.get(key) is not None}


def pgbouncer_of(case, results):
    """The newest PgBouncer that gave figures in this case; None when none did."""
    names = {run["target"] for run in case["runs"] if run["target"].startswith("pgbouncer") and "error" not in run}
    return max(names, key=lambda name: _version(results["versions"].get(name) or ""), default=None)


def _version(text):
    found = re.search(r"(\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def targets(results):
    """A line for each target of the first version that this result can speak about."""
    lines = []
    for case in results["cases"]:
        reference = pgbouncer_of(case, results)
        if case["family"] not in TITLES or not reference or "kingpost" not in case["targets"]:
            continue
        title = f"{TITLES[case['family']]} {case['mode']}, {case['clients']} clients"
        if case["family"] == "select" and case["mode"] == "simple" and case["clients"] == 64:
            ratio = paired_ratio(values(case, "kingpost", "proxy_us"), values(case, reference, "proxy_us"))
            text = f"{title}: proxy CPU a query, of {reference}'s (at most {CPU_TARGET})"
            lines.append(_check(ratio, lambda r: r <= CPU_TARGET, text))
        ratio = paired_ratio(values(case, "kingpost", "qps"), values(case, reference, "qps"))
        lines.append(_check(ratio, lambda r: r >= 1, f"{title}: QPS, of {reference}'s (at least 1)"))
    lines = [line for line in lines if line]
    return "\n".join(["| ratio | | target |", "|---:|---|---|", *lines]) if lines else ""


def _check(ratio, holds, text):
    return None if ratio is None else f"| {ratio:.2f} | {'met' if holds(ratio) else '**not met**'} | {text} |"


def load_table(cases, results):
    """pgbench: a row for each number of clients and target."""
    rows = [
        "| clients | target | QPS | ± | of direct | of PgBouncer | mean ms | p50 ms | p99 ms "
        "| proxy µs/query (user + system) | of PgBouncer | machine µs/query | switches/query | proxy RSS MiB |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    notes = []
    for case in cases:
        reference = pgbouncer_of(case, results)
        for target in case["targets"]:
            note = _note(case, target)
            if note:
                notes.append(note)
            qps = summary(values(case, target, "qps").values())
            if not qps:
                rows.append(f"| {case['clients']} | {target} |" + " |" * 12)
                continue
            of = lambda other, key: _number(_ratio(case, target, other, key), 2)  # noqa: E731
            mid = lambda key, digits: _number(_median(case, target, key), digits)  # noqa: E731
            proxy = mid("proxy_us", 1)
            if proxy:
                proxy += f" ({mid('proxy_user_us', 1)} + {mid('proxy_system_us', 1)})"
            rss = _median(case, target, "proxy_rss_kib")
            rows.append(
                f"| {case['clients']} | {target} | {qps['median']:,.0f} | {_percent(spread(qps))} "
                f"| {of('direct', 'qps')} | {of(reference, 'qps')} "
                f"| {mid('mean_ms', 2)} | {mid('p50_ms', 2)} | {mid('p99_ms', 2)} | {proxy} "
                f"| {of(reference, 'proxy_us')} | {mid('machine_us', 1)} | {mid('proxy_switches', 2)} "
                f"| {_number(rss / 1024 if rss else None, 1)} |"
            )
    return _with_notes(rows, notes)


def sysbench_table(cases):
    """sysbench: ratios to one database beside the figure that mission.md restates."""
    rows = [
        "| script | mode | target | QPS | ± | of one database | published | p99 ms | proxy µs/query "
        "| machine µs/query |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    notes = []
    for case in cases:
        for target in case["targets"]:
            note = _note(case, target)
            if note:
                notes.append(note)
            qps = summary(values(case, target, "qps").values())
            if not qps:
                continue
            name = "one database" if target == "direct" else target
            published = f"{SYSBENCH_SCRIPTS[case['script']]:.2f}" if target == "kingpost-split" else ""
            mid = lambda key, digits: _number(_median(case, target, key), digits)  # noqa: E731
            rows.append(
                f"| {case['script']} | {case['mode']} | {name} | {qps['median']:,.0f} | {_percent(spread(qps))} "
                f"| {_number(_ratio(case, target, 'direct', 'qps'), 2)} | {published} | {mid('p99_ms', 2)} "
                f"| {mid('proxy_us', 1)} | {mid('machine_us', 1)} |"
            )
    return _with_notes(rows, notes)


def idle_table(case):
    """Memory a client; the kernel's socket buffers are not in it."""
    rows = [
        "| target | RSS KiB a client, logged in | private dirty | RSS after one query each | private dirty | ± "
        "| process before, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    notes = []
    for target in case["targets"]:
        note = _note(case, target)
        if note:
            notes.append(note)
        rss = summary(values(case, target, "idle_rss_kib").values())
        if not rss:
            continue
        mid = lambda key, digits=2, scale=1: _number(_median(case, target, key) / scale, digits)  # noqa: E731
        rows.append(
            f"| {target} | {rss['median']:.2f} | {mid('idle_dirty_kib')} | {mid('queried_rss_kib')} "
            f"| {mid('queried_dirty_kib')} | {_percent(spread(rss))} | {mid('base_rss_kib', 1, 1024)} |"
        )
    return _with_notes(rows, notes)


def conditions(results):
    """Versions and settings, everything that a figure depends on."""
    machine, settings = results["machine"], results["settings"]
    versions = "; ".join(f"{name}: {text}" for name, text in results["versions"].items() if text)
    by = "Unix sockets" if settings.get("sockets") else "loopback TCP"
    lines = [
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory_kib'] >> 20} GiB, {machine['system']}, "
        f"kernel {machine['kernel']}.",
        f"- {versions}." + (f" Kingpost at commit {results['commit']}." if results["commit"] else ""),
        f"- Everything on {by}, trust, no TLS; transaction mode; pools of {settings['pool']} a node (HAProxy "
        f"and direct: a server connection for each client); {settings['workers']} threads a proxy, "
        "PgBouncer one process.",
        f"- pgbench scale {settings['pgbench_scale']}, -j {settings['pgbench_jobs']}; PostgreSQL not at its defaults: "
        + ", ".join(f"{name} = {value or repr('')}" for name, value in settings["postgresql"].items())
        + ".",
    ]
    for name, about in settings["targets"].items():
        if about:
            lines.append(f"- `{name}`: {about}.")
    if settings["sysbench"]:
        common = " ".join(settings["sysbench"])
        lines.append(f"- sysbench {common}; `simple` is --db-ps-mode=disable, `prepared` is auto.")
    if results["missing"]:
        missing = "; ".join(f"{name} ({why})" for name, why in results["missing"].items())
        lines.append(f"- Not measured: {missing}.")
    if results["untested"]:
        names = ", ".join(results["untested"])
        lines.append(f"- Configured from their documentation, not tried by us before: {names}.")
    return "\n".join(lines)


def into_page(page, text):
    """`page` with the text between its two marks replaced."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise BenchError(f"bench/results/proxy.md must hold {BEGIN} and after it {END}, each once.")
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def _median(case, target, key):
    found = summary(values(case, target, key).values())
    return found["median"] if found else None


def _ratio(case, target, other, key):
    if other is None or other == target:
        return None
    return paired_ratio(values(case, target, key), values(case, other, key))


def _note(case, target):
    """Why a target has no figures in a case, or how many of its runs failed."""
    if target in case["skipped"]:
        return f"{case['id']}, {target}: {case['skipped'][target]}."
    errors = [run["error"] for run in case["runs"] if run["target"] == target and "error" in run]
    failed = sum(run.get("failed", 0) for run in case["runs"] if run["target"] == target)
    if errors:
        return f"{case['id']}, {target}: {len(errors)} failed runs ({errors[0]})."
    if failed:
        return f"{case['id']}, {target}: {failed} transactions failed."
    return None


def _with_notes(rows, notes):
    return "\n".join(rows) + ("\n\n" + "\n".join(f"- {note}" for note in notes) if notes else "")


def _number(value, digits):
    return "" if value is None else f"{value:,.{digits}f}"


def _percent(share):
    return "" if share is None else f"{share:.0%}"
