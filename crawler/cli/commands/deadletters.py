"""`scrapy deadletters`: dead letters, which are pages that repeatedly crashed their workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """List, retry or discard dead letters."""

    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action("List dead-lettered pages, newest first", "scrapy deadletters list --json"),
        "retry": Action(
            "Make pages due, so that the next crawl visits them", "scrapy deadletters retry --all"
        ),
        "drop": Action(
            "Discard pages, so that they are never visited again",
            "scrapy deadletters drop https://shop.example/bad",
        ),
    }
    default_action = "list"
    example = "scrapy deadletters list"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "List, retry or discard dead letters: pages that repeatedly crashed workers"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import deadletters

        functions: Mapping[str, Functions] = {
            "list": (deadletters.list_options, deadletters.run_list),
            "retry": (deadletters.retry_options, deadletters.run_retry),
            "drop": (deadletters.drop_options, deadletters.run_drop),
        }
        return functions[action]

    def json_types(self) -> JsonTypes:
        """Return the types of the list and of changes to it."""
        from crawler.cli.deadletters import ChangedLetters
        from crawler.storage.runs import DeadLetterReport

        return {
            "scrapy deadletters list --json": list[DeadLetterReport],
            "scrapy deadletters retry URL --json": ChangedLetters,
            "scrapy deadletters drop URL --json": ChangedLetters,
        }
