"""Validators of the collections, which also describe each field for the reference."""

from __future__ import annotations

from crawler.items import Kind, Outcome
from crawler.storage.client import Document
from crawler.storage.dedup.signatures import DEDUP_VALIDATORS
from crawler.storage.field_schemas import (
    count,
    document,
    maybe_time,
    number,
    one_of,
    shown,
    shown_object,
    text,
    texts,
    time,
    typed,
    validator,
)
from crawler.storage.validators_of_runs import ACCOUNT_VALIDATORS, RUN_VALIDATORS

_HISTORY = document(
    ["since", "until", "changes"],
    "observed changes; absent before the first observation and for aliases. Visits that failed or "
    "found no page are not observations",
    {
        "since": time("first observation"),
        "until": time("last observation"),
        "changes": typed(
            "binData",
            "the newest 512 changes: little-endian uint32 triples, in minutes since 1970 (UTC), of "
            "the observation before the change, the observation that found it, and the page's "
            "Last-Modified (0 if unknown)",
        ),
        "false_dates": count("visits with a new Last-Modified and unchanged content"),
    },
)

_FIELD_HISTORY = document(
    ["digest", "since", "names", "changes"],
    "changes of single fields of an item; absent before the first one",
    {
        "digest": text("digest of the selectors that extracted the fields"),
        "since": time("time from which the changes are complete"),
        "names": texts("fields that changed, at most 32"),
        "changes": typed(
            "binData",
            "the newest 64 changes: little-endian uint32 pairs, of the observation that found the "
            "change in minutes since 1970 (UTC), and of a bit for each of `names` that changed",
        ),
    },
)

_PLAN = document(
    ["id"],
    "schedule of the last replan that changed it; absent before the first plan and for aliases",
    {
        "id": shown("objectId or string", "`_id` in `plans`; `period` for a fixed period"),
        "policy": shown(
            "string", "allocation policy; `period`: fixed period of a cell; `learn`: sampling phase"
        ),
        "frequency_class": shown(
            "string or null", "frequency class, such as `G7` for 7 visits per week"
        ),
        "windows": shown("array of strings", "the schedule in words"),
        "weeks": typed(["int", "long"], "length of the schedule's cycle in weeks")
        | {"minimum": 1, "maximum": 24},
        "slots": typed(
            "array", "hours of the cycle with a visit; 0 = Monday 00:00, in the site's time zone"
        ),
        "every_hours": number("even interval in hours; 0 for a schedule with slots"),
        "phase_hours": number("offset of the even interval in hours"),
        "min_hours": shown("number", "minimum interval of the policy `adaptive`, in hours"),
        "max_hours": shown("number", "maximum interval of the policy `adaptive`, in hours"),
        "until": maybe_time("end of validity, in a sampling phase; absent: until the next plan"),
        "visits_per_week": shown("number", "mean number of visits per week"),
        "rate_per_week": shown(
            "number or null", "estimated changes per week; for a feed: posts per week"
        ),
        "rate_low": shown("number or null", "5 % quantile of `rate_per_week`"),
        "rate_high": shown("number or null", "95 % quantile of `rate_per_week`"),
        "batch": shown("number or null", "for a feed: mean number of posts that appear together"),
        "freshness": shown("number or null", "expected share of time that the copy is current"),
        "age_days": shown("number or null", "expected mean age of the copy in days"),
        "missed_per_week": shown("number or null", "for a feed: expected missed posts per week"),
        "delay_hours": shown(
            "number or null", "for a feed: expected mean delay of collected posts in hours"
        ),
        "marginal_value": shown(
            "number or null",
            "hours of staleness that one more visit would save, to compare with the plan's "
            "`shadow_price`; for a feed: posts",
        ),
        "last_value": shown(
            "number or null",
            "hours of staleness that the last visit saves; for a feed: posts. The highest are "
            "visited first if a cap leaves no time for all",
        ),
        "limited_by": shown(
            "string",
            "what limits the number of visits: the `budget`, `min_rate` (maximum interval), "
            "`max_rate` (minimum interval), `prior` (never observed), `kept` (a change would save "
            "too little), `exploration` (observed for less than ten days), `rule` of the policy",
        ),
        "former": shown("object", "in a sampling phase: the plan before it"),
    },
)

_PUSH = shown_object(
    "WebSub subscription; absent before the first request",
    {
        "state": shown(
            "string",
            "`requested` from the hub; `active`: confirmed; `refused` by the hub; `ended`: expired "
            "or unsubscribed",
        ),
        "hub": shown("string", "URL of the hub"),
        "topic": shown("string", "URL of the feed at the hub"),
        "callback": shown("string", "URL that receives deliveries"),
        "token": shown("string", "secret part of the callback URL"),
        "secret": shown("string", "key of the signatures of deliveries"),
        "requested_at": shown("time", "time of the last request to the hub"),
        "next_request_at": shown("time", "time of the next request to the hub"),
        "attempts": shown("number", "requests since the last confirmation"),
        "reason": shown("string", "cause of the last failure"),
        "leased_at": shown("time", "time of the last confirmation"),
        "lease_until": shown("time or null", "end of the subscription"),
        "delivered_at": shown(
            "time or null", "time of the last delivery; null if polls found undelivered posts since"
        ),
        "deliveries": shown("number", "deliveries"),
        "ignored": shown("number", "deliveries without a valid signature"),
        "digest": shown("string", "SHA-256 of the last stored delivery"),
        "unsubscribing": shown("boolean", "true while an unsubscription awaits confirmation"),
    },
)

VALIDATORS: dict[str, Document] = {
    "targets": validator(
        ["spider", "url", "kind", "first_seen", "next_visit"],
        "URLs and cells that Freshet keeps fresh: one document per spider and canonical URL",
        {
            "_id": shown("string", "spider and URL, separated by a space"),
            "spider": text("name of the spider"),
            "url": text("canonical URL; for a cell `cell:NAME`"),
            "host": shown("string", "host of the URL"),
            "kind": one_of(map(str, Kind), "kind of target"),
            "start": shown("boolean", "true for a start URL of the site definition"),
            "depth": shown("number", "minimum number of links from a start URL; absent: 0"),
            "redundant_lists": shown(
                "number", "number of redundant list pages in a row on the way to it; absent: 0"
            ),
            "redundant": shown(
                "boolean", "whether a list page shows no items but those of pages of the same list"
            ),
            "pattern": shown("string", "digest of the URL pattern that matched"),
            "categories": texts("the newest 100 categories of an item or feed"),
            "title": shown("string or null", "for a feed: title that was imported"),
            "post": shown("string", "for the page of a feed post: `_id` of the post"),
            "first_seen": time("time of discovery"),
            "next_visit": time("time from which the target is due"),
            "visited_at": maybe_time("time of the last visit; null before the first"),
            "changed_at": shown("time", "time of the visit that found the current content"),
            "unlisted_at": shown(
                "time or null", "time since which no list shows the item; null or absent: shown"
            ),
            "outcome": shown("string", "outcome of the last visit"),
            "visit": shown("objectId", "`_id` of the last visit"),
            "last_visit": shown(
                "object", "last visit, as in `visits`, without `spider` and `target`"
            ),
            "fence": shown("number", "fence number of the next visit"),
            "archived": shown_object(
                "last response with a body in the archive of the site",
                {
                    "file": shown("string", "name of the WARC file"),
                    "offset": shown("number", "offset of the record in bytes"),
                    "length": shown("number", "compressed bytes of the record"),
                    "at": shown("time", "time of the response"),
                    "url": shown("string", "URL of the response"),
                    "digest": shown("string", "digest of the body as received"),
                },
            ),
            "again": shown(
                "boolean",
                "true if an interrupted visit may be stored in part: the next visit stores its "
                "content even if it is unchanged",
            ),
            "requested": count("number of visits"),
            "missed_visits": count("number of planned visits that were not made; absent: 0"),
            "refreshed": count("number of visits that saw the page"),
            "consecutive_errors": count("number of consecutive visits that failed"),
            "consecutive_gone": shown("number", "number of consecutive 404 or 410 responses"),
            "gone": shown("boolean", "true if `FRESHET_GONE_CONFIRMATIONS` responses confirmed it"),
            "dead_lettered_at": time(
                "time when the page was dead-lettered; it is not visited until a retry"
            ),
            "muted_at": time(
                "time when the target was muted; it is neither visited nor planned until it is "
                "unmuted"
            ),
            "broken": shown_object(
                "how the page broke; absent if it works",
                {
                    "how": shown("string", "`selector`, `shrunk` or `login`, as in `visits`"),
                    "since": shown("time", "time of the visit that found it"),
                    "text": shown("string", "what is wrong, in one sentence"),
                    "fields": shown("array of strings", "lost fields that are still missing"),
                    "links": shown("number", "links to items on the list page before"),
                    "digest": shown(
                        "string or null", "hash of the content that many pages had in one run"
                    ),
                },
            ),
            "limits": document(
                [],
                "limits of the interval between two visits, set for this target; they replace the "
                "limits of the site. Absent: none",
                {
                    "min_hours": number("minimum interval in hours; absent: that of the site"),
                    "max_hours": number("maximum interval in hours; absent: that of the site"),
                },
            ),
            "retired": shown("boolean", "for a cell: true while it is not defined"),
            "etag": shown("string or null", "ETag of the current content"),
            "last_modified": shown("string or null", "Last-Modified of the current content"),
            "content_hash": shown("string", "hash of the fields or main text"),
            "raw_hash": shown("string", "hash of the response body"),
            "size": shown("number", "bytes of the response body"),
            "selector_digest": shown(
                "string", "selector digest: digest of the definition that read the content"
            ),
            "kept_bytes": count(
                "uncompressed bytes of the stored versions, for a feed those of its posts; may be "
                "too high until the next prune"
            ),
            "final_url": shown("string or null", "URL after redirects; null without redirects"),
            "aliases": shown(
                "array of strings", "the newest 100 URLs that redirect here, or have the same page"
            ),
            "alias_of": shown("string", "URL of the target that has the content"),
            "canonical_url": shown(
                "string or null", "URL of another item that the page states as canonical"
            ),
            "moved_to": shown("string or null", "URL of a permanent redirect"),
            "moves": shown("number", "consecutive visits that found `moved_to`"),
            "moved_at": shown("time", "last visit on which the target's own URL redirected there"),
            "lastmod": shown("time", "date of the page in a sitemap"),
            "hinted": shown("boolean", "true if a change hint made the target due"),
            "hint": shown("string", "kind of that change hint: `lastmod` or `list`"),
            "feed_size": count("for a feed: number of posts in its document, as plans use it"),
            "stated_interval_hours": number(
                "for a feed: minimum interval that the feed requests, in hours"
            ),
            "execution_ms": shown("number", "for a cell: recent mean duration of a refresh in ms"),
            "learning": shown_object(
                "place in a sampling phase (`scrapy learn`)",
                {
                    "of": shown("objectId", "`_id` of the phase in `plans`"),
                    "rotation": shown("number", "rotation in which the page is polled, from 0"),
                    "phase": shown("number", "offset of its polls in hours"),
                },
            ),
            "history": _HISTORY,
            "field_history": _FIELD_HISTORY,
            "plan": _PLAN,
        },
    ),
    "visits": validator(
        ["spider", "target", "at", "outcome", "changed"],
        "the change log: one document per visit, append-only",
        {
            "_id": shown("objectId", "id of the visit"),
            "spider": text("name of the spider"),
            "target": text("URL of the target"),
            "at": time("time of the response"),
            "outcome": one_of(map(str, Outcome), "result of the visit"),
            "reason": shown(
                "string", "cause of an error, a refusal or a redirect, or how the page broke"
            ),
            "broken": shown(
                "string",
                "how the page broke; absent if it works. `selector`: a field that pages of the "
                "site usually have is missing; `shrunk`: a list page lost at least half of its "
                "links to items; `login`: a login, consent, captcha or error page took its place",
            ),
            "changed": one_of([0, 1], "1 if a change was found; 0 for the first visit"),
            "event": shown(
                "boolean", "true if the page is new, changed, gone for the first time, or back"
            ),
            "status": shown("number or null", "HTTP status"),
            "elapsed_ms": shown("number", "time to the response in ms"),
            "get_size": count("bytes of the response body; 0 for a 304"),
            "update_size": count("bytes by which the body differs from the previous one"),
            "diff_size": count("characters inserted into and deleted from the content"),
            "content_hash": shown("string or null", "hash of the content"),
            "final_url": shown("string", "URL after redirects"),
            "hint": shown("string", "change hint that caused the visit: `lastmod` or `list`"),
            "posts_new": shown("number", "for a feed: number of new posts"),
            "posts_edited": shown("number", "for a feed: number of edited posts"),
            "missed_posts": shown(
                "number", "for a feed: estimated number of posts missed before it"
            ),
            "pushed": shown("boolean", "true if a hub delivered the content, without a request"),
            "shared_fetch": shown(
                "boolean", "true for a cell that shared the fetch of another cell"
            ),
            "archived": shown_object(
                "the response in the archive of the site; absent if it is not archived",
                {
                    "file": shown("string", "name of the WARC file"),
                    "offset": shown("number", "offset of the record in bytes"),
                    "length": shown("number", "compressed bytes of the record"),
                    "revisit": shown(
                        "boolean", "true if the record refers to an earlier one with the same body"
                    ),
                },
            ),
            "reread": shown(
                "boolean", "true if `scrapy reread` changed the outcome of the visit afterwards"
            ),
            "fence": shown("number", "fence number of the visit"),
            "notify": typed(
                "bool", "true until the rules of notifications have been applied to the visit"
            ),
            "events": shown(
                "array of strings",
                "events of the visit for which there is a rule: `new`, "
                "`changed`, `gone`, `back`, `near-duplicate`, `failing`",
            ),
            "duplicates": shown("number", "with `events`: near-duplicates that it stored"),
            "failures": shown("number", "with `events`: consecutive errors of the target"),
        },
    ),
    "versions": validator(
        ["spider", "target", "content_hash", "at"],
        "contents: one document per target and content. The target of a post is the URL of its "
        "feed and its id, separated by a space",
        {
            "_id": shown("string", "spider, target and content hash, separated by spaces"),
            "spider": text("name of the spider"),
            "target": text("URL of the target"),
            "content_hash": text("hash of the content"),
            "at": time("time when the content was first seen"),
            "visit": shown("objectId", "`_id` of the visit that stored it"),
            "fence": shown("number", "fence number of that visit"),
            "size": shown("number", "uncompressed bytes"),
            "content": shown(
                "object",
                "fields by name, `title` and `main_text`; for a list page `links`, at most 20,000",
            ),
        },
    ),
    "posts": validator(
        ["spider", "url", "first_seen", "content_hash"],
        "items and feed posts with their current content",
        {
            "_id": shown("string", "spider and URL; for a feed post spider, feed and id"),
            "spider": text("name of the spider"),
            "url": typed(["string", "null"], "URL of the page; null for a post without a link"),
            "title": shown("string or null", "title"),
            "text": shown("string or null", "main text"),
            "fields": shown("object", "fields of the site definition by name"),
            "categories": shown("array of strings", "categories"),
            "first_seen": time("time of the first visit that saw it"),
            "changed_at": shown("time", "time of the visit that stored the current content"),
            "content_hash": text("hash of the content"),
            "visit": shown("objectId", "`_id` of the visit that stored it"),
            "fence": shown("number", "fence number of that visit"),
            "feed": text("for a feed post: URL of the feed"),
            "guid": text("for a feed post: id in the feed"),
            "published": maybe_time(
                "for a feed post: date of publication; null if unknown or implausible"
            ),
            "page": shown_object(
                "for a feed post with `-a follow=1`: its page",
                {
                    "url": shown("string", "URL of the page"),
                    "at": shown("time", "time of the visit"),
                    "content_hash": shown("string", "hash of the content"),
                    "fields": shown("object", "fields of the site definition by name"),
                    "markup": shown("array of strings", "names of the fields with HTML"),
                    "visit": shown("objectId", "`_id` of the visit"),
                    "fence": shown("number", "fence number of the visit"),
                },
            ),
            "item": text(
                "key of the page that the post is a source of: URL after redirects, without "
                "scheme; absent if it has no page of its own"
            ),
            "link": text(
                "key of the link in the feed; absent if several posts of the feed share it"
            ),
            "original": typed(
                "bool", "true: searches find it; false: near-duplicate of an earlier post"
            ),
            "duplicate_of": text("for a near-duplicate: `_id` of its original"),
            "similarity": number(
                "for a near-duplicate: estimated Jaccard similarity to its original"
            ),
            "cluster": typed(
                "objectId",
                "`_id` of the cluster of near-duplicates; absent without near-duplicates",
            ),
            "compare": shown(
                "array of strings", "names of the compared fields, if the site definition has them"
            ),
            "markup": shown("array of strings", "names of the fields with HTML"),
            "words": text("additional words of the search index"),
        },
    ),
    "listings": validator(
        ["spider", "list", "item", "shown"],
        "which list page shows which item",
        {
            "_id": shown("string", "spider, item and list page, separated by spaces"),
            "spider": text("name of the spider"),
            "list": text("URL of the list page"),
            "item": text("URL of the item"),
            "category": shown("string or null", "category under which the list shows the item"),
            "digest": shown(
                "string or null", "listing digest: digest of the text of the item on the list page"
            ),
            "shown": typed("bool", "false if the list stopped showing the item in this run"),
        },
    ),
    "feeds": validator(
        ["spider", "url"],
        "state of each feed, in addition to its target, which has the same `_id`",
        {
            "_id": shown("string", "spider and URL, separated by a space"),
            "spider": text("name of the spider"),
            "url": text("URL of the feed"),
            "title": shown("string or null", "title in the document"),
            "site": shown("string or null", "URL of the site in the document"),
            "format": shown("string", "format, such as `rss20`, `atom10`, `json11`"),
            "feed_size": count("number of posts in the document"),
            "full": shown("boolean", "true if posts have been seen to leave the document"),
            "ids": shown("binary", "digests of the ids of the document's posts, 8 bytes each"),
            "posts": count("number of collected posts"),
            "newest": shown("time or null", "date of the newest post"),
            "missed_posts": number("estimated number of missed posts"),
            "gaps": count("number of visits that missed posts"),
            "last_gap_at": shown("time or null", "last visit that missed posts"),
            "bounds": shown_object(
                "polling limits that the feed states",
                {
                    "every_hours": shown("number or null", "minimum interval in hours"),
                    "skip_hours": shown("array of numbers", "hours of the UTC day without polls"),
                    "skip_days": shown("array of numbers", "days without polls, 0 = Monday"),
                },
            ),
            "hubs": shown("array of strings", "URLs of WebSub hubs"),
            "topic": shown("string or null", "URL of the feed at its hubs"),
            "push": _PUSH,
            "problems": shown("array of strings", "errors in the document"),
            "error": shown("string or null", "cause of the last failure; null after a success"),
            "seen_at": maybe_time("last visit that saw the feed"),
            "fence": shown("number", "fence number of the last visit"),
        },
    ),
    "pushes": validator(
        ["spider", "url", "at", "content_type", "size", "body"],
        "deliveries of WebSub hubs, until a run stores their posts",
        {
            "_id": shown("string", "spider, URL of the feed and digest of the body"),
            "spider": text("name of the spider"),
            "url": text("URL of the feed"),
            "at": time("time of the delivery"),
            "content_type": text("content type of the delivery"),
            "size": count("bytes of the body"),
            "body": typed("binData", "feed document as delivered"),
        },
    ),
    "cells": validator(
        ["spider", "name"],
        "the cell store: content and refresh state of each cell, in addition to its target, which "
        "has the same `_id`",
        {
            "_id": shown("string", "spider and `cell:NAME`, separated by a space"),
            "spider": text("name of the spider"),
            "name": text("name of the cell"),
            "period_seconds": shown(
                "number or null", "period, or mean time between planned visits, in seconds"
            ),
            "execution_seconds": shown(
                "number or null", "recent mean duration of a refresh in seconds"
            ),
            "requested": count("number of elapsed periods, refreshed or not"),
            "refreshed": count("number of refreshes"),
            "refreshed_at": maybe_time("last successful refresh"),
            "changed_at": maybe_time("time of the refresh that found the current content"),
            "content": typed(
                ["object", "null"],
                "`value` or `html` of a selector, fields by name, or `columns` and `rows` of a "
                "query",
            ),
            "content_hash": shown("string or null", "hash of the content"),
            "group": shown(
                "string or null",
                "class by period: `dynamic`, `semi-dynamic` or `static`; null: planned",
            ),
            "error": shown("string or null", "cause of the last failure; null after a success"),
            "retired": shown("boolean", "true while the cell is not defined"),
            "fence": shown("number", "fence number of the last visit"),
        },
    ),
    "rereads": validator(
        ["spider", "target", "part", "parts", "writes"],
        "writes of `scrapy reread` that are not finished: one document per target and part",
        {
            "_id": shown("string", "`_id` of the target and number of the part"),
            "spider": text("name of the spider"),
            "target": text("`_id` of the target"),
            "part": count("number of the part"),
            "parts": count("number of parts; the writes are complete if all are stored"),
            "at": shown("time", "time of the reread"),
            "writes": shown("array of binaries", "writes in BSON"),
        },
    ),
    "days": validator(
        ["spider", "target", "day"],
        "daily aggregates of visits that `scrapy prune` removed",
        {
            "_id": shown("string", "spider, target and day, separated by spaces"),
            "spider": text("name of the spider"),
            "target": text("URL of the target"),
            "day": shown("time", "start of the UTC day"),
            "visits": shown("number", "visits"),
            "changed": shown("number", "visits that found a change"),
            "get_size": shown("number", "sum of `get_size`"),
            "update_size": shown("number", "sum of `update_size`"),
            "diff_size": shown("number", "sum of `diff_size`"),
            "outcomes": shown("object", "number of visits by outcome"),
        },
    ),
    "reading": validator(
        ["reader", "feed", "until", "read"],
        "posts of feeds that each reader has read",
        {
            "_id": shown("string", "name of the reader and `feed`, separated by a space"),
            "reader": text("name of the user; `local` without sign-in"),
            "feed": text("`_id` of the feed in `targets`; empty for all feeds"),
            "until": time("posts that were first seen until this time are read"),
            "read": texts("`_id`s of later posts that are read, at most 300"),
        },
    ),
    **RUN_VALIDATORS,
    **DEDUP_VALIDATORS,
    **ACCOUNT_VALIDATORS,
}
