"""Normalize and hash the content of pages and feeds."""

from __future__ import annotations

from typing import Any

from crawler.extract.content import fill_safely, normal
from crawler.items import Fetched


class ContentPipeline:
    """Normalizes and hashes the content of a Fetched."""

    def process_item(self, item: Any) -> Any:
        """Set `content` and `content_hash` of a Fetched; return other items unchanged."""
        if isinstance(item, Fetched):
            if item.reason is not None:
                # The reason may quote the page.
                item.reason = normal(item.reason)
            # Pages and feeds that may have been requested twice were hashed before that.
            fill_safely(item)
        return item
