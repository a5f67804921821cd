"""Feeds: a reader of unread posts, the state of each feed, import, export and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, File, HTTPException, Query, Request, UploadFile
from pydantic import BaseModel, Field
from starlette.datastructures import UploadFile as SentFile
from starlette.responses import Response, StreamingResponse

from crawler.errors import Busy, ConfigError
from crawler.feeds.subscriptions import (
    MAX_FEED_CATEGORIES,
    TITLE_CHARACTERS,
    category_of,
    opml_lines,
    read_list,
    tidy,
)
from crawler.reports import feeds as report
from crawler.reports.feeds import (
    COMMAND,
    AddReport,
    FeedSelection,
    FeedState,
    Folder,
    FullPost,
    ImportReport,
    ReaderPost,
    RemovalReport,
    UnreadFeed,
    import_report,
    remove_feeds,
)
from crawler.storage import feed_reader as storage
from crawler.storage import feeds as subscriptions
from crawler.storage.store import Store
from crawler.utils.text import count
from crawler.web.auth import EditorDep, User, UserDep, for_viewers
from crawler.web.dependencies import NowDep, PaginationDep, StoreDep, Time, cursor_of
from crawler.web.pages import (
    Form,
    not_found,
    page,
    redirect,
    wants_fragment,
)
from crawler.web.site_views import start_first_run
from crawler.web.subprocesses import Subprocesses, add_feeds

router = APIRouter(prefix="/feeds")
api = APIRouter(prefix="/feeds", tags=["feeds"])
OPML_TYPE = "text/x-opml"
MAX_UPLOAD_BYTES = 8_000_000
UPLOADS = tuple((path, MAX_UPLOAD_BYTES) for path in ("/feeds/import", "/api/v1/feeds/import"))
MAX_KEY = 10_000
SHOWN_REFUSALS = 50
# Number of lines of an exported list that are sent together.
EXPORTED_LINES = 500
FeedKey = Annotated[str, Query(max_length=MAX_KEY, description="id of a feed: spider and URL")]
OneFeed = Annotated[
    str, Query(alias="id", max_length=MAX_KEY, description="id of a feed: spider and URL")
]
FolderName = Annotated[str, Query(max_length=500, description="folder of feeds")]
PostKey = Annotated[str, Query(alias="id", max_length=MAX_KEY, description="id of a post")]


class Choice:
    """The posts that a list shows."""

    def __init__(
        self,
        feed: FeedKey = "",
        folder: FolderName = "",
        every: Annotated[bool, Query(alias="all", description="also posts that are read")] = False,
    ) -> None:
        self.feed, self.folder, self.every = feed, folder, every


ChoiceDep = Annotated[Choice, Depends(Choice)]


class Posts(BaseModel):
    """A part of the posts of feeds, the newest first."""

    posts: list[ReaderPost]
    next: str | None = Field(description="cursor of the next page; null at the end")


class Feeds(BaseModel):
    """A part of the feeds, by URL."""

    feeds: list[FeedState]
    next: str | None = Field(description="cursor of the next page; null at the end")


class Unread(BaseModel):
    """Folders, and feeds with unread posts."""

    folders: list[Folder]
    feeds: list[UnreadFeed]


class NewFeed(BaseModel):
    """A feed to add."""

    url: str = Field(min_length=1, max_length=MAX_KEY, description="URL of a feed or of a page")
    title: str = Field("", max_length=TITLE_CHARACTERS, description="title; empty: of the feed")
    folder: str = Field("", max_length=200, description="folder, such as News/Local")
    every: bool = Field(False, description="add all feeds that the page links to")


class FeedNames(BaseModel):
    """What users can change about a feed."""

    title: str | None = Field(
        None, max_length=TITLE_CHARACTERS, description="title; null: the one in the document"
    )
    folders: list[Annotated[str, Field(max_length=500)]] = Field(
        [], max_length=MAX_FEED_CATEGORIES, description="folders, such as News/Local"
    )


class EditedFeed(FeedNames):
    """An edit of a feed."""

    before: FeedNames | None = Field(
        None,
        description="title and folders when the edit began: the edit is rejected (409) if the "
        "stored values differ; null: overwrite them",
    )


class OneFeedState(BaseModel):
    """A feed, and what users can change about it."""

    feed: FeedState = Field(description="state of the feed")
    names: FeedNames = Field(description="title and folders that users gave it")


class PostRead(BaseModel):
    """A post to mark as read or unread."""

    post: str = Field(max_length=MAX_KEY, description="id of the post")
    read: bool = Field(True, description="false: mark it as unread")


class AllRead(BaseModel):
    """Posts to mark as read."""

    feed: str = Field("", max_length=MAX_KEY, description="id of a feed; empty: no restriction")
    folder: str = Field("", max_length=500, description="folder; empty: no restriction")
    until: Time = Field(description="posts that were first seen later stay unread")


@router.get("", name="feeds.index")
async def index(
    request: Request,
    user: UserDep,
    store: StoreDep,
    now: NowDep,
    pagination: PaginationDep,
    choice: ChoiceDep,
    marked: Annotated[bool, Query(description="all were marked as read just now")] = False,
) -> Response:
    """Show unread posts of all feeds, of a folder, or of a feed."""
    reader = await storage.reader_of(store.db, user.name, now)
    selection = await _selection(store, choice.feed, choice.folder)
    posts, last = await report.newest_posts(
        store.db, selection, reader, pagination.limit, pagination.after, every=choice.every
    )
    response = page(
        request, "feeds/index.html", fragment="posts", posts=posts, next=cursor_of(last),
        pagination=pagination, selection=selection, every=choice.every, marked=marked,
        can_undo=reader.can_undo, folders=await report.folders(store.db),
        unread=await report.unread_feeds(store.db, reader), max_days=storage.MAX_DAYS,
        unfetched=0 if posts else await subscriptions.count_unfetched(store.db),
        service=await request.app.state.service.state(store.db),
    )  # fmt: skip
    if posts and wants_fragment(request):
        # The page was waiting for its first posts: it needs the folders, too.
        response.headers["HX-Refresh"] = "true"
    return response


@router.get("/post", name="feeds.post")
async def post_page(
    request: Request, user: UserDep, store: StoreDep, now: NowDep, key: PostKey
) -> Response:
    """Show a post with its text, near-duplicates and versions."""
    post = await post_api(request, user, store, now, key)
    return page(request, "feeds/post.html", post=post)


@router.post("/read", name="feeds.read")
@for_viewers
async def read(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Mark a post as read or unread for this reader."""
    form = await Form.read(request)
    new = form.parse(PostRead)
    if new is None:
        raise ConfigError("post not found. Reload the page")
    marked = await read_api(new, user, store, now)
    if wants_fragment(request):
        return page(request, "feeds/mark.html", fragment="mark", id=new.post, read=marked.read)
    return redirect(request, "feeds.post", {"id": new.post})


@router.post("/read-all", name="feeds.read_all")
@for_viewers
async def read_all(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Mark all posts of a feed, of a folder or of all feeds as read for this reader."""
    form = await Form.read(request)
    new = form.parse(AllRead)
    if new is None:
        raise ConfigError("Posts not marked as read: reload the page and try again")
    await read_all_api(new, user, store, now)
    shown = {"feed": new.feed, "folder": new.folder}
    here = {name: value for name, value in shown.items() if value}
    return redirect(request, "feeds.index", here | {"marked": "true"})


@router.post("/undo", name="feeds.undo")
@for_viewers
async def undo(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Undo the last mark of all posts."""
    form = await Form.read(request)
    await storage.undo(store.db, user.name)
    shown = {name: form[name] for name in ("feed", "folder") if form[name]}
    return redirect(request, "feeds.index", shown)


@router.get("/health", name="feeds.health")
async def health(
    request: Request, store: StoreDep, pagination: PaginationDep, folder: FolderName = "",
    attention: bool = False,
) -> Response:  # fmt: skip
    """Show the state of all feeds."""
    part = await feeds_api(store, pagination, folder, attention)
    return page(
        request, "feeds/health.html", fragment="feeds", feeds=part.feeds, next=part.next,
        pagination=pagination, folder=folder, attention=attention,
        folders=await report.folders(store.db),
        service=await request.app.state.service.state(store.db),
    )  # fmt: skip


@router.get("/feed", name="feeds.feed")
async def feed_page(request: Request, store: StoreDep, key: OneFeed) -> Response:
    """Show the state of a feed, and the form to edit it."""
    return await _feed_page(request, store, key)


@router.post("/edit", name="feeds.edit")
async def edit(request: Request, _: EditorDep, store: StoreDep) -> Response:
    """Set the title and folders of a feed, unless somebody has changed them in the meantime."""
    form = await Form.read(request)
    key = form["id"]
    await _feed(store, key)
    folders = _folders(form["folders"].splitlines())
    if len(folders) > MAX_FEED_CATEGORIES:
        form.reject("folders", f"At most {MAX_FEED_CATEGORIES} folders")
    before = form["title_before"] or None, _folders(form["folders_before"].splitlines())
    title = tidy(form["title"], TITLE_CHARACTERS) or None
    if form.is_valid and not await subscriptions.edit(store.db, key, title, folders, before):
        form.reject(
            "", "Someone else changed this feed in the meantime. Its current values are in the "
            "list of feeds; reload this page, or send the form again to overwrite them",
        )  # fmt: skip
        stored_title, stored_folders = await subscriptions.edited(store.db, key)
        form.values["title_before"] = stored_title or ""
        form.values["folders_before"] = "\n".join(stored_folders)
    if not form.is_valid:
        return await _feed_page(request, store, key, form, 422)
    request.state.audit = _in_words(key, title, folders)
    return redirect(request, "feeds.feed", {"id": key})


@router.get("/remove", name="feeds.remove")
async def confirm_removal(
    request: Request, _: EditorDep, store: StoreDep, now: NowDep, key: OneFeed
) -> Response:
    """Show what a removal deletes, and ask for confirmation."""
    feed = await _feed(store, key)
    removal = await _removal(store, key, now, delete=False)
    return page(request, "feeds/remove.html", feed=feed, id=key, removal=removal)


@router.post("/remove", name="feeds.do_remove")
async def remove(request: Request, _: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Remove a feed with its posts, versions and visits."""
    form = await Form.read(request)
    key = form["id"]
    await _feed(store, key)
    removal = await _removal(store, key, now, delete=True)
    request.state.audit = f"{key}: {count(removal['removed'].get('posts', 0), 'post')}"
    return redirect(request, "feeds.health")


@router.get("/add", name="feeds.add")
async def add_page(request: Request, _: EditorDep, store: StoreDep) -> Response:
    """Show the forms that add feeds."""
    return await _add_page(request, store)


@router.post("/add", name="feeds.do_add")
async def add(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Find the feed at a URL, and add it."""
    form = await Form.read(request)
    new, done = form.parse(NewFeed), None
    if new is not None:
        with form.rejecting("url", (Busy, ConfigError)):
            done = await add_api(request, new, user, store, now)
            for refused in done["refused"]:
                form.reject("url", refused["reason"])
    if not form.is_valid:
        return await _add_page(request, store, form=form, status=422)
    return await _add_page(request, store, done=done)


@router.post("/import", name="feeds.do_import")
async def import_(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Add the feeds of an OPML file or of a list of URLs."""
    form, done = Form(), None
    sent = await request.form()
    try:
        file = sent.get("file")
        if isinstance(file, SentFile) and file.filename:
            with form.rejecting("file"):
                done = await _import(request, user, store, file, now)
        else:
            form.reject("file", "Choose an OPML file, or a text file with one URL per line")
    finally:
        await sent.close()
    if done is None:
        return await _add_page(request, store, form=form, status=422)
    return await _add_page(request, store, imported=done)


@router.get("/export", name="feeds.export")
async def export(store: StoreDep, now: NowDep) -> Response:
    """Return all feeds as OPML."""
    feeds = await subscriptions.exported(store.db, COMMAND)
    headers = {"Content-Disposition": 'attachment; filename="freshet-feeds.opml"'}
    lines = opml_lines(feeds, f"Feeds of {COMMAND}", now)
    # Each part is made in a thread, and switching threads takes longer than making a line.
    parts = ("".join(some) for some in iter(lambda: list(islice(lines, EXPORTED_LINES)), []))
    return StreamingResponse(parts, headers=headers, media_type=f"{OPML_TYPE}; charset=utf-8")


@api.get("", name="feeds.api")
async def feeds_api(
    store: StoreDep, pagination: PaginationDep, folder: FolderName = "", attention: bool = False
) -> Feeds:
    """Return the state of the feeds, by URL."""
    feeds, last = await report.feeds_page(
        store.db, folder, pagination.limit, pagination.after, attention=attention
    )
    return Feeds(feeds=feeds, next=cursor_of(last))


@api.get("/posts", name="feeds.api_posts")
async def posts_api(
    user: UserDep, store: StoreDep, now: NowDep, pagination: PaginationDep, choice: ChoiceDep
) -> Posts:
    """Return unread posts, the newest first, with near-duplicates under their original."""
    reader = await storage.reader_of(store.db, user.name, now)
    selection = await _selection(store, choice.feed, choice.folder)
    posts, last = await report.newest_posts(
        store.db, selection, reader, pagination.limit, pagination.after, every=choice.every
    )
    return Posts(posts=posts, next=cursor_of(last))


@api.get("/unread", name="feeds.api_unread")
async def unread_api(user: UserDep, store: StoreDep, now: NowDep) -> Unread:
    """Return the folders, and the feeds with unread posts."""
    reader = await storage.reader_of(store.db, user.name, now)
    return Unread(
        folders=await report.folders(store.db), feeds=await report.unread_feeds(store.db, reader)
    )


@api.get("/post", name="feeds.api_post")
async def post_api(
    request: Request, user: UserDep, store: StoreDep, now: NowDep, key: PostKey
) -> FullPost:
    """Return a post with its text, near-duplicates and versions."""
    reader = await storage.reader_of(store.db, user.name, now)
    sandbox = Subprocesses.of(request.app).comparing
    post = await report.full_post(store.db, reader, key, sandbox)
    if post is None:
        raise not_found("Post")
    return post


@api.post("/read", name="feeds.api_read")
@for_viewers
async def read_api(new: PostRead, user: UserDep, store: StoreDep, now: NowDep) -> PostRead:
    """Mark a post as read or unread for this reader."""
    post = await report.feed_to_read(store.db, new.post)
    if new.read:
        await storage.mark_read(store.db, user.name, post, now)
        return new
    return PostRead(
        post=new.post, read=not await storage.mark_unread(store.db, user.name, post, now)
    )


@api.post("/read-all", name="feeds.api_read_all", status_code=204)
@for_viewers
async def read_all_api(new: AllRead, user: UserDep, store: StoreDep, now: NowDep) -> None:
    """Mark all posts of a feed, of a folder or of all feeds as read for this reader."""
    selection = await _selection(store, new.feed, new.folder)
    await storage.mark_all_read(store.db, user.name, selection.view, min(new.until, now))


@api.post("/undo", name="feeds.api_undo")
@for_viewers
async def undo_api(user: UserDep, store: StoreDep, now: NowDep) -> Unread:
    """Undo the last mark of all posts; 409 if there is none, or if another mark was made since."""
    if not await storage.undo(store.db, user.name):
        raise HTTPException(409, "There is no mark to undo")
    return await unread_api(user, store, now)


@api.post("", name="feeds.api_add")
async def add_api(
    request: Request, new: NewFeed, user: EditorDep, store: StoreDep, now: NowDep
) -> AddReport:
    """Find the feed at a URL, and add it."""
    folder = category_of(new.folder)
    done = await add_feeds(
        store.config, COMMAND, new.url.strip(), title=tidy(new.title, TITLE_CHARACTERS),
        categories=[folder] if folder else [], every=new.every,
        settings=request.app.state.options.settings,
    )  # fmt: skip
    request.state.audit = f"{new.url}: {done['added']} added"
    if done["added"]:
        await start_first_run(request.app, store, now, COMMAND, user.name)
    return done


@api.get("/feed", name="feeds.api_feed")
async def feed_api(store: StoreDep, key: OneFeed) -> OneFeedState:
    """Return the state of a feed, and what users can change about it."""
    title, folders = await subscriptions.edited(store.db, key)
    return OneFeedState(
        feed=await _feed(store, key),
        names=FeedNames(title=title, folders=folders),
    )


@api.put("/feed", name="feeds.api_edit")
async def edit_api(
    request: Request, new: EditedFeed, _: EditorDep, store: StoreDep, key: OneFeed
) -> OneFeedState:
    """Set the title and folders of a feed."""
    await _feed(store, key)
    title, folders = tidy(new.title or "", TITLE_CHARACTERS) or None, _folders(new.folders)
    stored = await subscriptions.edited(store.db, key)
    before = (new.before.title, _folders(new.before.folders)) if new.before else stored
    if not await subscriptions.edit(store.db, key, title, folders, before):
        raise Busy("someone else changed this feed in the meantime. Read it again")
    request.state.audit = _in_words(key, title, folders)
    return await feed_api(store, key)


@api.delete("", name="feeds.api_remove")
async def remove_api(
    request: Request, _: EditorDep, store: StoreDep, now: NowDep, key: OneFeed,
    dry_run: Annotated[bool, Query(description="only count what a removal deletes")] = False,
) -> RemovalReport:  # fmt: skip
    """Remove a feed with its posts, versions and visits."""
    await _feed(store, key)
    request.state.audit = f"{key} (dry run)" if dry_run else key
    return await _removal(store, key, now, delete=not dry_run)


@api.post("/import", name="feeds.api_import")
async def import_api(
    request: Request, user: EditorDep, store: StoreDep, now: NowDep,
    file: Annotated[UploadFile, File(description="OPML, or a text with one URL per line")],
) -> ImportReport:  # fmt: skip
    """Add the feeds of an OPML file or of a list of URLs."""
    return await _import(request, user, store, file, now)


@api.get(
    "/export", name="feeds.api_export", response_class=StreamingResponse,
    responses={200: {"content": {OPML_TYPE: {"schema": {"type": "string"}}}}},
)  # fmt: skip
async def export_api(store: StoreDep, now: NowDep) -> Response:
    """Return all feeds as OPML."""
    return await export(store, now)


async def _selection(store: Store, feed: str, folder: str) -> FeedSelection:
    selection = await report.selection_of(store.db, feed, folder)
    if selection is None:
        raise not_found("Feed" if feed else "Folder")
    return selection


async def _feed(store: Store, key: str) -> FeedState:
    feed = await report.feed_state(store.db, key)
    if feed is None:
        raise not_found("Feed")
    return feed


async def _feed_page(
    request: Request, store: Store, key: str, form: Form | None = None, status: int = 200
) -> Response:
    feed = await _feed(store, key)
    if form is None:
        title, folders = await subscriptions.edited(store.db, key)
        lines = "\n".join(folders)
        form = Form.of(
            {"title": title, "folders": lines, "title_before": title, "folders_before": lines}
        )
    service = await request.app.state.service.state(store.db)
    return page(
        request, "feeds/feed.html", status=status, feed=feed, id=key, form=form, service=service
    )


async def _add_page(
    request: Request, store: Store, *, status: int = 200, form: Form | None = None, **done: Any
) -> Response:
    values = {"done": None, "imported": None, "shown": SHOWN_REFUSALS} | done
    return page(
        request, "feeds/add.html", status=status, form=form or Form(),
        folders=await report.folders(store.db), max_bytes=MAX_UPLOAD_BYTES,
        service=await request.app.state.service.state(store.db), **values,
    )  # fmt: skip


async def _import(
    request: Request, user: User, store: Store, file: SentFile, now: datetime
) -> ImportReport:
    name = (file.filename or "file")[:200]
    # Reading a long list takes seconds.
    feed_list = await asyncio.to_thread(read_list, file.file, name, store.config)
    stored = await subscriptions.add(store.db, COMMAND, feed_list.feeds, now)
    request.state.audit = f"{name}: {stored.added} added"
    if stored.added:
        await start_first_run(request.app, store, now, COMMAND, user.name)
    return import_report(feed_list, stored)


def _in_words(key: str, title: str | None, folders: Sequence[str]) -> str:
    """Return the description of an edit for the audit list."""
    return f"{key}: {title or 'own title'}, {', '.join(folders) or 'no folder'}"


async def _removal(store: Store, key: str, now: datetime, *, delete: bool) -> RemovalReport:
    spider, _, url = key.partition(" ")
    return await remove_feeds(store.db, store.config, spider, [url], now, delete=delete)


def _folders(lines: Sequence[str]) -> list[str]:
    """Return folders as they are stored, each once."""
    names = (category_of(line) for line in lines)
    return list(dict.fromkeys(name for name in names if name))
