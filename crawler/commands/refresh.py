"""`scrapy refresh`: the service that takes cron's place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand


class Command(ActionsCommand):
    """One action, with options of its own."""

    actions: ClassVar[Mapping[str, Action]] = {
        "run": Action(
            "stay at work: visit what is due of all spiders, replan and prune at their times",
            "scrapy refresh run --replan 12h",
            "crawler.cli.service",
        ),
    }
    example = "scrapy refresh run"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Keep all spiders fresh by their plans, as a service instead of cron"
