"""What can go wrong that a user should read about, rather than a traceback."""


class BenchError(Exception):
    """Says what was tried, on what, and what to do. Ends the whole benchmark."""


class RunFailed(BenchError):
    """One run gave no figures; the benchmark goes on without it."""


class PeerUnavailable(BenchError):
    """A peer is not installed, does not start, or cannot do this load; the benchmark goes on without it."""
