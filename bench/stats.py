"""Medians, spreads, percentiles and ratios."""

from statistics import median


def percentile(ordered, share):
    """The value that `share` (0 to 1) of the sorted values do not exceed: nearest rank, so always one that was seen."""
    if not ordered:
        return None
    rank = max(1, -(-len(ordered) * share // 1))
    return ordered[int(rank) - 1]


def histogram_percentile(buckets, share):
    """The same of `(value, count)` pairs in ascending order of value."""
    total = sum(count for _, count in buckets)
    if total == 0:
        return None
    wanted, seen = share * total, 0
    for value, count in buckets:
        seen += count
        if seen >= wanted:
            return value
    return buckets[-1][0]


def summary(values):
    """Median, least and greatest of what is there; None when nothing is."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    return {"median": median(present), "min": min(present), "max": max(present), "n": len(present)}


def spread(summary_):
    """Half the way from least to greatest, relative to the median: the ± of a table."""
    if not summary_ or not summary_["median"]:
        return None
    return (summary_["max"] - summary_["min"]) / 2 / summary_["median"]


def paired_ratio(ours, theirs):
    """Median of the ratios within each repetition. Both map repetition to value; one that is missing on a side, or is
    zero below the line, is left out. What a noisy minute does to both cancels, as it would not in a ratio of medians.
    """
    ratios = [
        ours[repetition] / theirs[repetition]
        for repetition in sorted(ours.keys() & theirs.keys())
        if ours[repetition] is not None and theirs[repetition]
    ]
    return median(ratios) if ratios else None
