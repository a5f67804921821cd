"""General-purpose helpers that do not depend on sites, targets or the database.

`text` formats and normalizes text, `diff` compares texts, `time` provides clocks and parses
durations, `urls` canonicalizes and groups URLs, `regex` searches user-supplied patterns in linear
time, `compression` decompresses up to a limit, `files` reads files in chunks and replaces them
atomically, `terminal` escapes output and shows progress, `process` manages tasks, memory and
subprocesses, and `sandbox` limits the time and memory of work on untrusted input.
"""
