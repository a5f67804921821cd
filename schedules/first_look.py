"""Define how the first document of a feed is used as history."""

from __future__ import annotations

# The dates of its posts count as history, at most this far back.
FIRST_HOURS = 90 * 24.0
# Feed size that nearly every feed reaches. A document that was never seen full may hold more.
USUAL_WINDOW = 10
