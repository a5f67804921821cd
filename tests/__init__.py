"""Tests of Freshet."""

import os

# As in crawler.settings, which only commands load; before anything imports numpy.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
