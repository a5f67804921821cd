"""What the first document of a feed tells of the time before it was read."""

from __future__ import annotations

# Its posts are a past, as far back as this.
FIRST_HOURS = 90 * 24.0
# What most feeds hold at least. A document that was never seen full may have room for more.
USUAL_WINDOW = 10
