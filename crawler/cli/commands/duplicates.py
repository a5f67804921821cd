"""`scrapy duplicates`: near-duplicates among the stored posts, or in a file of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """List, explain and rebuild clusters of near-duplicates, or check a file of texts."""

    default_action = "list"
    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action(
            "List the clusters of near-duplicates, largest first, or show one cluster",
            "scrapy duplicates --cluster 69a5b1f0c2d4e8f1a2b3c4d5",
        ),
        "explain": Action(
            "Compare two posts side by side, and explain why they are duplicates or not",
            "scrapy duplicates explain https://a.example/post https://b.example/copy",
        ),
        "check": Action(
            'Find the duplicates in a file of {"id", "text"} lines; stored posts do not change',
            "scrapy duplicates check posts.jsonl --keep archive --output flags.jsonl",
        ),
        "kept": Action(
            "List the indexes stored by `check --keep`, or delete one of them",
            "scrapy duplicates kept --forget archive",
        ),
        "rebuild": Action(
            "Compare all posts again with the current settings; no crawl can run meanwhile",
            "scrapy duplicates rebuild -s FRESHET_DUPLICATES=words",
        ),
    }
    summary = "List, explain or rebuild near-duplicates, or check a file of texts"
    example = "scrapy duplicates"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        if action == "check":
            from crawler.cli import duplicates_check

            return duplicates_check.add_options, duplicates_check.run
        from crawler.cli import duplicates

        functions: Mapping[str, Functions] = {
            "list": (duplicates.list_options, duplicates.run_list),
            "explain": (duplicates.explain_options, duplicates.run_explain),
            "kept": (duplicates.kept_options, duplicates.run_kept),
            "rebuild": (duplicates.rebuild_options, duplicates.run_rebuild),
        }
        return functions[action]

    def json_types(self) -> JsonTypes:
        """Return the types of clusters, comparisons, verdicts and counts."""
        from crawler.cli.duplicates import RebuildReport
        from crawler.cli.duplicates_check import CheckedText, CheckReport
        from crawler.reports.duplicates import Comparison
        from crawler.storage.dedup.check_index import KeptIndex
        from crawler.storage.dedup.queries import Cluster, Overview

        return {
            "scrapy duplicates list --json": Overview,
            "scrapy duplicates list --cluster ID --json": Cluster,
            "scrapy duplicates explain URL_A URL_B --json": Comparison,
            "scrapy duplicates check FILE --json": CheckedText,
            "scrapy duplicates check FILE --output FILE --json": CheckReport,
            "scrapy duplicates kept --json": list[KeptIndex],
            "scrapy duplicates kept --forget NAME --json": KeptIndex,
            "scrapy duplicates rebuild --json": RebuildReport,
        }
