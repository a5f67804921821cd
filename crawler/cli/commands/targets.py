"""`scrapy targets`: count or list targets, and change how single targets are visited."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """Count or list targets; recheck, mute and limit single targets."""

    actions: ClassVar[Mapping[str, Action]] = {
        "list": Action(
            "Count targets by kind, category, outcome and state, or list them",
            "scrapy targets books --json",
        ),
        "recheck": Action(
            "Make targets due, so that the next run visits them",
            "scrapy targets recheck https://shop.example/item/1",
        ),
        "mute": Action(
            "Stop the visits of targets until you unmute them",
            "scrapy targets mute https://shop.example/item/1",
        ),
        "unmute": Action(
            "Make muted targets due", "scrapy targets unmute https://shop.example/item/1"
        ),
        "limits": Action(
            "Show or set the minimum and maximum interval between two visits of targets",
            "scrapy targets limits https://shop.example/item/1 --min 6h --max 2d",
        ),
    }
    default_action = "list"
    summary = "Count or list targets; recheck, mute and limit the visits of single targets"
    example = "scrapy targets books --json"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run an action; a first argument that is not an action is the spider to list."""
        if args and args[0] not in self.actions:
            args = ["list", *args]
        super().run(args, opts)

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import targets

        functions: Mapping[str, Functions] = {
            "list": (targets.add_options, targets.run),
            "recheck": (targets.target_options, targets.run_recheck),
            "mute": (targets.target_options, targets.run_mute),
            "unmute": (targets.target_options, targets.run_unmute),
            "limits": (targets.limits_options, targets.run_limits),
        }
        return functions[action]

    def json_types(self) -> JsonTypes:
        """Return the types of counts, of lists, and of single targets."""
        from crawler.reports.target import TargetReport
        from crawler.storage.target_queries import TargetCounts, TargetState

        return {
            "scrapy targets --json": TargetCounts,
            "scrapy targets --urls --json": list[TargetState],
            "scrapy targets recheck URL --json": list[TargetReport],
            "scrapy targets mute URL --json": list[TargetReport],
            "scrapy targets unmute URL --json": list[TargetReport],
            "scrapy targets limits URL --json": list[TargetReport],
        }
