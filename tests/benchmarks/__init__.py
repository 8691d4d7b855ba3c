"""Measured comparisons with other libraries; a person runs them with `python -m tests.benchmarks`."""
