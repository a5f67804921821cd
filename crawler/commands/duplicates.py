"""`scrapy duplicates`: posts that say the same, and the same question for a file of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand


class Command(ActionsCommand):
    """One action of the table; without its name, the list."""

    usual = "list"
    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action(
            "show the clusters of near-duplicates, the largest first, or one of them",
            "scrapy duplicates --cluster 69a5b1f0c2d4e8f1a2b3c4d5",
            "crawler.cli.duplicates",
            "run_list",
            "list_options",
        ),
        "explain": Action(
            "compare two posts: bands, similarity, what was decided and why, side by side",
            "scrapy duplicates explain https://a.example/post https://b.example/copy",
            "crawler.cli.duplicates_explain",
        ),
        "check": Action(
            'find the duplicates in a file of {"id", "text"} lines; the posts are left alone',
            "scrapy duplicates check posts.jsonl --keep archive --output flags.jsonl",
            "crawler.cli.duplicates_check",
        ),
        "kept": Action(
            "list what `check --keep` has kept, or remove one of them",
            "scrapy duplicates kept --forget archive",
            "crawler.cli.duplicates",
            "run_kept",
            "kept_options",
        ),
        "rebuild": Action(
            "compare all posts anew, by what the settings ask for; crawls have to wait",
            "scrapy duplicates rebuild -s FRESHET_DUPLICATES=words",
            "crawler.cli.duplicates",
            "run_rebuild",
            "rebuild_options",
        ),
    }
    example = "scrapy duplicates"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Show near-duplicates, explain and rebuild them, or check a file of texts"
