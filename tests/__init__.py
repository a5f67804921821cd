"""Tests of Freshet."""

import os

# As in crawler.settings, which only commands import. Must precede any import of numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
