"""Runs named checks in order, prints a TAP-like line for each, and says by the exit status whether all passed."""

import asyncio
import inspect
import sys
import traceback

_checks = []


def check(function):
    """Marks a check; a coroutine function is run in an event loop of its own."""
    _checks.append(function)
    return function


def run():
    """Runs all checks. A failing one does not keep the others from running."""
    failed = 0
    for number, function in enumerate(_checks, 1):
        name = function.__name__.replace("_", " ")
        try:
            if inspect.iscoroutinefunction(function):
                asyncio.run(asyncio.wait_for(function(), 60))
            else:
                function()
        except BaseException:
            failed += 1
            print(f"not ok {number} - {name}", flush=True)
            traceback.print_exc()
        else:
            print(f"ok {number} - {name}", flush=True)
    print(f"1..{len(_checks)}", flush=True)
    sys.exit(1 if failed else 0)
