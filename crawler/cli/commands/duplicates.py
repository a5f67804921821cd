"""`scrapy duplicates`: near-duplicates among the stored posts, or in a file of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand


class Command(ActionsCommand):
    """List, explain and rebuild clusters of near-duplicates, or check a file of texts."""

    default_action = "list"
    summary = "List, explain or rebuild near-duplicates, or check a file of texts"
    example = "scrapy duplicates"
    documents: ClassVar = {
        "scrapy duplicates list --json": "crawler.storage.dedup.queries.Overview",
        "scrapy duplicates list --cluster ID --json": "crawler.storage.dedup.queries.Cluster",
        "scrapy duplicates explain URL_A URL_B --json": "crawler.reports.duplicates.Comparison",
        "scrapy duplicates check FILE --json": "crawler.cli.duplicates_check.CheckedText",
        "scrapy duplicates check FILE --output FILE --json": (
            "crawler.cli.duplicates_check.CheckReport"
        ),
        "scrapy duplicates kept --json": "list[crawler.storage.dedup.check_index.KeptIndex]",
        "scrapy duplicates kept --forget NAME --json": (
            "crawler.storage.dedup.check_index.KeptIndex"
        ),
        "scrapy duplicates rebuild --json": "crawler.cli.duplicates.RebuildReport",
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Import and return the actions."""
        from crawler.cli import duplicates, duplicates_check

        return {
            "list": Action(
                "List the clusters of near-duplicates, largest first, or show one cluster",
                "scrapy duplicates --cluster 69a5b1f0c2d4e8f1a2b3c4d5",
                duplicates.run_list, duplicates.list_options,
            ),
            "explain": Action(
                "Compare two posts side by side, and explain why they are duplicates or not",
                "scrapy duplicates explain https://a.example/post https://b.example/copy",
                duplicates.run_explain, duplicates.explain_options,
            ),
            "check": Action(
                'Find the duplicates in a file of {"id", "text"} lines; stored posts do not change',
                "scrapy duplicates check posts.jsonl --keep archive --output flags.jsonl",
                duplicates_check.run, duplicates_check.add_options,
            ),
            "kept": Action(
                "List the indexes stored by `check --keep`, or delete one of them",
                "scrapy duplicates kept --forget archive",
                duplicates.run_kept, duplicates.kept_options,
            ),
            "rebuild": Action(
                "Compare all posts again with the current settings; no crawl can run meanwhile",
                "scrapy duplicates rebuild -s FRESHET_DUPLICATES=words",
                duplicates.run_rebuild,
            ),
        }  # fmt: skip
