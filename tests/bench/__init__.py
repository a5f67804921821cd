"""Benchmarks of speed and memory; run by `make bench`, never by the test suite."""
