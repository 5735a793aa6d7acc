"""Differences of two answers, field by field."""

import json


def text(value):
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def differences(path, ours, theirs, name_of):
    """Gives the differences of two trees: the field, and both values. A value is None where it is missing.

    Entries of lists belong together by the name that `name_of` gives them, or, where it gives one of them None, by their places."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted(ours.keys() | theirs.keys()):
            below = f"{path}.{key}" if path else key
            if key in ours and key in theirs:
                yield from differences(below, ours[key], theirs[key], name_of)
            else:
                yield below, text(ours[key]) if key in ours else None, text(theirs[key]) if key in theirs else None
        return
    if isinstance(ours, list) and isinstance(theirs, list) and (ours or theirs):
        names = [[name_of(part) for part in side] for side in (ours, theirs)]
        if all(None not in side and len(set(side)) == len(side) for side in names):
            if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
                yield f"{path}[order]", *(" ".join(side) for side in names)
            sides = [dict(zip(side, parts)) for side, parts in zip(names, (ours, theirs))]
            for name in sorted(sides[0].keys() | sides[1].keys()):
                if name in sides[0] and name in sides[1]:
                    yield from differences(f"{path}[{name}]", sides[0][name], sides[1][name], name_of)
                else:
                    yield f"{path}[{name}]", *(text(side[name]) if name in side else None for side in sides)
            return
    if ours != theirs:
        yield path, text(ours), text(theirs)
