"""Validators of the collections: JSON schemas that also describe each field.

The server validates `bsonType`, `enum` and the like. `description` and `title` are for the
reference (docs/reference_pages.py). A field with a `title` is documented with this type, but not
validated.
"""

from __future__ import annotations

from collections.abc import Iterable

from crawler.items import Kind, Outcome
from crawler.storage.client import Document


def _text(description: str) -> Document:
    return {"bsonType": "string", "description": description}


def _time(description: str) -> Document:
    return {"bsonType": "date", "description": description}


def _maybe_time(description: str) -> Document:
    return {"bsonType": ["date", "null"], "description": description}


def _count(description: str) -> Document:
    return {"bsonType": ["int", "long"], "minimum": 0, "description": description}


def _number(description: str) -> Document:
    return {"bsonType": ["int", "long", "double"], "minimum": 0, "description": description}


def _typed(kind: str | list[str], description: str) -> Document:
    return {"bsonType": kind, "description": description}


def _texts(description: str) -> Document:
    return {"bsonType": "array", "items": {"bsonType": "string"}, "description": description}


def _one_of(values: Iterable[object], description: str) -> Document:
    return {"enum": list(values), "description": description}


def _object(required: list[str], description: str, properties: Document) -> Document:
    return {
        "bsonType": "object",
        "required": required,
        "description": description,
        "properties": properties,
    }


def _validator(required: list[str], description: str, properties: Document) -> Document:
    return {"$jsonSchema": _object(required, description, properties)}


def _shown(kind: str, description: str) -> Document:
    return {"title": kind, "description": description}


def _shown_object(description: str, properties: Document) -> Document:
    return _shown("object", description) | {"properties": properties}


def _shown_rows(description: str, properties: Document) -> Document:
    return _shown("array of objects", description) | {"items": {"properties": properties}}


_HISTORY = _object(
    ["since", "until", "changes"],
    "observed changes; absent before the first observation and for aliases. Visits that failed or "
    "found no page are not observations",
    {
        "since": _time("first observation"),
        "until": _time("last observation"),
        "changes": _typed(
            "binData",
            "the newest 512 changes: little-endian uint32 triples, in minutes since 1970 (UTC), of "
            "the observation before the change, the observation that found it, and the page's "
            "Last-Modified (0 if unknown)",
        ),
        "lies": _count("visits with a new Last-Modified and unchanged content"),
    },
)
_PLAN = _object(
    ["plan"],
    "schedule of the last replan that changed it; absent before the first plan and for aliases",
    {
        "plan": _shown("objectId or string", "`_id` in `plans`; `period` for a fixed period"),
        "policy": _shown(
            "string", "allocation policy; `period`: fixed period of a cell; `learn`: sampling phase"
        ),
        "group": _shown("string or null", "frequency class, such as `G7` for 7 visits per week"),
        "windows": _shown("array of strings", "the schedule in words"),
        "weeks": _typed(["int", "long"], "length of the schedule's cycle in weeks")
        | {"minimum": 1, "maximum": 24},
        "slots": _typed(
            "array", "hours of the cycle with a visit; 0 = Monday 00:00, in the site's time zone"
        ),
        "every_hours": _number("even interval in hours; 0 for a schedule with slots"),
        "phase_hours": _number("offset of the even interval in hours"),
        "min_hours": _shown("number", "minimum interval of the policy `adaptive`, in hours"),
        "max_hours": _shown("number", "maximum interval of the policy `adaptive`, in hours"),
        "until": _maybe_time("end of validity, in a sampling phase; absent: until the next plan"),
        "visits_per_week": _shown("number", "mean number of visits per week"),
        "rate_per_week": _shown(
            "number or null", "estimated changes per week; for a feed: posts per week"
        ),
        "rate_low": _shown("number or null", "5 % quantile of `rate_per_week`"),
        "rate_high": _shown("number or null", "95 % quantile of `rate_per_week`"),
        "batch": _shown("number or null", "for a feed: mean number of posts that appear together"),
        "freshness": _shown("number or null", "expected share of time that the copy is current"),
        "age_days": _shown("number or null", "expected mean age of the copy in days"),
        "missed_per_week": _shown("number or null", "for a feed: expected missed posts per week"),
        "delay_hours": _shown(
            "number or null", "for a feed: expected mean delay of collected posts in hours"
        ),
        "value": _shown(
            "number or null",
            "hours of staleness that one more visit would save, to compare with the plan's "
            "`price`; for a feed: posts",
        ),
        "worth": _shown(
            "number or null",
            "hours of staleness that the last visit saves; for a feed: posts. The highest are "
            "visited first if a cap leaves no time for all",
        ),
        "bound": _shown(
            "string",
            "what limits the number of visits: `price` of a request, `floor` (maximum interval), "
            "`ceiling` (minimum interval), `prior` (never observed), `kept` (a change would save "
            "too little), `exploration` (observed for less than ten days), `rule` of the policy",
        ),
        "former": _shown("object", "in a sampling phase: the plan before it"),
    },
)
_RUN_COUNTS = _shown_object(
    "numbers by name; names that are absent are 0",
    {
        "visits": _shown("number", "visits"),
        **{str(kind): _shown("number", f"visits with the outcome `{kind}`") for kind in Outcome},
        **{f"{kind}_pages": _shown("number", f"visited targets of kind `{kind}`") for kind in Kind},
        "bytes": _shown("number", "bytes of response bodies"),
        "targets": _shown("number", "targets of the spider at the end of the run"),
        "discovered": _shown("number", "new targets"),
        "unlisted": _shown("number", "items that no list shows any more"),
        "due": _shown("number", "targets that are still due"),
        "over_cap": _shown("number", "targets that are still due because of the plan's caps"),
        "closed": _shown("number", "targets that are still due because of visiting hours"),
        "over_limit": _shown("number", "targets that are still due because of `-a limit`"),
        "missed_visits": _shown("number", "planned visits that were not made before this run"),
        "dead": _shown("number", "pages that were dead-lettered"),
        "left_out": _shown("number", "links that exceeded a limit of the site definition"),
        "posts": _shown("number", "new feed posts"),
        "edited_posts": _shown("number", "edited feed posts"),
        "missed_posts": _shown("number", "estimated number of missed feed posts"),
        "pages_with_links": _shown("number", "pages that were searched for links"),
        "links": _shown("number", "links to pages of the site, once per page"),
        "list_links": _shown("number", "links that `list_pages` matches"),
        "item_links": _shown("number", "links that `item_pages` matches"),
        "ambiguous_links": _shown("number", "links that both match; they are ignored"),
        "unmatched_links": _shown("number", "links that no pattern matches"),
        "foreign_links": _shown("number", "links to other hosts"),
        "unfollowed_links": _shown("number", "matching links on a start URL that is an item"),
        "items_read": _shown("number", "items whose fields were read"),
        "without_FIELD": _shown("number", "items without this field"),
    },
)
_PUSH = _shown_object(
    "WebSub subscription; absent before the first request",
    {
        "state": _shown(
            "string",
            "`asked`: requested; `active`: confirmed; `refused` by the hub; `ended`: expired or "
            "unsubscribed",
        ),
        "hub": _shown("string", "URL of the hub"),
        "topic": _shown("string", "URL of the feed at the hub"),
        "callback": _shown("string", "URL that receives deliveries"),
        "token": _shown("string", "secret part of the callback URL"),
        "secret": _shown("string", "key of the signatures of deliveries"),
        "asked_at": _shown("time", "time of the last request to the hub"),
        "next_ask": _shown("time", "time of the next request to the hub"),
        "attempts": _shown("number", "requests since the last confirmation"),
        "reason": _shown("string", "cause of the last failure"),
        "leased_at": _shown("time", "time of the last confirmation"),
        "lease_until": _shown("time or null", "end of the subscription"),
        "delivered_at": _shown(
            "time or null", "time of the last delivery; null if polls found undelivered posts since"
        ),
        "deliveries": _shown("number", "deliveries"),
        "ignored": _shown("number", "deliveries without a valid signature"),
        "digest": _shown("string", "SHA-256 of the last stored delivery"),
        "leaving": _shown("boolean", "true while an unsubscription awaits confirmation"),
    },
)

VALIDATORS: dict[str, Document] = {
    "targets": _validator(
        ["spider", "url", "kind", "first_seen", "next_visit"],
        "URLs and cells that Freshet keeps fresh: one document per spider and canonical URL",
        {
            "_id": _shown("string", "spider and URL, separated by a space"),
            "spider": _text("name of the spider"),
            "url": _text("canonical URL; for a cell `cell:NAME`"),
            "host": _shown("string", "host of the URL"),
            "kind": _one_of(map(str, Kind), "kind of target"),
            "start": _shown("boolean", "true for a start URL of the site definition"),
            "depth": _shown("number", "minimum number of links from a start URL; absent: 0"),
            "pattern": _shown("string", "digest of the URL pattern that matched"),
            "categories": _typed("array", "the newest 100 categories of an item or feed")
            | {"items": {"bsonType": "string"}},
            "title": _shown("string or null", "for a feed: title that was imported"),
            "post": _shown("string", "for the page of a feed post: `_id` of the post"),
            "first_seen": _time("time of discovery"),
            "next_visit": _time("time from which the target is due"),
            "visited_at": _maybe_time("time of the last visit; null before the first"),
            "changed_at": _shown("time", "time of the visit that found the current content"),
            "unlisted_at": _shown(
                "time or null", "time since which no list shows the item; null or absent: shown"
            ),
            "outcome": _shown("string", "outcome of the last visit"),
            "visit": _shown("objectId", "`_id` of the last visit"),
            "last_visit": _shown(
                "object", "last visit, as in `visits`, without `spider` and `target`"
            ),
            "fence": _shown("number", "fence number of the next visit"),
            "again": _shown(
                "boolean",
                "true if an interrupted visit may be stored in part: the next visit stores its "
                "content even if it is unchanged",
            ),
            "requested": _count("number of visits"),
            "missed": _count("number of planned visits that were not made; absent: 0"),
            "refreshed": _count("number of visits that saw the page"),
            "consecutive_errors": _count("number of consecutive visits that failed"),
            "consecutive_gone": _shown("number", "number of consecutive 404 or 410 responses"),
            "gone": _shown(
                "boolean", "true if `FRESHET_GONE_CONFIRMATIONS` responses confirmed it"
            ),
            "dead": _time("time when the page was dead-lettered; it is not visited until a retry"),
            "retired": _shown("boolean", "for a cell: true while it is not defined"),
            "etag": _shown("string or null", "ETag of the current content"),
            "last_modified": _shown("string or null", "Last-Modified of the current content"),
            "content_hash": _shown("string", "hash of the fields or main text"),
            "raw_hash": _shown("string", "hash of the response body"),
            "size": _shown("number", "bytes of the response body"),
            "scheme": _shown(
                "string", "selector digest: digest of the definition that read the content"
            ),
            "kept_bytes": _count(
                "uncompressed bytes of the stored versions, for a feed those of its posts; may be "
                "too high until the next prune"
            ),
            "final_url": _shown("string or null", "URL after redirects; null without redirects"),
            "aliases": _shown("array of strings", "the newest 100 URLs that redirect here"),
            "alias_of": _shown("string", "URL of the target that has the content"),
            "moved_to": _shown("string or null", "for a feed: URL of a permanent redirect"),
            "moves": _shown("number", "for a feed: consecutive visits that found `moved_to`"),
            "lastmod": _shown("time", "date of the page in a sitemap"),
            "hinted": _shown("boolean", "true if a change hint made the target due"),
            "hint": _shown("string", "kind of that change hint: `lastmod` or `list`"),
            "window": _count("for a feed: number of posts in its document, as plans use it"),
            "asks_hours": _number("for a feed: minimum interval that it asks for, in hours"),
            "execution_ms": _shown("number", "for a cell: recent mean duration of a refresh in ms"),
            "learning": _shown_object(
                "place in a sampling phase (`scrapy learn`)",
                {
                    "of": _shown("objectId", "`_id` of the phase in `plans`"),
                    "turn": _shown("number", "turn in which the page is polled, from 0"),
                    "phase": _shown("number", "offset of its polls in hours"),
                },
            ),
            "history": _HISTORY,
            "plan": _PLAN,
        },
    ),
    "visits": _validator(
        ["spider", "target", "at", "outcome", "changed"],
        "the change log: one document per visit, append-only",
        {
            "_id": _shown("objectId", "id of the visit"),
            "spider": _text("name of the spider"),
            "target": _text("URL of the target"),
            "at": _time("time of the response"),
            "outcome": _one_of(map(str, Outcome), "result of the visit"),
            "reason": _shown("string", "cause of an error, a refusal or a redirect"),
            "changed": _one_of([0, 1], "1 if a change was found; 0 for the first visit"),
            "event": _shown(
                "boolean", "true if the page is new, changed, gone for the first time, or back"
            ),
            "status": _shown("number or null", "HTTP status"),
            "elapsed_ms": _shown("number", "time to the response in ms"),
            "get_size": _count("bytes of the response body; 0 for a 304"),
            "update_size": _count("bytes by which the body differs from the previous one"),
            "diff_size": _count("characters inserted into and deleted from the content"),
            "content_hash": _shown("string or null", "hash of the content"),
            "final_url": _shown("string", "URL after redirects"),
            "hint": _shown("string", "change hint that caused the visit: `lastmod` or `list`"),
            "posts_new": _shown("number", "for a feed: number of new posts"),
            "posts_edited": _shown("number", "for a feed: number of edited posts"),
            "missed": _shown("number", "for a feed: estimated number of posts missed before it"),
            "pushed": _shown("boolean", "true if a hub delivered the content, without a request"),
            "along": _shown("boolean", "true for a cell that shared the fetch of another cell"),
            "fence": _shown("number", "fence number of the visit"),
        },
    ),
    "versions": _validator(
        ["spider", "target", "content_hash", "at"],
        "contents: one document per target and content. The target of a post is the URL of its "
        "feed and its id, separated by a space",
        {
            "_id": _shown("string", "spider, target and content hash, separated by spaces"),
            "spider": _text("name of the spider"),
            "target": _text("URL of the target"),
            "content_hash": _text("hash of the content"),
            "at": _time("time when the content was first seen"),
            "visit": _shown("objectId", "`_id` of the visit that stored it"),
            "fence": _shown("number", "fence number of that visit"),
            "size": _shown("number", "uncompressed bytes"),
            "content": _shown(
                "object",
                "fields by name, `title` and `main_text`; for a list page `links`, at most 20,000",
            ),
        },
    ),
    "posts": _validator(
        ["spider", "url", "first_seen", "content_hash"],
        "items and feed posts with their current content",
        {
            "_id": _shown("string", "spider and URL; for a feed post spider, feed and id"),
            "spider": _text("name of the spider"),
            "url": _typed(["string", "null"], "URL of the page; null for a post without a link"),
            "title": _shown("string or null", "title"),
            "text": _shown("string or null", "main text"),
            "fields": _shown("object", "fields of the site definition by name"),
            "categories": _shown("array of strings", "categories"),
            "first_seen": _time("time of the first visit that saw it"),
            "changed_at": _shown("time", "time of the visit that stored the current content"),
            "content_hash": _text("hash of the content"),
            "visit": _shown("objectId", "`_id` of the visit that stored it"),
            "fence": _shown("number", "fence number of that visit"),
            "feed": _text("for a feed post: URL of the feed"),
            "guid": _text("for a feed post: id in the feed"),
            "published": _maybe_time(
                "for a feed post: date of publication; null if unknown or implausible"
            ),
            "page": _shown_object(
                "for a feed post with `-a follow=1`: its page",
                {
                    "url": _shown("string", "URL of the page"),
                    "at": _shown("time", "time of the visit"),
                    "content_hash": _shown("string", "hash of the content"),
                    "fields": _shown("object", "fields of the site definition by name"),
                    "markup": _shown("array of strings", "names of the fields with HTML"),
                    "visit": _shown("objectId", "`_id` of the visit"),
                    "fence": _shown("number", "fence number of the visit"),
                },
            ),
            "item": _text(
                "key of the page that the post is a source of: URL after redirects, without "
                "scheme; absent if it has no page of its own"
            ),
            "link": _text(
                "key of the link in the feed; absent if several posts of the feed share it"
            ),
            "original": _typed(
                "bool", "true: searches find it; false: near-duplicate of an earlier post"
            ),
            "duplicate_of": _text("for a near-duplicate: `_id` of its original"),
            "similarity": _number(
                "for a near-duplicate: estimated Jaccard similarity to its original"
            ),
            "cluster": _typed(
                "objectId",
                "`_id` of the cluster of near-duplicates; absent without near-duplicates",
            ),
            "compare": _shown(
                "array of strings", "names of the compared fields, if the site definition has them"
            ),
            "markup": _shown("array of strings", "names of the fields with HTML"),
            "words": _text("additional words of the search index"),
        },
    ),
    "signatures": _validator(
        ["post", "created", "seen", "rank", "source", "at", "scheme", "sketch"],
        "signatures by which posts are compared: one document per post",
        {
            "_id": _typed(["int", "long"], "number made from the post's `_id`"),
            "post": _text("`_id` of the post"),
            "created": _time("date of the post"),
            "seen": _time("time when the post was first seen"),
            "rank": _time("time by which sources are ordered; the earliest is the original's"),
            "source": _typed(["int", "long"], "number made from the feed or host"),
            "at": _time("time when the signature was stored"),
            "scheme": _text("name and version of the signature scheme"),
            "sketch": _typed("binData", "MinHash sketch; 130 or 266 bytes for most texts"),
            "bands": _typed(
                "array", "LSH bands that the post owns; a unique index. Absent if Redis has them"
            ),
            "cluster": _typed("objectId", "`_id` of the cluster"),
            "item": _typed(["int", "long"], "number made from the post's `item`"),
            "fence": _shown("number", "fence number of the visit of the post's target"),
            "page_fence": _shown("number", "fence number of the visit of the page of a feed post"),
            "text": _shown("binary", "compressed text, only in `check_NAME_signatures`"),
            "text_source": _shown("string", "source of that text"),
        },
    ),
    "clusters": _validator(
        ["original", "post", "created", "source", "lead", "order"],
        "posts that are near-duplicates of one another: one document per cluster",
        {
            "_id": _shown("objectId", "id of the cluster"),
            "original": _shown("number", "`_id` of the original in `signatures`"),
            "post": _text("`_id` of the original in `posts`"),
            "created": _time("date of the original"),
            "source": _typed(["int", "long"], "number of the original's source"),
            "lead": _typed("array", "sort key by which this source was first"),
            "order": _typed("array", "sort key of the original among the posts of its source"),
            "changes": _shown_rows(
                "the last 100 changes of the original",
                {
                    "at": _shown("time", "time of the change"),
                    "was": _shown("string", "`_id` of the former original"),
                    "post": _shown("string", "`_id` of the new original"),
                    "why": _shown("string", "cause"),
                },
            ),
            "unsettled": _shown("boolean", "true if its posts may show the former original"),
            "overtaken": _shown(
                "boolean", "true if another source took the lead, until its earliest post is known"
            ),
        },
    ),
    "boilerplate": _validator(
        ["revision", "version", "posts", "common", "pending", "at"],
        "text that the posts of a source share, for the 20,000 sources that learned most recently",
        {
            "_id": _text("spider and feed URL, or spider and host"),
            "posts": _typed("array", "the newest 48 posts that were learned from")
            | {
                "items": {
                    "properties": {
                        "post": _shown("string", "`_id` of the post"),
                        "marks": _shown("binary", "hashes of samples of its text, as uint32"),
                    }
                }
            },
            "common": _typed("binData", "hashes that are boilerplate, as uint32, at most 8,192"),
            "pending": _typed("array", "posts to compare again")
            | {
                "items": {
                    "properties": {
                        "post": _shown("string", "`_id` of the post"),
                        "version": _shown("number", "version that it was last compared with"),
                    }
                }
            },
            "version": _count("number of changes of `common`"),
            "revision": _count("number of changes of the document"),
            "at": _time("time of the last change"),
        },
    ),
    "feeds": _validator(
        ["spider", "url"],
        "state of each feed, in addition to its target, which has the same `_id`",
        {
            "_id": _shown("string", "spider and URL, separated by a space"),
            "spider": _text("name of the spider"),
            "url": _text("URL of the feed"),
            "title": _shown("string or null", "title in the document"),
            "site": _shown("string or null", "URL of the site in the document"),
            "format": _shown("string", "format, such as `rss20`, `atom10`, `json11`"),
            "window": _count("number of posts in the document"),
            "full": _shown("boolean", "true if posts have been seen to leave the document"),
            "ids": _shown("binary", "digests of the ids of the document's posts, 8 bytes each"),
            "posts": _count("number of collected posts"),
            "newest": _shown("time or null", "date of the newest post"),
            "missed": _number("estimated number of missed posts"),
            "lapses": _count("number of visits that missed posts"),
            "lapsed_at": _shown("time or null", "last visit that missed posts"),
            "bounds": _shown_object(
                "polls that the feed asks for",
                {
                    "every_hours": _shown("number or null", "minimum interval in hours"),
                    "skip_hours": _shown("array of numbers", "hours of the UTC day without polls"),
                    "skip_days": _shown("array of numbers", "days without polls, 0 = Monday"),
                },
            ),
            "hubs": _shown("array of strings", "URLs of WebSub hubs"),
            "topic": _shown("string or null", "URL of the feed at its hubs"),
            "push": _PUSH,
            "problems": _shown("array of strings", "errors in the document"),
            "error": _shown("string or null", "cause of the last failure; null after a success"),
            "seen_at": _maybe_time("last visit that saw the feed"),
            "fence": _shown("number", "fence number of the last visit"),
        },
    ),
    "cells": _validator(
        ["spider", "name"],
        "the cell store: content and refresh state of each cell, in addition to its target, which "
        "has the same `_id`",
        {
            "_id": _shown("string", "spider and `cell:NAME`, separated by a space"),
            "spider": _text("name of the spider"),
            "name": _text("name of the cell"),
            "period_seconds": _shown(
                "number or null", "period, or mean time between planned visits, in seconds"
            ),
            "execution_seconds": _shown(
                "number or null", "recent mean duration of a refresh in seconds"
            ),
            "requested": _count("number of elapsed periods, refreshed or not"),
            "refreshed": _count("number of refreshes"),
            "refreshed_at": _maybe_time("last successful refresh"),
            "changed_at": _maybe_time("time of the refresh that found the current content"),
            "content": _typed(
                ["object", "null"],
                "`value` or `html` of a selector, fields by name, or `columns` and `rows` of a "
                "query",
            ),
            "content_hash": _shown("string or null", "hash of the content"),
            "group": _shown(
                "string or null",
                "class by period: `dynamic`, `semi-dynamic` or `static`; null: planned",
            ),
            "error": _shown("string or null", "cause of the last failure; null after a success"),
            "retired": _shown("boolean", "true while the cell is not defined"),
            "fence": _shown("number", "fence number of the last visit"),
        },
    ),
    "pushes": _validator(
        ["spider", "url", "at", "content_type", "size", "body"],
        "deliveries of WebSub hubs, until a run stores their posts",
        {
            "_id": _shown("string", "spider, URL of the feed and digest of the body"),
            "spider": _text("name of the spider"),
            "url": _text("URL of the feed"),
            "at": _time("time of the delivery"),
            "content_type": _text("content type of the delivery"),
            "size": _count("bytes of the body"),
            "body": _typed("binData", "feed document as delivered"),
        },
    ),
    "listings": _validator(
        ["spider", "list", "item", "shown"],
        "which list page shows which item",
        {
            "_id": _shown("string", "spider, item and list page, separated by spaces"),
            "spider": _text("name of the spider"),
            "list": _text("URL of the list page"),
            "item": _text("URL of the item"),
            "category": _shown("string or null", "category under which the list shows the item"),
            "card": _shown(
                "string or null", "listing digest: digest of the text of the item on the list page"
            ),
            "shown": _typed("bool", "false if the list stopped showing the item in this run"),
        },
    ),
    "plans": _validator(
        ["at", "spiders", "state"],
        "plans: one document per replan, and one per sampling phase (`scrapy learn`)",
        {
            "_id": _shown("objectId", "id of the plan"),
            "at": _time("time of the replan"),
            "kind": _shown("string", "`pages` or `feeds`"),
            "spiders": _texts("names of the planned spiders; empty for a sampling phase"),
            "state": _one_of(
                ["writing", "adopting", "adopted", "undone"],
                "`writing`: being staged, the former plan is active; `adopting`: active, being "
                "copied to the targets; `adopted`: active; `undone`: discarded",
            ),
            "policy": _shown("string", "allocation policy; `learn` for a sampling phase"),
            "objective": _shown("string", "objective of the policy `optimal`"),
            "budget_per_day": _shown(
                "number or null", "mean requests per day; null if the policy takes no budget"
            ),
            "budget_from": _shown(
                "string",
                "source of the budget: `asked` (option or setting), `goal`, `intervals` (fixed "
                "intervals), `plans` (several former plans) or `policy`",
            ),
            "budget_kept": _shown("boolean", "true if the former plan had the same budget"),
            "budget_added": _shown("number", "part of the budget for new targets"),
            "daily_cap": _shown("number", "maximum visits per UTC day; 0: no cap"),
            "hourly_cap": _shown("number", "maximum visits per hour; 0: no cap"),
            "price": _shown(
                "number or null",
                "hours of staleness that a visit has to save; for feeds: posts per fetch",
            ),
            "targets": _shown("number", "planned targets"),
            "moved": _shown("number", "targets whose plan was changed"),
            "unplanned": _shown("number", "targets without a former plan"),
            "learning": _shown("number", "targets in a sampling phase, whose plans are kept"),
            "dated": _shown("array of strings", "spiders whose Last-Modified dates are reliable"),
            "bounds": _shown("object", "number of targets for each value of `plan.bound`"),
            "totals": _shown_object(
                "expected results",
                {
                    "requests_per_day": _shown("number", "mean requests per day"),
                    "least_per_day": _shown(
                        "number", "requests per day if each target has its maximum interval"
                    ),
                    "known": _shown("boolean", "true if change rates are known well enough"),
                    "freshness": _shown("number or null", "mean freshness"),
                    "age_days": _shown("number or null", "mean age in days"),
                    "load": _shown("number", "requests as a share of those of daily crawling"),
                    "daily": _shown("object", "the same figures for daily crawling"),
                    "posts_per_day": _shown("number or null", "for feeds: posts per day"),
                    "missed_share": _shown("number or null", "for feeds: share of missed posts"),
                    "delay_hours": _shown(
                        "number or null", "for feeds: mean delay of collected posts in hours"
                    ),
                    "polls": _shown("number", "for a sampling phase: polls"),
                    "changes": _shown("number", "for a sampling phase: changes found"),
                },
            ),
            "ignored": _shown_object(
                "ignored data",
                {"future": _shown("number", "targets with visits in the future")},
            ),
            "warnings": _shown("array of strings", "warnings for the user"),
            "limits": _shown_rows(
                "for the policy `adaptive`: limits of intervals",
                {
                    "spider": _shown("string", "name of the spider"),
                    "min_hours": _shown("number", "minimum interval in hours"),
                    "max_hours": _shown("number", "maximum interval in hours"),
                },
            ),
            "learns": _shown("string", "for a sampling phase: name of the spider"),
            "until": _shown("time", "for a sampling phase: planned end"),
            "ended": _shown("time", "for a sampling phase: end"),
            "weeks": _shown("number", "for a sampling phase: duration in weeks"),
            "every_hours": _shown("number", "for a sampling phase: interval of polls in hours"),
            "sample": _shown("number or null", "for a sampling phase: requested number of pages"),
            "pages": _shown("number", "for a sampling phase: number of pages"),
            "turns": _shown("number", "for a sampling phase: number of groups that take turns"),
        },
    ),
    "sites": _validator(
        ["timezone", "windows", "blackout", "weight", "weights", "cost", "at"],
        "settings of each site as of its last run, and the definition of a site without a spider "
        "class",
        {
            "_id": _shown("string", "name of the spider"),
            "timezone": _text("IANA time zone"),
            "windows": _texts("visiting hours"),
            "blackout": _texts("hours without visits"),
            "weights": _typed("array", "weights of some pages; the first match counts")
            | {
                "items": {
                    "properties": {
                        "of": _shown("string", "URL pattern, or `category:` and a category"),
                        "weight": _shown("number", "weight"),
                    }
                }
            },
            "weight": _number("weight of all other pages"),
            "cost": _number("budget that a request takes"),
            "list_interval_hours": _shown("number or null", "initial interval of list pages"),
            "item_interval_hours": _shown("number or null", "initial interval of items"),
            "min_interval_hours": _shown("number or null", "minimum planned interval"),
            "max_interval_hours": _shown("number or null", "maximum planned interval"),
            "requests_per_day": _shown("number or null", "maximum planned requests per day"),
            "requests_per_hour": _shown("number or null", "maximum planned requests per hour"),
            "at": _time("time of the last run"),
            "digest": _shown("string", "digest of the definition; a change makes targets due"),
            "patterns": _shown("object", "number of targets by digest of the URL pattern"),
            "kept_bytes": _shown("number", "uncompressed bytes of all versions of the site"),
            "definition": _object(
                ["reader", "keys", "stored"],
                "site definition; absent if a spider class has it",
                {
                    "reader": _text("name of the spider that reads it"),
                    "keys": _text("keys as JSON"),
                    "file": _typed(["string", "null"], "absolute path; null: from arguments"),
                    "withheld": _texts("keys whose values are secret and not stored"),
                    "stored": _time("time when it was stored"),
                },
            ),
        },
    ),
    "dead": _validator(
        ["spider", "url", "at", "leases"],
        "dead letters: pages that repeatedly crashed workers",
        {
            "_id": _shown("string", "`_id` of the target, or id of a request"),
            "spider": _text("name of the spider"),
            "url": _text("URL of the page"),
            "at": _time("time when it was dead-lettered"),
            "leases": _count("number of failed attempts"),
            "worker": _shown("string", "worker that removed it from the queue"),
        },
    ),
    "leases": _validator(
        ["number", "shared", "holders"],
        "leases of work that only one process may do at a time",
        {
            "_id": _text(
                "`crawl NAME`, `replan`, `feeds push`, `duplicates rebuild` or "
                "`duplicates check NAME`"
            ),
            "number": _count("number of the owner; it grows with each new owner"),
            "shared": _text("id of the Redis through which holders share a run; empty: not shared"),
            "holders": {
                "bsonType": "array",
                "description": "processes that hold the lease",
                "items": _object(
                    ["id", "host", "pid", "place", "began", "since", "until"],
                    "a process",
                    {
                        "id": _text("id of the holder"),
                        "host": _text("host name"),
                        "pid": _shown("number", "process id"),
                        "place": _shown("string", "scope of the process id: boot and namespace"),
                        "began": _shown("string", "start time of the process"),
                        "since": _time("start of the lease, by MongoDB's clock"),
                        "until": _time("end of the lease unless it is renewed"),
                    },
                ),
            },
        },
    ),
    "runs": _validator(
        ["spider", "started"],
        "crawl runs: one document per run",
        {
            "_id": _shown("objectId", "id of the run"),
            "spider": _text("name of the spider"),
            "started": _time("start"),
            "finished": _shown("time or null", "end; null: running or crashed"),
            "reason": _shown("string", "why it ended, such as `finished`, `shutdown`, `failed`"),
            "error": _shown("string", "cause of a failure"),
            "full": _shown("boolean", "true for a run with `-a full=1`"),
            "workers": _shown("number", "workers that took part"),
            "counts": _RUN_COUNTS,
            "unmatched": _shown("array of strings", "some links that no pattern matched"),
            "examples": _shown("object", "a link for some of the counts, by name"),
        },
    ),
    "days": _validator(
        ["spider", "target", "day"],
        "daily aggregates of visits that `scrapy prune` removed",
        {
            "_id": _shown("string", "spider, target and day, separated by spaces"),
            "spider": _text("name of the spider"),
            "target": _text("URL of the target"),
            "day": _shown("time", "start of the UTC day"),
            "visits": _shown("number", "visits"),
            "changed": _shown("number", "visits that found a change"),
            "get_size": _shown("number", "sum of `get_size`"),
            "update_size": _shown("number", "sum of `update_size`"),
            "diff_size": _shown("number", "sum of `diff_size`"),
            "outcomes": _shown("object", "number of visits by outcome"),
        },
    ),
    "hosts": _validator(
        ["hold_until"],
        "hosts that asked for a pause",
        {
            "_id": _shown("string", "host"),
            "hold_until": _time("end of the pause"),
        },
    ),
}
