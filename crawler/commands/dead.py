"""`scrapy dead`: pages that killed their workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand

MODULE = "crawler.cli.dead"


class Command(ActionsCommand):
    """One action of the table, with options of its own."""

    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action(
            "what was given up, and when", "scrapy dead list --json", MODULE, "show", "list_options"
        ),
        "retry": Action("let pages be visited again", "scrapy dead retry --all", MODULE, "retry"),
        "drop": Action(
            "leave pages alone for good",
            "scrapy dead drop https://shop.example/bad",
            MODULE,
            "drop",
        ),
    }
    usual = "list"
    example = "scrapy dead list"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "List, retry or drop pages that killed one worker after the other"
