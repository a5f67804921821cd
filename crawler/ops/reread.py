"""Reread: extract archived responses with the current site definition, and restate the histories.

Each visit of an item that has an archived response gets the content that the current definition
extracts from it. No visit is added. A visit whose outcome changes as a result, for example because
a new field changed between two visits, is marked with `reread`. Visits without an archived response
keep their content, and are not compared with their neighbors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Headers, Response, TextResponse
from scrapy.responsetypes import responsetypes
from scrapy.settings import Settings
from scrapy.utils.asyncgen import as_async_generator
from typing_extensions import TypedDict

from crawler.archive.files import Stored, files_of, folder_of, read_response
from crawler.config import Config
from crawler.errors import ArchiveError, BadResponse, ConfigError
from crawler.extract.content import fill
from crawler.extract.noise import RANDOM
from crawler.items import SEEN, Fetched, Kind, Outcome, Target
from crawler.storage import posts, rereads, runs
from crawler.storage.client import Database, Document
from crawler.storage.leases import CRAWL, held
from crawler.storage.posts import SizeLimits, VersionDeletion
from crawler.storage.targets import history_document, history_of, in_minutes, noise_of
from crawler.utils.compression import decoded_body
from crawler.utils.diff import diff_size, estimated_diff_size, is_quick
from schedules.history import Change
from spiders.wrapper import INSPECTS, WrapperSpider

MEGABYTE = 1024**2
# Targets whose writes are sent together.
BATCH = 100
# Versions of a batch in memory.
BATCH_BYTES = 16 * MEGABYTE
MAX_PROBLEMS = 5
FOUND = "found by scrapy reread"


class RereadReport(TypedDict):
    """Result of a reread."""

    site: str
    """Name of the site."""
    pages: int
    """Items with archived responses."""
    responses: int
    """Archived responses from which contents were extracted."""
    restated: int
    """Items whose history was restated."""
    changes_added: int
    """Visits that show a change now and did not before."""
    changes_removed: int
    """Visits that showed a change before and do not now."""
    unreadable: int
    """Archived responses from which nothing could be extracted; their visits stay as they were."""
    deleted: int
    """Visits whose archived responses were deleted with their file."""
    problems: list[str]
    """The first reasons why responses could not be read, at most 5."""


class Extractor:
    """Extracts the fields of archived responses with the site definition of a spider."""

    def __init__(self, settings: Settings, kind: type[Spider]) -> None:
        if not issubclass(kind, WrapperSpider):
            raise ConfigError(f"{kind.name}: not a site with a definition. Reread one that has one")
        own = settings.copy()
        own.set(INSPECTS, True, priority="cmdline")
        self.spider = kind.from_crawler(Crawler(kind, own))
        self._limit_bytes = int(self.spider.config.response_mb * MEGABYTE)

    async def read(self, stored: Stored, target: Target) -> Content | None:
        """Return the content that the definition extracts from a response; None if nothing."""
        try:
            response = self._response(stored)
        except BadResponse:
            return None
        response.request = Request(target.url, meta={"target": target})
        async for fetched in as_async_generator(self.spider.parse_target(response)):
            if not isinstance(fetched, Fetched) or fetched.stand_in is not None:
                continue
            if fetched.outcome is None and fetched.content:
                fill(fetched)
                assert fetched.content is not None
                assert fetched.content_hash is not None
                return Content(fetched.content, fetched.content_hash, fetched.markup)
        return None

    def _response(self, stored: Stored) -> Response:
        headers = Headers()
        for name, value in stored.headers:
            headers.appendlist(name, value)
        codings = headers.getlist("Content-Encoding")
        body, unknown = decoded_body(stored.body, codings, self._limit_bytes)
        headers.pop("Content-Encoding", None)
        kind = responsetypes.from_args(headers=headers, url=stored.url, body=body)
        if unknown:
            headers["Content-Encoding"] = unknown
        cls = kind if issubclass(kind, TextResponse) else Response
        return cls(stored.url, status=stored.status, headers=headers, body=body)


class Reread:
    """Rereads the archived items of one site.

    say: called with a progress text
    """

    def __init__(
        self, db: Database, extractor: Extractor, since: datetime | None, say: Callable[[str], None]
    ) -> None:
        self._db, self._extractor, self._since, self._say = db, extractor, since, say
        spider = extractor.spider
        self._wrapper, self._config = spider.wrapper, spider.config
        self._site, self._clock = spider.wrapper.name, spider.clock
        self._folder = folder_of(self._config, self._site)
        self._limit_bytes = int(self._config.response_mb * MEGABYTE)
        self.report: RereadReport = {
            "site": self._site, "pages": 0, "responses": 0, "restated": 0, "changes_added": 0,
            "changes_removed": 0, "unreadable": 0, "deleted": 0, "problems": [],
        }  # fmt: skip

    async def run(self) -> RereadReport:
        """Restate all items; raises ConfigError, Busy and StorageError."""
        if not files_of(self._folder):
            raise ConfigError(
                f"{self._site} has no archive in {self._folder}. Set archive = true in its site "
                "definition, and crawl it"
            )
        busy = f"{self._site} is being crawled or reread"
        async with held(self._db, self._config, f"{CRAWL}{self._site}", busy):
            if await runs.unfinished_since(self._db, self._site):
                raise ConfigError(
                    f"the last run of {self._site} was interrupted. Run scrapy crawl {self._site} "
                    "first, which repairs its log"
                )
            await rereads.recover(self._db, self._site)
            await self._restate_all()
            limits = SizeLimits(self._db, self._site, self._config)
            deletion = VersionDeletion(self._db)
            await limits.bound_targets(deletion)
            await limits.bound_site(deletion)
        return self.report

    async def _restate_all(self) -> None:
        batch: list[rereads.Writes] = []
        size = 0
        async for row in rereads.items(self._db, self._site):
            self.report["pages"] += 1
            if "alias_of" in row:
                continue
            writes, own = await self._restate_one(row)
            if writes is not None:
                batch.append(writes)
                size += own
            if len(batch) >= BATCH or size > BATCH_BYTES:
                await self._store(batch)
                batch, size = [], 0
            self._say(f"rereading {self._site}: {self.report['responses']:,} responses")
        if batch:
            await self._store(batch)

    async def _store(self, batch: list[rereads.Writes]) -> None:
        for key in await rereads.store(self._db, self._site, batch, self._clock.now()):
            self._add_problem(f"{key}: a version is too large to store")
        self.report["restated"] += len(batch)

    async def _restate_one(self, row: Document) -> tuple[rereads.Writes | None, int]:
        """Return the writes for a target, and their size in bytes; None without a difference."""
        url = row["url"]
        noise = noise_of(row.get("noise"))
        target = Target(self._site, url, Kind.ITEM, depth=row.get("depth", 0), noise=noise)
        rows = await rereads.visits_of(self._db, self._site, url)

        async def read(visit: Document) -> Content | None:
            return await self._read(visit["archived"], target)

        result = await restate(rows, self._since, read)
        old = {visit["_id"]: visit for visit in rows}
        differs = any(
            old[id_].get(name) != value
            for id_, values in result.rows.items()
            for name, value in values.items()
        )
        digest = self._wrapper.selector_digest_of(
            Target(self._site, url, Kind.ITEM, selector_digest=row.get("selector_digest"))
        )
        is_current = result.last is not None and rows[-1]["_id"] in result.rows
        if not differs and not (is_current and row.get("selector_digest") != digest):
            return None, 0
        self.report["changes_added"] += len(result.added)
        self.report["changes_removed"] += len(result.removed)
        stored = await rereads.version_visits(self._db, self._site, url)
        writes = self._writes(row, result, stored, old)
        if is_current:
            self._add_current(writes, row, result, digest)
        size = sum(len(str(content.content)) for content, _ in result.contents.values())
        return writes, size

    def _writes(
        self, row: Document, result: Restatement, stored: dict[str, Any], old: dict[Any, Document]
    ) -> rereads.Writes:
        writes = rereads.Writes(row["_id"])
        for content, first in result.contents.values():
            version: Document = {
                "spider": self._site, "target": row["url"], "content_hash": content.content_hash,
                "visit": first["_id"], "fence": first.get("fence", 0), "at": first["at"],
                "size": first["get_size"], "content": content.content,
            }  # fmt: skip
            key = f"{row['_id']} {content.content_hash}"
            writes.updates["versions"].append(({"_id": key}, {"$set": version}))
        for content_hash, visit in stored.items():
            if content_hash in result.contents or visit not in result.rows:
                continue
            key = f"{row['_id']} {content_hash}"
            if (kept := result.kept.get(content_hash)) is None:
                writes.deleted.append(key)
            else:
                first = {"visit": kept["_id"], "at": kept["at"], "fence": kept.get("fence", 0)}
                writes.updates["versions"].append(({"_id": key}, {"$set": first}))
        for id_, values in result.rows.items():
            if any(old[id_].get(name) != value for name, value in values.items()):
                writes.updates["visits"].append(({"_id": id_}, {"$set": values}))
        state = self._history(row, result)
        last = row.get("last_visit", {}).get("_id")
        if last in result.rows:
            state |= {f"last_visit.{name}": value for name, value in result.rows[last].items()}
        if state:
            writes.updates["targets"].append(({"_id": row["_id"]}, {"$set": state}))
        return writes

    def _history(self, row: Document, result: Restatement) -> Document:
        """Return the target's observed changes with those that were added and removed."""
        history = history_of(row.get("history"))
        if history is None or not (result.added or result.removed):
            return {}
        added = [
            Change(in_minutes(before["at"]), in_minutes(now["at"])) for before, now in result.added
        ]
        removed = [in_minutes(visit["at"]) for visit in result.removed]
        false_dates = row["history"].get("false_dates", 0)
        return {"history": history_document(history.restated(added, removed), false_dates)}

    def _add_current(
        self, writes: rereads.Writes, row: Document, result: Restatement, digest: str
    ) -> None:
        """Add the writes for the current content: of the target and of its post."""
        content, changed = result.last, result.changed
        assert content is not None
        assert changed is not None
        state = {
            "content_hash": content.content_hash, "selector_digest": digest,
            "changed_at": changed["at"],
        }  # fmt: skip
        # The next visit compares the text with other posts again, if their comparison is on.
        if row.get("content_hash") != content.content_hash:
            state["again"] = True
        writes.updates["targets"].append(({"_id": row["_id"]}, {"$set": state}))
        update = rereads.post_update(
            row["url"], content.content, content.markup, self._wrapper.compared
        )
        update["$set"] |= {
            "content_hash": content.content_hash, "visit": changed["_id"],
            "changed_at": changed["at"],
        }  # fmt: skip
        writes.updates["posts"].append(({"_id": row["_id"]}, update))

    async def _read(self, archived: Document, target: Target) -> Content | None:
        try:
            stored = await asyncio.to_thread(
                read_response, self._folder, archived["file"], archived["offset"], self._limit_bytes
            )
        except ArchiveError as error:
            self.report["unreadable"] += 1
            self._add_problem(str(error))
            return None
        if stored is None:
            self.report["deleted"] += 1
            return None
        content = await self._extractor.read(stored, target)
        if content is not None:
            self.report["responses"] += 1
        else:
            self.report["unreadable"] += 1
            self._add_problem(f"{target.url}: nothing found in the response in {archived['file']}")
        return content

    def _add_problem(self, problem: str) -> None:
        if len(self.report["problems"]) < MAX_PROBLEMS:
            self.report["problems"].append(problem)


async def reread(
    settings: Settings, kind: type[Spider], since: datetime | None, say: Callable[[str], None]
) -> RereadReport:
    """Reread a site; raises ConfigError, Busy and StorageError."""
    from crawler.storage.store import opened

    config = Config.of(settings)
    extractor = Extractor(settings, kind)
    if not extractor.spider.wrapper.item_pages:
        raise ConfigError(
            f"{extractor.spider.name}: not a site with items. Feeds and lists of cells cannot be "
            "reread"
        )
    async with opened(config) as db:
        return await Reread(db, extractor, since, say).run()


@dataclass(frozen=True, slots=True)
class Content:
    """The content that the current definition extracts from a response."""

    content: dict[str, Any]
    content_hash: str
    markup: tuple[str, ...]


# Returns the content of the archived response of a visit; None if it cannot be read.
Read = Callable[[Document], Awaitable[Content | None]]


@dataclass(slots=True)
class Restatement:
    """The visits of an item with contents of the current definition.

    rows:      by visit, the new values of its row
    contents:  contents by hash, each with the row of the first visit that found it
    added:     visits that show a change now, each with the visit before
    removed:   visits that no longer show a change
    kept:      content hashes of visits that stay as they are, each with the first such visit
    last:      content at the last visit; None if it is not known
    changed:   the visit that found that content
    """

    rows: dict[Any, Document] = field(default_factory=dict)
    contents: dict[str, tuple[Content, Document]] = field(default_factory=dict)
    added: list[tuple[Document, Document]] = field(default_factory=list)
    removed: list[Document] = field(default_factory=list)
    kept: dict[str, Document] = field(default_factory=dict)
    last: Content | None = None
    changed: Document | None = None
    _before_row: Document | None = None
    _was_gone: bool = False

    def add_failed(self, row: Document) -> None:
        """Add a visit that saw no page: it has the content of the visit before."""
        self._was_gone = row["outcome"] == Outcome.GONE
        if self.last is not None and row.get("content_hash"):
            self.rows[row["_id"]] = {"content_hash": self.last.content_hash}
        else:
            self._keep(row)

    def add_unknown(self, row: Document) -> None:
        """Add a visit without a readable response: it is compared with no other visit."""
        self._keep(row)
        self.last, self._before_row, self._was_gone = None, row, False

    def add(self, row: Document, now: Content) -> None:
        """Add a visit with the content of its response."""
        before, values = self.last, dict[str, Any](content_hash=now.content_hash)
        if before is not None and self._before_row is not None and row["outcome"] != Outcome.NEW:
            changed = before.content_hash != now.content_hash
            if changed and not row["changed"] and row.get("reason") != RANDOM:
                contents = (before.content, now.content)
                old, new = ("\n".join(posts.as_lines(content)) for content in contents)
                size = diff_size(old, new) if is_quick(old, new) else estimated_diff_size(old, new)
                values |= {
                    "outcome": str(Outcome.CHANGED),
                    "changed": 1,
                    "event": True,
                    "news": True,
                }
                values |= {"diff_size": size, "reread": True, "reason": FOUND}
                self.added.append((self._before_row, row))
            elif row["changed"] and not changed:
                values |= {"outcome": str(Outcome.UNCHANGED), "changed": 0, "diff_size": 0}
                values |= {"event": self._was_gone, "news": self._was_gone, "reread": True}
                values["reason"] = FOUND
                self.removed.append(row)
        self.rows[row["_id"]] = values
        self.contents.setdefault(now.content_hash, (now, row))
        if before is None or before.content_hash != now.content_hash:
            self.changed = row
        self.last, self._before_row, self._was_gone = now, row, False

    def _keep(self, row: Document) -> None:
        if row.get("content_hash"):
            self.kept.setdefault(row["content_hash"], row)


async def restate(rows: list[Document], since: datetime | None, read: Read) -> Restatement:
    """Return the visits of an item with the contents of their responses.

    rows:  visits, oldest first
    since: only visits since this time; None: all

    A revisit record has the body of the last full record before it, which is read only once, and
    only if a visit since `since` needs it.
    """
    result = Restatement()
    record: Document | None = None
    body: Content | None = None
    is_read = True
    for row in rows:
        if row["outcome"] not in SEEN:
            result.add_failed(row)
            continue
        archived = row.get("archived")
        if archived is None or not archived.get("revisit"):
            record, body, is_read = (None if archived is None else row), None, archived is None
        is_included = since is None or row["at"] >= since
        if is_included and record is not None and not is_read:
            body, is_read = await read(record), True
        if is_included and body is not None:
            result.add(row, body)
        else:
            result.add_unknown(row)
    return result
