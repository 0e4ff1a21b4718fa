"""Benchmarks beside peers: interleaved in one run, checked in the same run."""
