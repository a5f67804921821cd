"""One profile for all laws: no deadline, as a busy machine is no broken law."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("laws", deadline=None, max_examples=100)
settings.load_profile("laws")
