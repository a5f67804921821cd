"""Several workers of one pass, and what may happen to them: for tests and benchmarks."""
