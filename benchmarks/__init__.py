"""Ours beside the peers' figures, as one program: `python -m benchmarks [NAME…] [--json]`.

A benchmark is a function under `@frame.benchmark(name)` that yields rows. `__main__` imports the modules that have any.
"""
