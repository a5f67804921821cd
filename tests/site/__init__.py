"""A local website with a known history, for the demo, the tests and the benchmarks."""
