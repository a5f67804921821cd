"""Channels as the deliverer uses them, and their messages about documents of the outbox."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from urllib.parse import quote

from crawler.notify import channels, delivery
from crawler.notify.channels import Channel
from crawler.notify.deliverer import Failure
from crawler.notify.delivery import DeliveryFailed
from crawler.notify.expansion import MAX_FIELDS
from crawler.notify.messages import Change, EventView, Message, message_of
from crawler.storage.client import Document
from crawler.storage.outbox import Bundle, Grouping
from crawler.utils.text import count
from crawler.utils.urls import target_id

ATTEMPT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class ChannelOutlet:
    """Sends messages of the outbox by a channel of `notify.toml`.

    private_hosts: HOST:PORT of webhooks that may be in private networks
    web_url:       URL of the web app, for links; None: no links
    """

    name: str
    channel: Channel
    private_hosts: tuple[str, ...] = ()
    web_url: str | None = None
    rng: random.Random = field(default_factory=random.Random)

    @property
    def grouping(self) -> Grouping:
        """Return which messages are sent as one: a digest, those of a page, or none."""
        if self.channel.digest is not None:
            return Grouping.DIGEST
        return Grouping.PAGE if self.channel.debounce_minutes else Grouping.NONE

    @property
    def max_per_hour(self) -> int:
        """Return the channel's limit."""
        return self.channel.max_per_hour

    def open_from(self, at: datetime) -> datetime:
        """Return the first time from `at` on that is not in quiet hours."""
        return channels.open_from(self.channel, at)

    async def send(self, bundle: Bundle) -> Failure | None:
        """Send a bundle; return the failure, or None if the channel accepted it."""
        try:
            message = message_in(bundle, self.channel, self.grouping, self.web_url)
            await delivery.send(self.channel, message, ATTEMPT_SECONDS, self.private_hosts)
        except DeliveryFailed as error:
            wait = error.retry_after_seconds
            return Failure(error.reason, None if wait is None else timedelta(seconds=wait))
        return None

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        """Return when to try again after `attempts` attempts; None: never."""
        return channels.next_attempt(self.channel, attempts, first_at, now, self.rng)


def message_in(
    bundle: Bundle, channel: Channel | None, grouping: Grouping, web_url: str | None = None
) -> Message:
    """Return the message that a channel sends for a bundle.

    channel:  None: the default templates, and times in UTC
    grouping: with PAGE, several events of a page are shown as one, from the first to the last
    web_url:  URL of the web app, for links; None: no links
    """
    is_joined = grouping is Grouping.PAGE and not bundle.more
    events = [joined(bundle.messages)] if is_joined else list(map(view_of, bundle.messages))
    if web_url is not None:
        events = [replace(event, link=link_to(web_url, event.site, event.url)) for event in events]
    if channel is None:
        return message_of(bundle.id, events, more=bundle.more)
    return message_of(
        bundle.id, events, templates=channel.templates, more=bundle.more, zone=channel.zone
    )


def link_to(web_url: str, site: str, url: str) -> str:
    """Return the URL of a page in the web app; of its site if `url` is empty."""
    if not url:
        return f"{web_url}/sites/{quote(site, safe='')}"
    return f"{web_url}/targets/{target_id(f'{site} {url}')}"


def view_of(document: Document) -> EventView:
    """Return the event of a document of the outbox as templates see it."""
    data = document["data"]
    posts = data.get("posts", ())
    matching = data.get("posts_matching", 0)
    reasons = [data.get("text"), data.get("reason")]
    if failures := data.get("failures"):
        reasons.append(f"{count(failures, 'failed visit')} in a row")
    if matching:
        reasons.append(count(matching, "post"))
    view = EventView(
        event=document["event"],
        site=document["spider"],
        url=document["target"],
        title=data.get("title") or ("" if document["target"] else document["spider"]),
        at=document["at"],
        categories=tuple(data.get("categories", ())),
        reason="; ".join(filter(None, reasons)),
    ).with_contents(data.get("before"), data.get("after"))
    if not posts:
        return view
    shown = (" ".join(filter(None, (post["title"], post["url"]))) for post in posts)
    return replace(view, changes=tuple(Change("post", None, text) for text in shown))


def joined(documents: Sequence[Document]) -> EventView:
    """Return one event for several of a page: the last one, with all changes since the first.

    documents: in order; of pages with many fields, they have only some
    """
    first, last = documents[0]["data"], documents[-1]["data"]
    if len(documents) == 1 or "posts" in last:
        return view_of(documents[-1])
    before, after = first.get("before"), last.get("after")
    stored = [{**(data.get("before") or {}), **(data.get("after") or {})} for data in (first, last)]
    if max(map(len, stored)) == MAX_FIELDS:
        # Each document may lack fields that the other one has: compare those in both.
        shared = stored[0].keys() & stored[1].keys()
        before = before and {name: value for name, value in before.items() if name in shared}
        after = after and {name: value for name, value in after.items() if name in shared}
    return view_of(documents[-1] | {"data": last | {"before": before, "after": after}})
