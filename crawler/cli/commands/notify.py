"""`scrapy notify`: deliver notifications, check and preview them, and retry dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from crawler.cli.base import Action, ActionsCommand, Functions, JsonTypes


class Command(ActionsCommand):
    """Deliver, test and preview notifications, and retry those that could not be delivered."""

    actions: ClassVar[Mapping[str, Action]] = {
        "deliver": Action(
            "Apply the rules to new events, and send all messages that are due",
            "scrapy notify deliver --follow",
        ),
        "status": Action(
            "Show the messages of each channel by state, and the cause of the last failure",
            "scrapy notify status",
        ),
        "test": Action("Send a test message to a channel now", "scrapy notify test phone"),
        "preview": Action(
            "Print the messages that past events would cause, without sending them",
            "scrapy notify preview --rule cheap --last 100",
        ),
        "dead": Action(
            "List dead letters: messages that are no longer retried", "scrapy notify dead"
        ),
        "retry": Action(
            "Send dead letters again with the next delivery", "scrapy notify retry --all"
        ),
    }
    summary = "Deliver, test and preview notifications about changes, or retry dead letters"
    example = "scrapy notify deliver"

    def functions(self, action: str) -> Functions:
        """Import and return the functions of an action."""
        from crawler.cli import notify

        functions: Mapping[str, Functions] = {
            "deliver": (notify.deliver_options, notify.run_deliver),
            "status": (notify.no_options, notify.run_status),
            "test": (notify.test_options, notify.run_test),
            "preview": (notify.preview_options, notify.run_preview),
            "dead": (notify.dead_options, notify.run_dead),
            "retry": (notify.retry_options, notify.run_retry),
        }
        return functions[action]

    def json_types(self) -> JsonTypes:
        """Return the types of results, states, messages and dead letters."""
        from crawler.cli.notify import RetryReport
        from crawler.notify.rounds import (
            DeliveryReport,
            NotifyStatus,
            PreviewedMessage,
            SendReport,
        )
        from crawler.storage.outbox import OutboxMessage

        return {
            "scrapy notify deliver --json": DeliveryReport,
            "scrapy notify status --json": NotifyStatus,
            "scrapy notify test CHANNEL --json": SendReport,
            "scrapy notify preview --json": list[PreviewedMessage],
            "scrapy notify dead --json": list[OutboxMessage],
            "scrapy notify retry --all --json": RetryReport,
        }
