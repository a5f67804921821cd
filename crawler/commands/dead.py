"""`scrapy dead`: pages that killed their workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions


class Command(ActionsCommand):
    """Poison pages: list them, retry them or leave them alone."""

    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action("what was given up, and when", "scrapy dead list --json"),
        "retry": Action("let pages be visited again", "scrapy dead retry --all"),
        "drop": Action("leave pages alone for good", "scrapy dead drop https://shop.example/bad"),
    }
    usual = "list"
    example = "scrapy dead list"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "List, retry or drop pages that killed one worker after the other"

    def functions(self, action: str) -> Functions:
        """Import the functions of an action."""
        from crawler.cli import dead

        functions: Mapping[str, Functions] = {
            "list": (dead.list_options, dead.run_list),
            "retry": (dead.change_options, dead.run_retry),
            "drop": (dead.change_options, dead.run_drop),
        }
        return functions[action]
