"""Speed and memory, measured side by side; run by `make bench`, never by the test suite."""
