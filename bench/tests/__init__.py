"""Unit tests: parsing, statistics, planning and rendering; nothing is started.

`python3 -m unittest discover -s bench -t .` from the repository's root runs them.
"""
