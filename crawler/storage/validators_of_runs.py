"""Validators of the collections of runs, plans, sites and accounts."""

from __future__ import annotations

from crawler.items import Event, Kind, Outcome
from crawler.storage.accounts.readers import MAX_MUTES, MAX_PAGES, MAX_RANGES, MAX_SITES
from crawler.storage.accounts.users import Role
from crawler.storage.client import Document
from crawler.storage.field_schemas import (
    count,
    document,
    maybe_time,
    number,
    one_of,
    shown,
    shown_object,
    shown_rows,
    text,
    texts,
    time,
    typed,
    validator,
)

_RUN_COUNTS = shown_object(
    "numbers by name; names that are absent are 0",
    {
        "visits": shown("number", "visits"),
        **{str(kind): shown("number", f"visits with the outcome `{kind}`") for kind in Outcome},
        **{f"{kind}_pages": shown("number", f"visited targets of kind `{kind}`") for kind in Kind},
        "bytes": shown("number", "bytes of response bodies"),
        "targets": shown("number", "targets of the spider at the end of the run"),
        "discovered": shown("number", "new targets"),
        "unlisted": shown("number", "items that no list shows any more"),
        "due": shown("number", "targets that are still due"),
        "over_cap": shown("number", "targets that are still due because of the plan's caps"),
        "closed": shown("number", "targets that are still due because of visiting hours"),
        "over_limit": shown("number", "targets that are still due because of `-a limit`"),
        "missed_visits": shown("number", "planned visits that were not made before this run"),
        "dead_lettered": shown("number", "pages that were dead-lettered"),
        "left_out": shown("number", "links that exceeded a limit of the site definition"),
        "copied_lists": shown(
            "number", "new list pages with a query whose items are all on other list pages"
        ),
        "posts": shown("number", "new feed posts"),
        "edited_posts": shown("number", "edited feed posts"),
        "missed_posts": shown("number", "estimated number of missed feed posts"),
        "pages_with_links": shown("number", "pages that were searched for links"),
        "links": shown("number", "links to pages of the site, once per page"),
        "list_links": shown("number", "links that `list_pages` matches"),
        "item_links": shown("number", "links that `item_pages` matches"),
        "ambiguous_links": shown("number", "links that both match; they are ignored"),
        "unmatched_links": shown("number", "links that no pattern matches"),
        "foreign_links": shown("number", "links to other hosts"),
        "unfollowed_links": shown("number", "matching links on a start URL that is an item"),
        "variant_urls": shown("number", "items that state another form of their URL as canonical"),
        "items_read": shown("number", "items whose fields were read"),
        "without_FIELD": shown("number", "items without this field"),
    },
)

RUN_VALIDATORS: dict[str, Document] = {
    "runs": validator(
        ["spider", "started"],
        "crawl runs: one document per run",
        {
            "_id": shown("objectId", "id of the run"),
            "spider": text("name of the spider"),
            "started": time("start"),
            "finished": shown("time or null", "end; null: running or crashed"),
            "reason": shown("string", "why it ended, such as `finished`, `shutdown`, `failed`"),
            "error": shown("string", "cause of a failure"),
            "full": shown("boolean", "true for a run with `-a full=1`"),
            "workers": shown("number", "workers that took part"),
            "counts": _RUN_COUNTS,
            "unmatched": shown("array of strings", "some links that no pattern matched"),
            "examples": shown("object", "a link for some of the counts, by name"),
        },
    ),
    "plans": validator(
        ["at", "spiders", "state"],
        "plans: one document per replan, and one per sampling phase (`scrapy learn`)",
        {
            "_id": shown("objectId", "id of the plan"),
            "at": time("time of the replan"),
            "kind": shown("string", "`pages` or `feeds`"),
            "spiders": texts("names of the planned spiders; empty for a sampling phase"),
            "state": one_of(
                ["staging", "activating", "active", "discarded"],
                "`staging`: being stored, the former plan is active; `activating`: being "
                "copied to the targets; `active`: complete; `discarded`: never activated",
            ),
            "policy": shown("string", "allocation policy; `learn` for a sampling phase"),
            "objective": shown("string", "objective of the policy `optimal`"),
            "budget_per_day": shown(
                "number or null", "mean requests per day; null if the policy uses no budget"
            ),
            "budget_from": shown(
                "string",
                "source of the budget: `given` (option or setting), `goal`, `intervals` (fixed "
                "intervals), `plans` (several former plans) or `policy`",
            ),
            "budget_kept": shown("boolean", "true if the former plan had the same budget"),
            "budget_added": shown("number", "part of the budget for new targets"),
            "daily_cap": shown("number", "maximum visits per UTC day; 0: no cap"),
            "hourly_cap": shown("number", "maximum visits per hour; 0: no cap"),
            "shadow_price": shown(
                "number or null",
                "hours of staleness that a visit has to save; for feeds: posts per fetch",
            ),
            "targets": shown("number", "planned targets"),
            "updated": shown("number", "targets whose plan was changed"),
            "unplanned": shown("number", "targets without a former plan"),
            "learning": shown("number", "targets in a sampling phase, whose plans are kept"),
            "dated": shown("array of strings", "spiders whose Last-Modified dates are reliable"),
            "limited_by": shown("object", "number of targets for each value of `plan.limited_by`"),
            "totals": shown_object(
                "expected results",
                {
                    "requests_per_day": shown("number", "mean requests per day"),
                    "min_per_day": shown(
                        "number", "requests per day if each target has its maximum interval"
                    ),
                    "known": shown("boolean", "true if change rates are known well enough"),
                    "freshness": shown("number or null", "mean freshness"),
                    "age_days": shown("number or null", "mean age in days"),
                    "load": shown("number", "requests as a share of those of daily crawling"),
                    "daily": shown("object", "the same figures for daily crawling"),
                    "posts_per_day": shown("number or null", "for feeds: posts per day"),
                    "missed_share": shown("number or null", "for feeds: share of missed posts"),
                    "delay_hours": shown(
                        "number or null", "for feeds: mean delay of collected posts in hours"
                    ),
                    "polls": shown("number", "for a sampling phase: polls"),
                    "changes": shown("number", "for a sampling phase: changes found"),
                },
            ),
            "ignored": shown_object(
                "ignored data",
                {"future": shown("number", "targets with visits in the future")},
            ),
            "warnings": shown("array of strings", "warnings for the user"),
            "limits": shown_rows(
                "for the policy `adaptive`: limits of intervals",
                {
                    "spider": shown("string", "name of the spider"),
                    "min_hours": shown("number", "minimum interval in hours"),
                    "max_hours": shown("number", "maximum interval in hours"),
                },
            ),
            "samples": shown("string", "for a sampling phase: name of the spider"),
            "until": shown("time", "for a sampling phase: planned end"),
            "ended": shown("time", "for a sampling phase: end"),
            "weeks": shown("number", "for a sampling phase: duration in weeks"),
            "every_hours": shown("number", "for a sampling phase: interval of polls in hours"),
            "sample": shown("number or null", "for a sampling phase: requested number of pages"),
            "pages": shown("number", "for a sampling phase: number of pages"),
            "rotations": shown(
                "number", "for a sampling phase: number of groups of pages that are polled in turn"
            ),
        },
    ),
    "sites": validator(
        ["timezone", "visiting_hours", "blackout", "weight", "weights", "cost", "at"],
        "settings of each site as of its last run, and the definition of a site without a spider "
        "class",
        {
            "_id": shown("string", "name of the spider"),
            "timezone": text("IANA time zone"),
            "visiting_hours": texts("visiting hours"),
            "blackout": texts("hours without visits"),
            "notify": shown(
                "array of objects", "rules of notifications in the site definition, as written"
            ),
            "weights": typed("array", "weights of some pages; the first match counts")
            | {
                "items": {
                    "properties": {
                        "of": shown("string", "URL pattern, or `category:` and a category"),
                        "weight": shown("number", "weight"),
                    }
                }
            },
            "weight": number("weight of all other pages"),
            "cost": number("budget that a request uses"),
            "list_interval_hours": shown("number or null", "initial interval of list pages"),
            "item_interval_hours": shown("number or null", "initial interval of items"),
            "min_interval_hours": shown("number or null", "minimum planned interval"),
            "max_interval_hours": shown("number or null", "maximum planned interval"),
            "requests_per_day": shown("number or null", "maximum planned requests per day"),
            "requests_per_hour": shown("number or null", "maximum planned requests per hour"),
            "at": time("time of the last run; before the first run, time when the site was added"),
            "digest": shown("string", "digest of the definition; a change makes targets due"),
            "inputs": shown(
                "string or null",
                "digest of code, settings and definition of the last run; while it stays the same, "
                "runs with nothing due end immediately",
            ),
            "patterns": shown("object", "number of targets by digest of the URL pattern"),
            "paused_at": time(
                "time since which the service starts no runs of the site; absent: not paused"
            ),
            "tags": texts("tags of the site on the board of the web app, at most 20"),
            "kept_bytes": shown("number", "uncompressed bytes of all versions of the site"),
            "definition": document(
                ["reader", "keys", "stored"],
                "site definition; absent if a spider class defines the site",
                {
                    "reader": text("name of the spider that reads it"),
                    "keys": text("keys as JSON"),
                    "file": typed(["string", "null"], "absolute path; null: from arguments"),
                    "withheld": texts("keys whose values are secret and not stored"),
                    "stored": time("time when it was stored"),
                },
            ),
        },
    ),
    "dead_letters": validator(
        ["spider", "url", "at", "leases"],
        "dead letters: pages that repeatedly crashed workers",
        {
            "_id": shown("string", "`_id` of the target, or id of a request"),
            "spider": text("name of the spider"),
            "url": text("URL of the page"),
            "at": time("time when it was dead-lettered"),
            "leases": count("number of failed attempts"),
            "worker": shown("string", "worker that removed it from the queue"),
        },
    ),
    "alarms": validator(
        ["spider", "target", "event", "at", "since", "chance", "text"],
        "alarms: one document per silence of a target or broken page, deleted a year after its end",
        {
            "_id": shown(
                "string", "spider, target, kind of breakage, time and event, separated by spaces"
            ),
            "spider": text("name of the spider"),
            "target": text("URL of the target; empty for a whole site"),
            "field": shown("string", "field that is silent; absent for a whole page"),
            "event": one_of(
                ["silent", "broken"],
                "`silent`: no change for too long; `broken`: a page broke rather than changed",
            ),
            "at": time("time when the alarm was raised"),
            "since": time("time of the last change, or of the visit that found a broken page"),
            "expected_at": time(
                "time by which the next change was expected on average; absent for broken pages"
            ),
            "chance": number(
                "probability that a living target is silent for so long; 0 for broken pages"
            ),
            "text": text("what is wrong, in one sentence"),
            "ended_at": maybe_time("time of the check that ended the alarm; null while it is open"),
            "notify": shown("boolean", "true until a notification was sent"),
        },
    ),
    "outbox": validator(
        ["channel", "rule", "event", "spider", "target", "at", "state", "due", "attempts"],
        "messages of notifications; delivered and dropped ones are deleted after a week, dead "
        "letters after 60 days",
        {
            "_id": text("id of the message for its receiver: digest of event, rule and channel"),
            "channel": text("name of the channel"),
            "rule": text("name of the rule; `SITE/NAME` for a rule of a site definition"),
            "event": one_of(map(str, Event), "event"),
            "spider": text("name of the spider"),
            "target": text("URL of the target; empty for a whole site"),
            "at": time("time of the event"),
            "data": shown_object(
                "event data available to templates",
                {
                    "title": shown("string or null", "title of the page"),
                    "before": shown("object or null", "values before the event, at most 20"),
                    "after": shown("object or null", "values after the event, at most 20"),
                    "categories": shown("array of strings", "categories, at most 10"),
                    "reason": shown("string", "cause of an error"),
                    "failures": shown("number", "consecutive errors"),
                    "text": shown("string", "text of an alarm"),
                    "posts": shown("array of objects", "for a feed: `title` and `url` of posts"),
                    "posts_matching": shown("number", "for a feed: number of such posts"),
                },
            ),
            "state": one_of(
                ["unconfirmed", "waiting", "delivered", "dead", "dropped"],
                "`unconfirmed`: until the next visit of the page, `waiting`, `delivered`, `dead`: "
                "not tried again, or `dropped`: the next visit found another state",
            ),
            "confirm": shown_object(
                "state that the next visit must find; absent: any",
                {
                    "outcomes": shown("array of strings", "outcomes, one of which it has"),
                    "content_hash": shown("string or null", "hash of the content; absent: any"),
                },
            ),
            "bundle": shown(
                "string", "id of the message for its receiver if it is sent together with others"
            ),
            "due": time("time of the next attempt"),
            "attempts": count("number of attempts"),
            "first_at": shown("time", "time of the first attempt that failed"),
            "accepted": shown(
                "array of strings", "digests of the URLs that accepted it in attempts that failed"
            ),
            "delivered_at": shown("time", "time when the channel accepted it"),
            "dead_at": shown("time", "time when it became a dead letter"),
            "dropped_at": shown("time", "time when it was dropped"),
            "reason": shown("string", "cause of the last failure, or why it was dropped"),
        },
    ),
    "notification_rules": validator(
        ["keys", "by", "at", "edits"],
        "rules of notifications that users write in the web app",
        {
            "_id": text("name of the rule"),
            "keys": shown("object", "keys of the rule, as in `notify.toml`"),
            "by": text("name of the user who wrote it last"),
            "at": time("time of the last edit"),
            "edits": count("number of edits"),
        },
    ),
    "leases": validator(
        ["number", "shared", "holders"],
        "leases of work that only one process may do at a time",
        {
            "_id": text(
                "`crawl NAME`, `notify CHANNEL`, `replan`, `feeds push`, `duplicates rebuild`, "
                "`duplicates check NAME` or `export TABLE`"
            ),
            "number": count("number of the owner; it grows with each new owner"),
            "shared": text("id of the Redis through which holders share a run; empty: not shared"),
            "reserved": count(
                "number of requests that a run may still make under the caps of a plan that it "
                "shares with other spiders, and whose visits are not stored yet"
            ),
            "holders": {
                "bsonType": "array",
                "description": "processes that hold the lease",
                "items": document(
                    ["id", "host", "pid", "place", "began", "since", "until"],
                    "a process",
                    {
                        "id": text("id of the holder"),
                        "host": text("host name"),
                        "pid": shown("number", "process id"),
                        "place": shown("string", "scope of the process id: boot and namespace"),
                        "began": shown("string", "start time of the process"),
                        "since": time("start of the lease, by MongoDB's clock"),
                        "until": time("end of the lease unless it is renewed"),
                    },
                ),
            },
        },
    ),
    "hosts": validator(
        ["hold_until"],
        "hosts that requested a pause",
        {
            "_id": shown("string", "host"),
            "hold_until": time("end of the pause"),
        },
    ),
}


def _rows(max_items: int, description: str, fields: Document) -> Document:
    """Return the schema of an array of at most `max_items` documents with these fields."""
    rows = document(list(fields), description, fields)
    return typed("array", description) | {"items": rows, "maxItems": max_items}


ACCOUNT_VALIDATORS: dict[str, Document] = {
    "users": validator(
        ["role", "password_hash", "created_at", "password_at"],
        "users of the web app",
        {
            "_id": shown("string", "name of the user, in lower case"),
            "role": one_of(
                map(str, Role), "`viewer` reads; `editor` also changes settings and starts crawls"
            ),
            "password_hash": text("Argon2id hash of the password, with its salt and parameters"),
            "created_at": time("time when the user was added"),
            "password_at": time("time when the password was set"),
        },
    ),
    "sessions": validator(
        ["user", "created_at", "used_at", "expires_at"],
        "signed-in browsers of the web app",
        {
            "_id": shown("string", "SHA-256 of the session id in the cookie"),
            "user": text("name of the user"),
            "created_at": time("time of the sign-in"),
            "used_at": time("time of a recent request, exact to the hour"),
            "expires_at": time("end of the session; the document is deleted then"),
        },
    ),
    "api_tokens": validator(
        ["user", "label", "scopes", "created_at", "used_at"],
        "tokens with which programs use the JSON API",
        {
            "_id": shown("string", "SHA-256 of the token"),
            "user": text("name of the user that the token acts for"),
            "label": text("purpose of the token, as described by its creator"),
            "scopes": texts("what the token may do: `read`, `write`"),
            "created_at": time("time when the token was added"),
            "used_at": maybe_time("time of a recent request, exact to the hour; null before any"),
            "expires_at": time("end of the token; absent: no end. The document is deleted then"),
        },
    ),
    "readers": validator(
        ["revision", "sites", "ranges", "pages", "mutes"],
        "how far each user of the web app has read the changes",
        {
            "_id": shown("string", "name of the user; `local` without sign-in"),
            "revision": count("number of changes to this document"),
            "read_until": maybe_time("all earlier changes are read; null or absent: none"),
            "sites": _rows(
                MAX_SITES,
                "sites of which all changes up to a time are read",
                {"site": text("name of the site"), "until": time("the time")},
            ),
            "ranges": _rows(
                MAX_RANGES,
                "times in which all changes are read",
                {"since": time("start, included"), "until": time("end, included")},
            ),
            "pages": _rows(
                MAX_PAGES,
                "pages of which all changes up to a time are read",
                {
                    "page": typed("long", "hash of spider and URL, 64 bits"),
                    "until": time("the time"),
                },
            ),
            "mutes": texts("regular expressions of URLs whose changes are hidden")
            | {"maxItems": MAX_MUTES},
            "feed": document(
                ["token", "created_at"],
                "Atom feed of the user's changes; absent: none",
                {
                    "token": text("SHA-256 of the secret in the feed's URL"),
                    "created_at": time("time when the URL was created"),
                },
            ),
        },
    ),
    "audit": validator(
        ["at", "user", "action"],
        "changes made through the web app, its API and `scrapy web`; deleted after 400 days",
        {
            "_id": shown("objectId", "id of the entry"),
            "at": time("time of the change"),
            "user": text(
                "name of the user; `local` without sign-in, `command line` for `scrapy web`"
            ),
            "action": text("method and path of the request, or the command"),
            "detail": text("what was changed, in words; absent if the action says all"),
            "address": text("IP address of the client; absent for commands"),
            "status": number("HTTP status of the response; absent for commands"),
        },
    ),
}
