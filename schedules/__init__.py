"""When to look again: pure functions, no I/O; `now` and random numbers are passed in."""
