"""What `bench/registry` has measured, as tables: medians with their spread, ratios within the run, and the targets."""

from bench.stats import paired_ratio, spread, summary

NAMES = {(0, 20): "0 entries", (4, 20): "4 entries", (8, 20): "8 entries", (16, 20): "16 entries", (8, 1024): "8 x 1 KiB"}


def shape(figure):
    return NAMES[figure["entries"], figure["bytes"]]


def chosen(figures, **labels):
    return [f for f in figures if all(f.get(key) == value for key, value in labels.items())]


def middle(figures, key, **labels):
    """Median of a figure over the repetitions; None where it was not measured."""
    found = summary([f[key] for f in chosen(figures, **labels) if key in f])
    return found and found["median"]


def shown(figures, key, digits=0, **labels):
    """Median and spread as text."""
    found = summary([f[key] for f in chosen(figures, **labels) if key in f])
    if not found:
        return ""
    around = spread(found)
    text = f"{found['median']:,.{digits}f}"
    return f"{text} ±{around * 100:.0f}%" if found["n"] > 1 and around is not None else text


def values(figures, key):
    """The values of a label, in the order in which they came."""
    return list(dict.fromkeys(f[key] for f in figures if key in f))


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join("---" if n == 0 else "---:" for n in range(len(head))) + "|"]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def in_turn(figures, key, ours, theirs):
    """Median of the ratios of two kinds of figures within each repetition: a noisy minute is in both."""
    each = [{f.get("repetition"): f[key] for f in chosen(figures, **labels)} for labels in (ours, theirs)]
    return paired_ratio(*each)


def ratio(ours, theirs):
    return number(ours / theirs if ours and theirs else None)


def number(value):
    return "" if value is None else f"{value:.2f}"


def registrations(figures):
    lines = []
    own, etcd = chosen(figures, section="register"), chosen(figures, section="etcd")
    for store in values(own, "store"):
        for instances in values(chosen(own, store=store), "instances"):
            for clients in values(chosen(own, store=store, instances=instances), "clients"):
                of = chosen(own, store=store, instances=instances, clients=clients)
                lines += [f"\n{store}, {instances:,} instances of each shape, {clients} clients, one instance a call:\n",
                          *registered(of, chosen(etcd, clients=clients))]
    if etcd:
        rows = [[name, shown(etcd, "rate", entries=e, bytes=b), shown(etcd, "p50", 1, entries=e, bytes=b),
                 shown(etcd, "p99", 1, entries=e, bytes=b), shown(etcd, "us", 0, entries=e, bytes=b),
                 shown(etcd, "generator_us", 0, entries=e, bytes=b)]
                for (e, b), name in NAMES.items() if chosen(etcd, entries=e, bytes=b)]
        lines += [f"\netcd (a lease and a put, by its HTTP gateway), {etcd[0]['clients']} clients:\n"]
        lines += table(["metadata", "a second", "p50 ms", "p99 ms", "us CPU each", "generator"], rows)
    return lines


def registered(of, etcd):
    rows = []
    for (entries, size), name in NAMES.items():
        for what in ["new", "again"]:
            labels = {"what": what, "entries": entries, "bytes": size}
            rate = middle(of, "rate", **labels)
            if rate is None:
                continue
            rows.append([
                name if what == "new" else f"{name}, registered again", shown(of, "rate", **labels),
                number(in_turn(of, "rate", labels, {"what": "new", "entries": 0})),
                shown(of, "p50", 1, **labels), shown(of, "p99", 1, **labels), shown(of, "us", 0, **labels),
                shown(of, "database_us", 0, **labels), shown(of, "generator_us", 0, **labels),
                ratio(rate, middle(etcd, "rate", **labels))])
    head = ["metadata", "a second", "of 0 entries", "p50 ms", "p99 ms", "us CPU each", "database", "generator", "of etcd"]
    return table(head, rows)


def tables(figures):
    of = chosen(figures, section="tables")
    rows = []
    for store in values(of, "store"):
        for what in values(of, "what"):
            for (entries, size), name in NAMES.items():
                found = chosen(of, store=store, what=what, entries=entries, bytes=size)
                if not found:
                    continue
                unit = found[0]["unit"]
                pairs = [f["one"] / f["three"] if unit == "rows/s" else f["three"] / f["one"] for f in found]
                better = summary(pairs)
                rows.append([store, what, name, shown(found, "three"), shown(found, "one"), unit,
                             f"{better['median']:.2f} ({better['min']:.2f} to {better['max']:.2f})"])
    if not rows:
        return []
    return ["\nThe database alone, one connection, 512 rows a transaction, three tables beside one row an instance:\n",
            *table(["store", "what", "metadata", "three tables", "one row", "unit", "times better"], rows)]


def calls(figures):
    of = chosen(figures, section="calls")
    rows = [[f"{what} ({store})" if what.startswith("register") else what, *(shown(of, key, digits, what=what, store=store)
            for key, digits in [("rate", 0), ("p50", 2), ("p99", 1), ("us", 1)])]
            for what in values(of, "what") for store in values(chosen(of, what=what), "store")]
    lines = ["\nOther calls (heartbeats are counted, not messages; services of a hundredth of all instances, with 4 entries):\n",
             *table(["call", "a second", "p50 ms", "p99 ms", "us CPU each"], rows)] if rows else []
    of = chosen(figures, section="nodes")
    rows = []
    for what in values(of, "what"):
        for entries in values(chosen(of, what=what), "entries") or [None]:
            labels = {"what": what} | ({} if entries is None else {"entries": entries})
            one, two = (middle(of, "rate", nodes=n, **labels) for n in (1, 2))
            name = what if entries is None else f"{what}, {entries} entries"
            rows.append([name, shown(of, "rate", nodes=1, **labels), shown(of, "rate", nodes=2, **labels), ratio(two, one),
                         shown(of, "us", 0, nodes=1, **labels), shown(of, "us", 0, nodes=2, **labels)])
    if rows:
        lines += ["\nTwo nodes on PostgreSQL, the load on one and on both (CPU: of both):\n",
                  *table(["", "on one", "on both", "ratio", "us, on one", "us, on both"], rows)]
    return lines


def whole(figures):
    of = chosen(figures, section="whole")
    rows = [[what, *(shown(found, key, digits) for key, digits in [("rate", 0), ("p50", 2), ("p99", 1), ("us", 0)])]
            for what in values(of, "what") for found in [chosen(of, what=what)] if "p50" in found[0]]
    if not rows:
        return []
    lines = [f"\nAnswers about all services, {of[0]['instances']:,} instances in 100 services, and heartbeats beside them, with 50 "
             "registrations a second:\n", *table(["", "a second", "p50 ms", "p99 ms", "us CPU each"], rows)]
    memory = chosen(of, what="eight ask for /eureka/apps at once")
    if memory:
        lines += [f"\nEight who ask for `/eureka/apps` at once, {shown(memory, 'answer_mb', 1)} MB each: "
                  f"{shown(memory, 'grown_mb', 1)} MB more in memory at most than before."]
    return lines


def crowd(figures):
    of = chosen(figures, section="crowd")
    rows = [[what, *(shown(found, key, digits) for key, digits in [("clients", 0), ("rate", 0), ("p50", 2), ("p99", 1), ("core", 2),
                                                                   ("peak_mb", 0)])]
            for what in values(of, "what") for found in [chosen(of, what=what)] if "p50" in found[0]]
    if not rows:
        return []
    head = ["", "clients", "a second", "p50 ms", "p99 ms", "cores", "peak MB"]
    return [f"\nHeartbeats of {of[0]['instances']:,} instances beside the clients of all fronts, with 50 registrations a second:\n", *table(head, rows)]


def probes(figures):
    of = chosen(figures, section="probes")
    rows = [[what, f"{found[0]['targets']:,}", shown(found, "rate"), shown(found, "us", 1), shown(found, "core", 2),
             f"{middle(found, 'least'):.2f} to {middle(found, 'most'):.2f}", shown(found, "failed")]
            for what in values(of, "what") for found in [chosen(of, what=what)]]
    head = ["TCP probes", "targets", "a second", "us CPU each", "cores", "a quarter second, of the mean", "failed"]
    return ["\nActive probes:\n", *table(head, rows)] if rows else []


def many(figures):
    of = chosen(figures, section="many")
    rows = []
    for store in values(of, "store"):
        own = chosen(of, store=store)
        rows += [[store, name, shown(own, key, digits)] for name, key, digits in [
            ("registered by 16 callers, 500 a call, a second", "rate", 0), ("full load, ms", "load_ms", 0),
            ("full load, ms of CPU", "load_cpu_ms", 0), ("resident, MB", "resident_mb", 0), ("at most, MB", "peak_mb", 0),
            ("reading 5,000 changes in one go, ms", "changes_ms", 1), ("rows read of them", "changed", 0),
            ("rows that a node that follows has applied", "followed", 0), ("heartbeats a second, in process", "beats", 0)]]
        for n, name in enumerate(["a pair that one has", "a pair that 1 in 50 has", "two pairs"]):
            medians = summary([f["query_us"][n][0] for f in own if "query_us" in f])
            worst = summary([f["query_us"][n][1] for f in own if "query_us" in f])
            if medians:
                rows.append([store, f"query by {name}, us (p99)", f"{medians['median']:.1f} ({worst['median']:.1f})"])
    count = next((f["instances"] for f in of), 0)
    return [f"\n{count:,} instances with 8 entries:\n", *table(["store", "", ""], rows)] if rows else []


def targets(figures):
    """What the requirements ask for, and what this run says of it."""
    rows = []

    def target(name, found, wanted, at_most=False, digits=0):
        if found is not None:
            met = found <= wanted if at_most else found >= wanted
            rows.append([name, f"{'at most' if at_most else 'at least'} {wanted:,}", f"{found:,.{digits}f}", "yes" if met else "no"])

    own = chosen(figures, section="register")
    clients, instances = (next(iter(values(own, label)), None) for label in ["clients", "instances"])
    for store in values(own, "store"):
        of = chosen(own, store=store, clients=clients, instances=instances)
        large = middle(of, "rate", what="new", entries=16)
        kept = in_turn(of, "rate", {"what": "new", "entries": 16}, {"what": "new", "entries": 0})
        target(f"{store}: 16 entries of 0 entries", kept, 0.95, digits=2)
        target(f"{store}: registrations a second, 16 entries", large, 8000)
        target(f"{store}: us CPU each, 16 entries", middle(of, "us", what="new", entries=16), 120, at_most=True)
        target(f"{store}: a second with 8 x 1 KiB", middle(of, "rate", what="new", bytes=1024), 2500)
        target(f"{store}: registered again, a second", middle(of, "rate", what="again"), 20_000)
    of = chosen(figures, section="calls")
    target("heartbeats a second, HTTP, one a request", middle(of, "rate", what="heartbeat"), 25_000)
    target("heartbeats a second, HTTP, 100 a request", (middle(of, "rate", what="heartbeats, 100 a request")), 25_000)
    target("heartbeats a second, streamed, one a message", middle(of, "rate", what="heartbeats streamed, 1 a message"), 60_000)
    target("heartbeats a second, streamed, 100 a message", middle(of, "rate", what="heartbeats streamed, 100 a message"), 60_000)
    target("discoveries of 200 instances a second", middle(of, "rate", what="discover"), 8000)
    target("the same, gzip", middle(of, "rate", what="discover, gzip"), 8000)
    for store in values(of, "store"):
        for what, limit in [("register to visible", 50), ("register to visible at another node", 150)]:
            target(f"{store}: {what}, p99 ms", middle(of, "p99", what=what, store=store), limit, at_most=True, digits=1)
        target(f"{store}: register to visible, p50 ms", middle(of, "p50", what="register to visible", store=store), 5,
               at_most=True, digits=2)
    of = chosen(figures, section="whole")
    target("Eureka's delta with nothing new, us CPU", middle(of, "us", what="Eureka's delta with nothing new"), 50, at_most=True)
    target("/eureka/apps, nothing new, p50 ms", middle(of, "p50", what="/eureka/apps, nothing new"), 20, at_most=True, digits=1)
    target("/eureka/apps, after a change, p50 ms", middle(of, "p50", what="/eureka/apps, after a change"), 20, at_most=True, digits=1)
    for name in ["", ", gzip"]:
        target(f"heartbeats beside 8 watchers{name}, p99 ms",
               middle(of, "p99", what=f"heartbeats, 500 a second, beside 8 watchers{name}"), 20, at_most=True, digits=1)
    for what in ["/eureka/apps, nothing new", "/eureka/apps, after a change"]:
        for name in ["", ", gzip"]:
            us = middle(of, "us", what=what.replace(",", f"{name},", 1))
            target(f"{what.replace(',', f'{name},', 1)}, ms CPU", us and us / 1000, 20, at_most=True, digits=1)
    for memory in chosen(of, what="eight ask for /eureka/apps at once")[:1]:
        if "first_mb" in memory:
            target("/eureka/apps for the first and eight more, MB of memory", memory["first_mb"], memory["answer_mb"], at_most=True, digits=1)
    of = chosen(figures, section="crowd")
    target("heartbeats beside the clients of all fronts, p99 ms",
           middle(of, "p99", what="heartbeats, 500 a second, beside the clients of all fronts"), 20, at_most=True, digits=1)
    of = chosen(figures, section="many", what="fresh")
    for store in values(of, "store"):
        for name, key, limit in [("resident MB", "resident_mb", 300), ("full load ms", "load_ms", 2000),
                                 ("5,000 changes ms", "changes_ms", 80), ("rows read for them", "changed", 5000)]:
            target(f"{store}: {name}", middle(of, key, store=store), limit, at_most=True)
        query = summary([f["query_us"][1][0] for f in chosen(of, store=store)])
        target(f"{store}: query by a metadata pair, us", query and query["median"], 1000, at_most=True, digits=1)
    return ["\nAgainst the targets (2 cores):\n", *table(["", "target", "here", "met"], rows)] if rows else []


def machine(of):
    noisy = " **The machine was busy with other things.**" if of["noisy"] else ""
    return f"{of['cores']} cores, {of['date']}, load before the run {of['load']:.2f}, {of['seconds']} s.{noisy}"


def figures(of):
    return "\n".join([*registrations(of), *tables(of), *calls(of), *whole(of), *crowd(of), *probes(of), *many(of), *targets(of)]) + "\n"


def markdown(found, of, command):
    about = f"`{command}`. Medians, and ± half the way from least to greatest over the repetitions."
    return f"{machine(of)}\n{about}\n{figures(found)}"
