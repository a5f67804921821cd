"""Validators of the collections of near-duplicates."""

from __future__ import annotations

from crawler.storage.client import Document
from crawler.storage.field_schemas import count, shown, shown_rows, text, time, typed, validator

DEDUP_VALIDATORS: dict[str, Document] = {
    "signatures": validator(
        ["post", "created", "seen", "rank", "source", "at", "signature_scheme", "sketch"],
        "signatures by which posts are compared: one document per post",
        {
            "_id": typed(["int", "long"], "number made from the post's `_id`"),
            "post": text("`_id` of the post"),
            "created": time("date of the post"),
            "seen": time("time when the post was first seen"),
            "rank": time("time by which sources are ordered; the earliest is the original's"),
            "source": typed(["int", "long"], "number made from the feed or host"),
            "at": time("time when the signature was stored"),
            "signature_scheme": text("name and version of the signature scheme"),
            "sketch": typed("binData", "MinHash sketch; 130 or 266 bytes for most texts"),
            "bands": typed(
                "array", "LSH bands that the post owns; a unique index. Absent if Redis has them"
            ),
            "cluster": typed("objectId", "`_id` of the cluster"),
            "item": typed(["int", "long"], "number made from the post's `item`"),
            "fence": shown("number", "fence number of the visit of the post's target"),
            "page_fence": shown("number", "fence number of the visit of the page of a feed post"),
            "text": shown("binary", "compressed text, only in `check_NAME_signatures`"),
            "text_source": shown("string", "source of that text"),
        },
    ),
    "clusters": validator(
        ["original", "post", "created", "source", "lead", "order"],
        "posts that are near-duplicates of one another: one document per cluster",
        {
            "_id": shown("objectId", "id of the cluster"),
            "original": shown("number", "`_id` of the original in `signatures`"),
            "post": text("`_id` of the original in `posts`"),
            "created": time("date of the original"),
            "source": typed(["int", "long"], "number of the original's source"),
            "lead": typed("array", "sort key by which this source was first"),
            "order": typed("array", "sort key of the original among the posts of its source"),
            "changes": shown_rows(
                "the last 100 changes of the original",
                {
                    "at": shown("time", "time of the change"),
                    "was": shown("string", "`_id` of the former original"),
                    "post": shown("string", "`_id` of the new original"),
                    "why": shown("string", "cause"),
                },
            ),
            "unsettled": shown("boolean", "true if its posts may show the former original"),
            "overtaken": shown(
                "boolean", "true if another source took the lead, until its earliest post is known"
            ),
        },
    ),
    "boilerplate": validator(
        ["revision", "version", "posts", "common", "pending", "at"],
        "text that the posts of a source share, for the 20,000 sources that learned most recently",
        {
            "_id": text("spider and feed URL, or spider and host"),
            "posts": typed("array", "the newest 48 posts that were learned from")
            | {
                "items": {
                    "properties": {
                        "post": shown("string", "`_id` of the post"),
                        "marks": shown("binary", "hashes of samples of its text, as uint32"),
                    }
                }
            },
            "common": typed("binData", "hashes that are boilerplate, as uint32, at most 8,192"),
            "pending": typed("array", "posts to compare again")
            | {
                "items": {
                    "properties": {
                        "post": shown("string", "`_id` of the post"),
                        "version": shown("number", "version that it was last compared with"),
                    }
                }
            },
            "version": count("number of changes of `common`"),
            "revision": count("number of changes of the document"),
            "at": time("time of the last change"),
        },
    ),
}
