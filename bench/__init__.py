"""Kingpost's proxy measured side by side with its peers, in one run on one machine.

    plan  ──▶  run  ──▶  results (JSON)  ──▶  table (Markdown), plot (SVG), page
     │          │
     │          ├── cluster    one primary and two streaming replicas
     │          ├── peers      the processes that are measured
     │          ├── loads      pgbench, sysbench, idle connections
     │          └── counters   /proc, read while a load runs
     └── which target runs when: alternately, the order rotated

Everything is the standard library's; what is started binds to loopback and is ended by its own process id.
"""
