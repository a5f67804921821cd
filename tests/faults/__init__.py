"""Worker pools and fault injection, for tests and benchmarks."""
