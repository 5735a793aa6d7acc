"""Results as one SVG picture, made by hand so that it needs no library: small multiples, a column for each mode, a row
for each load and measure; a dot is a median, the line through it goes from the least value to the greatest."""

import math
from html import escape

from bench.plan import MODES
from bench.report import TITLES, values
from bench.stats import summary

# Key, axis, and whether the axis is logarithmic: latency grows with the clients, over orders of magnitude.
MEASURES = (
    ("qps", "queries/s", False),
    ("proxy_us", "proxy CPU, µs a query", False),
    ("p99_ms", "p99 latency, ms", True),
)
COLOURS = {
    "direct": "#6b7280",
    "kingpost": "#c2410c",
    "kingpost-split": "#f59e0b",
    "pgbouncer": "#1d4ed8",
    "haproxy": "#047857",
    "haproxy-3": "#34d399",
    "odyssey": "#7c3aed",
    "pgcat": "#be185d",
    "pgdog": "#0e7490",
}
MORE_COLOURS = ("#60a5fa", "#93c5fd", "#a3a3a3", "#84cc16", "#e879f9")

WIDTH, HEIGHT = 300, 190
LEFT, TOP, GAP_X, GAP_Y = 64, 76, 76, 58


def svg(results):
    """The picture; one that says so when there is nothing to draw."""
    bands = []
    for family in TITLES:
        columns = []
        for mode in MODES:
            cases = [case for case in results["cases"] if (case["family"], case["mode"]) == (family, mode)]
            if any(case["runs"] for case in cases):
                columns.append((f"{TITLES[family]}, {mode}", cases))
        if columns:
            bands.append(columns)
    names = []
    for case in (case for columns in bands for _, cases in columns for case in cases):
        names += [name for name in case["targets"] if name not in names and values(case, name, "qps")]
    colours = colours_of(names)
    width = LEFT + max([2, *map(len, bands)]) * (WIDTH + GAP_X)
    height = TOP + len(bands) * len(MEASURES) * (HEIGHT + GAP_Y)
    body = [text(LEFT, 26, "Kingpost's proxy beside its peers", size=17, weight="600"), *legend(names, colours)]
    if not bands:
        body.append(text(LEFT, 56, "no pgbench results"))
    for band, columns in enumerate(bands):
        for column, (title, cases) in enumerate(columns):
            for row, (key, label, logarithmic) in enumerate(MEASURES):
                at = (LEFT + column * (WIDTH + GAP_X), TOP + (band * len(MEASURES) + row) * (HEIGHT + GAP_Y) + 18)
                body += panel(at, f"{title}: {label}", cases, names, key, colours, logarithmic)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, DejaVu Sans, sans-serif" font-size="12" fill="#111827">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def colours_of(names):
    """A colour for each target: the same in every picture for those we know."""
    spare = iter(MORE_COLOURS * (len(names) // len(MORE_COLOURS) + 1))
    return {name: COLOURS.get(name) or next(spare) for name in names}


def legend(names, colours):
    """A dot and a name for each target, in a row."""
    parts, x = [], LEFT
    for name in names:
        parts += [f'<circle cx="{x + 4}" cy="48" r="4" fill="{colours[name]}"/>', text(x + 13, 52, name)]
        x += 34 + 7 * len(name)
    return parts


def panel(at, title, cases, names, key, colours, logarithmic):
    """One measure of one load over the number of clients."""
    x0, y0 = at
    series = {name: [summary(values(case, name, key).values()) for case in cases] for name in names}
    points = [point for line in series.values() for point in line if point]
    place, ticks = axis(points, logarithmic)
    height_of = lambda value: y0 + HEIGHT * (1 - place(value))  # noqa: E731
    parts = [text(x0, y0 - 8, title, weight="600")]
    for value in ticks:
        y = height_of(value)
        parts.append(f'<line x1="{x0}" y1="{y:.1f}" x2="{x0 + WIDTH}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(text(x0 - 6, y + 4, tick(value), anchor="end", colour="#6b7280"))
    slot = WIDTH / len(cases)
    for index, case in enumerate(cases):
        label = f"{case['clients']}" + (" clients" if index == len(cases) - 1 else "")
        parts.append(text(x0 + slot * (index + 0.5), y0 + HEIGHT + 16, label, anchor="middle", colour="#6b7280"))
    for number, name in enumerate(names):
        # Beside each other rather than on top of each other.
        shift = (number - (len(names) - 1) / 2) * min(10, slot / (len(names) + 1))
        colour, line = colours[name], []
        for index, point in enumerate(series[name]):
            if not point:
                continue
            x, y = x0 + slot * (index + 0.5) + shift, height_of(point["median"])
            line.append(f"{x:.1f},{y:.1f}")
            least, most = height_of(point["min"]), height_of(point["max"])
            parts.append(
                f'<line x1="{x:.1f}" y1="{least:.1f}" x2="{x:.1f}" y2="{most:.1f}" '
                f'stroke="{colour}" stroke-width="2"/>'
            )
            label = escape(f"{name}: {point['median']:,.2f} ({point['min']:,.2f} to {point['max']:,.2f})")
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"><title>{label}</title></circle>')
        if len(line) > 1:
            parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{colour}" stroke-opacity="0.45"/>')
    return parts


def axis(points, logarithmic):
    """Where a value lies on the axis, from 0 to 1, and the values to mark. A linear axis begins at zero, a logarithmic
    one at a power of ten."""
    top = max((point["max"] for point in points), default=1)
    if not logarithmic:
        end = nice(top)
        return (lambda value: min(value, end) / end), [end * step / 4 for step in range(5)]
    least = min((point["min"] for point in points if point["min"] > 0), default=0.1)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(max(top, least)))
    high = max(high, low + 1)
    marks = [10.0**power for power in range(low, high + 1)]
    return (lambda value: (math.log10(max(value, marks[0])) - low) / (high - low)), marks


def nice(value):
    """The least of 1, 2, 4, 6 or 8 times a power of ten that is not below the value: an axis's end."""
    if value <= 0:
        return 1
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 4, 6, 8, 10) if power * factor >= value)


def tick(value):
    """A short number for an axis."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def text(x, y, content, size=12, weight="400", anchor="start", colour="#111827"):
    """One line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(content)}</text>'
    )
