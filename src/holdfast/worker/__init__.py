"""Drivers that run jobs: threads, processes and signals. `runner.py` is one process; `supervisor.py` its parent."""
