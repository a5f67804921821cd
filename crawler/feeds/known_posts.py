"""Compare the posts of a document with what is stored of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from crawler.items import Fetched, KnownPost, Monitor, Post

# Visits in a row with edited posts after which a feed is requested twice.
MAX_EDITED_VISITS = 3


def after_edits(
    monitor: Monitor, posts: Sequence[Post], stored: Mapping[str, KnownPost]
) -> tuple[Monitor, bool]:
    """Return the monitor with the visits in a row that found edits, and whether to ask again.

    stored: known posts by id

    A feed is requested again if half of its known posts were edited, or if posts were edited on the
    last visits, too: the text may be random, or have counters.
    """
    edits = sum(
        known.content_hash not in ("", post.content_hash)
        for post in posts
        if (known := stored.get(post.id)) is not None
    )
    after = replace(monitor, edited_visits=monitor.edited_visits + 1 if edits else 0)
    is_many = 2 * edits >= len(stored) or after.edited_visits >= MAX_EDITED_VISITS
    return after, bool(edits) and is_many


def without_random(
    first: Sequence[Post], second: Sequence[Post], stored: Mapping[str, KnownPost]
) -> tuple[tuple[Post, ...], int]:
    """Return the posts of a document, with those that are random unchanged, and their number.

    second: posts of a second request
    stored: known posts by id

    A new title that both documents have is an edit, whatever else is random.
    """
    again = {post.id: post for post in second}
    posts, random = [], 0
    for post in first:
        known, other = stored.get(post.id), again.get(post.id)
        is_random = (
            known is not None
            and known.content_hash not in ("", post.content_hash)
            and other is not None
            and other.content_hash != post.content_hash
        )
        if is_random and known is not None and other is not None:
            title = post.content.get("title")
            is_edit = title == other.content.get("title") and title != known.title
            if not is_edit:
                posts.append(replace(post, content_hash=known.content_hash))
                random += 1
                continue
        posts.append(post)
    return tuple(posts), random


def with_offset(fetched: Fetched, monitor: Monitor) -> tuple[Post, ...]:
    """Return the posts of a document, dated with the UTC offset that earlier documents showed.

    See `crawler.feeds.draft.offset_of`.
    """
    offset = fetched.document.utc_offset_hours if fetched.document is not None else 0.0
    lacking = timedelta(hours=monitor.utc_offset_hours - offset)
    if lacking <= timedelta():
        return fetched.posts
    return tuple(
        post
        if post.has_offset or post.published is None
        else replace(post, published=post.published - lacking)
        for post in fetched.posts
    )
