"""`scrapy duplicates`: posts that say the same, and the same question for a file of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions


class Command(ActionsCommand):
    """One action of the table; without its name, the list."""

    usual = "list"
    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action(
            "show the clusters of near-duplicates, the largest first, or one of them",
            "scrapy duplicates --cluster 69a5b1f0c2d4e8f1a2b3c4d5",
        ),
        "explain": Action(
            "compare two posts: bands, similarity, what was decided and why, side by side",
            "scrapy duplicates explain https://a.example/post https://b.example/copy",
        ),
        "check": Action(
            'find the duplicates in a file of {"id", "text"} lines; the posts are left alone',
            "scrapy duplicates check posts.jsonl --keep archive --output flags.jsonl",
        ),
        "kept": Action(
            "list what `check --keep` has kept, or remove one of them",
            "scrapy duplicates kept --forget archive",
        ),
        "rebuild": Action(
            "compare all posts anew, by what the settings ask for; crawls have to wait",
            "scrapy duplicates rebuild -s FRESHET_DUPLICATES=words",
        ),
    }
    example = "scrapy duplicates"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Show near-duplicates, explain and rebuild them, or check a file of texts"

    def functions(self, action: str) -> Functions:
        """Import the functions of an action."""
        if action == "explain":
            from crawler.cli import duplicates_explain

            return duplicates_explain.add_options, duplicates_explain.run
        if action == "check":
            from crawler.cli import duplicates_check

            return duplicates_check.add_options, duplicates_check.run
        from crawler.cli import duplicates

        functions: Mapping[str, Functions] = {
            "list": (duplicates.list_options, duplicates.run_list),
            "kept": (duplicates.kept_options, duplicates.run_kept),
            "rebuild": (duplicates.rebuild_options, duplicates.run_rebuild),
        }
        return functions[action]
