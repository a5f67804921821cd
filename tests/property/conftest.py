"""Hypothesis profiles for all invariants, without a deadline because the machine may be busy.

`HYPOTHESIS_PROFILE=thorough` tries twenty times as many examples.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("quick", deadline=None, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
