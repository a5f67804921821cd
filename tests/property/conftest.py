"""A Hypothesis profile for all invariants, without a deadline because the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("laws", deadline=None, max_examples=100)
settings.load_profile("laws")
