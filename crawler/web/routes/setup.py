"""Adding and editing sites: patterns and fields, with previews of their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from itertools import count as count_from
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import HTMLResponse, Response

from crawler.errors import Busy, ConfigError, FreshetError, first_problem
from crawler.extract.fields import FieldType
from crawler.extract.notification_rules import Rule
from crawler.extract.stored_definition import edited_toml, toml_of, without_secrets
from crawler.reports import site_setup
from crawler.reports.notifications import Defined
from crawler.reports.site_draft import Found
from crawler.reports.site_setup import (
    PATTERN_KEYS,
    SAMPLE_PAGES,
    SINGLE_KEYS,
    ChosenField,
    DefinitionEdit,
    Matches,
)
from crawler.storage import sites, targets
from crawler.storage.sites import Editable
from crawler.storage.store import Store
from crawler.utils.text import count, without_surrogates
from crawler.web import rule_sentences, site_views
from crawler.web.auth import EditorDep, User, UserDep
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.middleware import CONTENT_POLICY
from crawler.web.pages import Form, not_found, page, redirect, static_path
from crawler.web.service import ServiceState
from crawler.web.site_pages import SampleValues, SitePages

router = APIRouter()
api = APIRouter(prefix="/setup", tags=["setup"])
MAX_URL = 2000
FIELD_INPUTS = ("field_name", "field_selector", "field_language", "field_type")
# The form embeds a frame with a fetched page, which must load nothing but a style sheet.
EDITOR_POLICY = f"{CONTENT_POLICY}; frame-src 'self'"
FRAME_POLICY = (
    "default-src 'none'; style-src 'self'; frame-ancestors 'self'; form-action 'none'; "
    "base-uri 'none'; sandbox allow-same-origin"
)
Url = Annotated[str, Query(max_length=MAX_URL)]


def _pages(request: Request) -> SitePages:
    pages: SitePages = request.app.state.site_pages
    return pages


@router.get("/setup", name="setup.index")
async def index(request: Request, store: StoreDep) -> Response:
    """Ask for the URL of a new site, and list the sites that can be edited."""
    return await _index(request, store, Form())


async def _index(request: Request, store: Store, form: Form, status: int = 200) -> Response:
    names = await sites.editable_names(store.db)
    return page(request, "setup/index.html", status=status, form=form, names=names)


@router.post("/setup", name="setup.start")
async def start(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Fetch a site's first pages, and continue with its patterns."""
    form = await Form.read(request)
    try:
        request.state.audit = f"fetch {form['url']}"
        url, problem = await _pages(request).explore(form["url"])
    except FreshetError as error:
        problem = str(error)
    if problem is not None:
        form.reject("url", problem)
        return await _index(request, store, form, 422)
    return redirect(request, "setup.new", {"url": url})


@router.get("/setup/new", name="setup.new")
async def new(request: Request, store: StoreDep, url: Url) -> Response:
    """Show the form of a new site, with proposed patterns."""
    if _pages(request).get(url) is None:
        form = Form.of({"url": url})
        form.reject("url", "The fetched pages have expired after an hour. Fetch them again")
        return await _index(request, store, form)
    edit, found = await _pages(request).draft(url)
    edit.name = await _free_name(request, store, edit.name)
    return await _editor(request, store, edit, None, Form(), notes=_Notes(found=found))


@router.get("/setup/copy/{name}", name="setup.copy")
async def copy_site(request: Request, store: StoreDep, name: str) -> Response:
    """Show the form of a new site with the definition of another one."""
    copied = _copy_of(await _editable(store, name))
    edit = DefinitionEdit.of(copied.values)
    edit.name = await _free_name(request, store, name)
    return await _editor(request, store, edit, copied, Form.of({"copy_of": name}))


def _copy_of(editable: Editable) -> Editable:
    """Return a definition as the base of a new one: it replaces none, and has no file."""
    return replace(editable, digest="", path=None, text="")


@router.get("/setup/sites/{name}", name="setup.edit")
async def edit_site(request: Request, store: StoreDep, name: str, saved: bool = False) -> Response:
    """Show the form of an existing site."""
    editable = await _editable(store, name)
    edit = DefinitionEdit.of(editable.values)
    service = await request.app.state.service.state(store.db) if saved else None
    return await _editor(request, store, edit, editable, Form(), notes=_Notes(saved=service))


async def _free_name(request: Request, store: Store, name: str) -> str:
    """Return the name of a new site: `name`, with a number if another site has it."""
    taken = set(await sites.editable_names(store.db)) | request.app.state.spider_names
    return next(
        each for n in count_from(1) if (each := f"{name}-{n}" if n > 1 else name) not in taken
    )


async def _editable(store: Store, name: str) -> Editable:
    if (editable := await sites.find_editable(store.db, name)) is None:
        raise not_found(f"Site definition {name[:64]!r}")
    return editable


class _Notes(NamedTuple):
    """What is said above the form.

    saved: state of the service after the definition was saved; None: it was not
    found: what was found on a new site; None: nothing is said
    """

    saved: ServiceState | None = None
    found: Found | None = None


NO_NOTES = _Notes()


async def _editor(
    request: Request, store: Store, edit: DefinitionEdit, editable: Editable | None, form: Form,
    status: int = 200, notes: _Notes = NO_NOTES,
) -> Response:  # fmt: skip
    """Show the form with its previews.

    editable: the definition that is edited or copied; None: a new one
    """
    pages = _pages(request)
    # The digest of the definition when the user began to edit it.
    digest = form.values.get("digest", editable.digest if editable else "")
    crawl = request.app.state.crawls.of(edit.name) if notes.saved else None
    titles = await sites.titles(store.db, [edit.name])
    response = page(
        request, "setup/editor.html", status=status, editable=editable, form=form,
        proposals=await pages.proposals(edit.start_urls), digest=digest, saved=notes.saved,
        is_crawled=crawl is not None and crawl.code is None, found=notes.found, name=edit.name,
        types=list(FieldType), **await _alerts(store),
        sitemaps=pages.sitemaps(edit.start_urls),
        is_new=not digest, shown_name=titles.get(edit.name, edit.name),
        **await _results(request, edit, editable),
    )  # fmt: skip
    response.headers["Content-Security-Policy"] = EDITOR_POLICY
    return response


async def _results(
    request: Request, edit: DefinitionEdit, editable: Editable | None, chosen: str = "",
    problems: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what the patterns and fields of an edit select, and the definition as TOML.

    chosen:   URL of the sample page to show first
    problems: why pages could not be fetched, by URL
    """
    pages, base = _pages(request), editable.values if editable else None
    matches = site_setup.matches(edit, base, pages.links(edit.start_urls))
    return {
        "edit": edit, "matches": matches, "toml": _toml(edit, editable),
        "failed": {url: text for url, text in (problems or {}).items() if text},
        **await pages.samples(edit, base, matches["items"], chosen),
    }  # fmt: skip


def _toml(edit: DefinitionEdit, editable: Editable | None) -> str:
    """Return the definition as TOML, without possible secrets: viewers see it, too."""
    try:
        values = without_secrets(edit.values(editable.values if editable else None))
    except FreshetError:
        return ""
    return edited_toml(editable.text, values) if editable and editable.text else toml_of(values)


@router.get("/setup/alert", name="setup.alert")
async def alert(request: Request, store: StoreDep) -> Response:
    """Show the sentence about who is told of the changes of a new site."""
    return page(request, "setup/alert.html", form=Form(), **await _alerts(store))


async def _alerts(store: Store) -> dict[str, Any]:
    defined = await Defined.read(store.db, store.config.notify_file)
    return {"what": rule_sentences.WHAT, "channels": sorted(defined.channels)}


@router.get("/setup/preview", name="setup.preview")
async def preview(request: Request, store: StoreDep) -> Response:
    """Show what the patterns and fields of the form select, without saving it."""
    form = Form.of_items(request.query_params.multi_items())
    edit, editable = await _edit_of(store, form)
    results = await _results(request, edit, editable, form["sample"])
    return page(request, "setup/results.html", **results)


@router.post("/setup/pages", name="setup.pages")
async def more_pages(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Fetch pages for the previews: items for the fields, or lists for more links."""
    form = await Form.read(request)
    edit, editable = await _edit_of(store, form)
    if not form.is_valid:
        raise HTTPException(422, next(iter(form.problems.values())))
    base = editable.values if editable else None
    problems = await _pages(request).fetch_more(edit, base, lists=form["more"] == "lists")
    request.state.audit = f"fetch {count(len(problems), 'page')} for {edit.name}"
    results = await _results(request, edit, editable, form["sample"], problems)
    return page(request, "setup/results.html", **results)


@router.get("/setup/frame", name="setup.frame")
async def frame(request: Request, url: Url) -> Response:
    """Show a fetched page without scripts and external files, for clicks on its elements."""
    pages = _pages(request)
    if (cached := pages.get(url)) is None:
        raise not_found("Fetched page")
    shown = await pages.read(partial(site_setup.shown_page, cached.html, cached.final_url))
    style = static_path(request, "setup-frame.css")
    text = (
        '<!DOCTYPE html><html lang=""><head><meta charset="utf-8"><title>Page</title>'
        f'<link rel="stylesheet" href="{style}"></head><body>{shown}</body></html>'
    )
    headers = {"Content-Security-Policy": FRAME_POLICY, "X-Frame-Options": "SAMEORIGIN"}
    return HTMLResponse(without_surrogates(text), headers=headers)


@router.post("/setup/sites", name="setup.save")
async def save(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Save the definition of a new site or an edit."""
    form = await Form.read(request)
    edit, editable = await _edit_of(store, form)
    request.state.audit = f"site definition {edit.name}"
    status = 422
    try:
        if form.is_valid:
            rule = await _rule_of(store, form, edit.name)
            await _save(request, user, store, edit, editable, form["digest"], now)
            if rule is not None:
                await rule_sentences.add(store, rule, user.name, now)
    except Busy as error:
        form.reject("", error)
        status = 409
    except FreshetError as error:
        _reject(form, str(error))
    if form.is_valid:
        if not form["digest"]:
            return redirect(request, "sites.index", {"added": "true"}, name=edit.name)
        return redirect(request, "setup.edit", {"saved": "true"}, name=edit.name)
    return await _editor(request, store, edit, editable, form, status)


async def _rule_of(store: Store, form: Form, site: str) -> Rule | None:
    """Return the alert that is wanted for a new site; None without a channel."""
    if not form["alert_channel"]:
        return None
    said = {key: form[f"alert_{key}"] for key in ("what", "percent", "channel")}
    try:
        return await rule_sentences.said(store, said | {"site": site})
    except ConfigError as error:
        raise ConfigError(f"alert: {str(error).partition(': ')[2] or error}") from None


async def _save(
    request: Request, user: User, store: Store, edit: DefinitionEdit, editable: Editable | None,
    digest: str, now: datetime,
) -> None:  # fmt: skip
    base = editable.values if editable else None
    pages = _pages(request)
    wrapper = site_setup.checked(edit, base, pages.config)
    values = edit.values(base)
    if digest:
        if editable is None or editable.digest != digest:
            raise Busy(sites.CHANGED.format(edit.name))
        await sites.replace(store.db, editable, values, edited_toml, now)
    elif edit.name in request.app.state.spider_names:
        raise Busy(f"{edit.name}: a spider has this name")
    else:
        await sites.create(store.db, wrapper, values, now)
        # A site with targets is crawled by services.
        await targets.ensure_starts(store.db, wrapper.name, wrapper.start_matches, now, now)
        await site_views.start_first_run(request.app, store, now, edit.name, user.name)


def _reject(form: Form, problem: str) -> None:
    """Record a problem for the form field that it names, without the name of the site."""
    parts = problem.split(": ", 2)
    for place, part in enumerate(parts[:-1]):
        key = part.split(".")[0]
        key = "user_agent" if key == "headers" else key
        if key in DefinitionEdit.model_fields or key == "alert":
            form.reject(key, ": ".join(parts[place:]))
            return
    form.reject("", problem)


async def _edit_of(store: Store, form: Form) -> tuple[DefinitionEdit, Editable | None]:
    """Return the values of a form, and the definition that it edits or copies; None without one.

    Problems of single values are recorded, and these values are left out. Raises HTTPException if
    the values are too long.
    """
    lines = {
        key: [line.strip() for line in form[key].splitlines() if line.strip()]
        for key in ("start_urls", *PATTERN_KEYS)
    }
    rows = zip(*(form.lists.get(name, []) for name in FIELD_INPUTS), strict=False)
    fields = [
        {"name": name.strip(), "selector": selector.strip(), "language": language, "type": kind}
        for name, selector, language, kind in rows
        if name.strip() or selector.strip()
    ]
    single: dict[str, Any] = {
        key: form[key].strip() or None for key in SINGLE_KEYS if key in form.values
    }
    if "category" in form.values:
        value = form["category"].strip()
        single["category"] = {"by": form["category_by"], "value": value} if value else None
    usual = {"name": form["name"].strip(), "timezone": form["timezone"].strip() or "UTC"}
    while True:
        try:
            edit = DefinitionEdit.model_validate({**usual, "fields": fields, **lines, **single})
            break
        except ValidationError as error:
            key, cause = first_problem(error)
            key = key.partition(".")[0]
            form.reject(key, f"{key}: {cause}")
            if key not in single:
                raise HTTPException(422, next(iter(form.problems.values()))) from None
            del single[key]
    if form["digest"]:
        return edit, await sites.find_editable(store.db, form["name"])
    return edit, _copy_of(await _editable(store, form["copy_of"])) if form["copy_of"] else None


class NewSite(BaseModel):
    """The URL of a new site."""

    url: str = Field(max_length=MAX_URL, description="URL of a page of the site")


class ProposedPattern(BaseModel):
    """A pattern that could select the list or the item pages of a site."""

    pattern: str = Field(description="regular expression for URLs")
    exclude: str | None = Field(description="pattern of URLs to exclude; null: none")
    reason: str = Field(description="why it is proposed")
    urls: list[str] = Field(description="known URLs that it matches")
    names: list[str] = Field(description="texts of links to them, at most 12")
    leads: list[str] = Field(description="patterns of items that fetched pages of a list link to")


class ProposedPatterns(BaseModel):
    """Proposed patterns, the most likely ones first."""

    lists: list[ProposedPattern] = Field(description="for `list_pages`")
    items: list[ProposedPattern] = Field(description="for `item_pages`")
    sitemaps: list[str] = Field(description="sitemaps in robots.txt, for `start_urls`")
    found: Found = Field(description="what was found on the fetched pages")
    draft: DefinitionEdit = Field(description="a definition with the most likely ones, to be saved")


class StoredDefinition(BaseModel):
    """A site definition with its digest."""

    definition: DefinitionEdit = Field(description="the keys that can be edited")
    digest: str = Field(description="to be sent with an edit, so that no other edit gets lost")
    toml: str = Field(description="the whole definition as TOML; literal secrets are `***`")


class SavedDefinition(BaseModel):
    """An edit of a site definition."""

    definition: DefinitionEdit
    digest: str = Field(
        default="", max_length=100, description="digest of the edited one; empty: new site"
    )


class SampleRequest(SavedDefinition):
    """Pages to fetch for the previews of a definition."""

    more: Literal["items", "lists"] = Field(
        "items", description="`items`: pages that show the values of fields; `lists`: unread list "
        "pages, for more links"
    )  # fmt: skip


class SamplePages(BaseModel):
    """Pages that were fetched for previews."""

    pages: list[str] = Field(description="URLs of the pages that can be read")
    problems: dict[str, str] = Field(description="why the others cannot be read, by URL")


class DefinitionNames(BaseModel):
    """The sites that can be edited."""

    names: list[str] = Field(description="names, in order")


@api.post("/proposals", name="setup.api_proposals")
async def api_proposals(request: Request, user: EditorDep, given: NewSite) -> ProposedPatterns:
    """Fetch a few pages of a site, and return patterns for its list and item pages."""
    pages = _pages(request)
    url, problem = await pages.explore(given.url)
    if problem is not None:
        raise HTTPException(422, problem)
    proposals = await pages.proposals([url])
    draft, found = await pages.draft(url)
    return ProposedPatterns(
        lists=[ProposedPattern(**asdict(each)) for each in proposals.lists],
        items=[ProposedPattern(**asdict(each)) for each in proposals.items],
        sitemaps=pages.sitemaps([url]), found=found, draft=draft,
    )  # fmt: skip


@api.post("/matches", name="setup.api_matches")
async def api_matches(request: Request, user: EditorDep, definition: DefinitionEdit) -> Matches:
    """Return what patterns select among the links of the fetched pages."""
    return site_setup.matches(definition, None, _pages(request).links(definition.start_urls))


@api.post("/pages", name="setup.api_pages")
async def api_pages(
    request: Request, user: EditorDep, store: StoreDep, given: SampleRequest
) -> SamplePages:
    """Fetch start pages if necessary, and up to six pages for previews; keep them for an hour."""
    name = given.definition.name
    editable = await sites.find_editable(store.db, name) if given.digest else None
    problems = await _pages(request).fetch_more(
        given.definition, editable.values if editable else None, lists=given.more == "lists"
    )
    request.state.audit = f"fetch {count(len(problems), 'page')} for {name}"
    return SamplePages(
        pages=[url for url, problem in problems.items() if problem is None],
        problems={url: problem for url, problem in problems.items() if problem is not None},
    )


@api.post("/values", name="setup.api_values")
async def api_values(
    request: Request, user: EditorDep, store: StoreDep, given: SavedDefinition
) -> SampleValues:
    """Return the values of fields on fetched item pages; fetches nothing."""
    pages, edit = _pages(request), given.definition
    editable = await sites.find_editable(store.db, edit.name) if given.digest else None
    base = editable.values if editable else None
    items = site_setup.matches(edit, base, pages.links(edit.start_urls))["items"]
    return await pages.samples(edit, base, items)


@api.get("/selector", name="setup.api_selector")
async def api_selector(
    request: Request,
    user: UserDep,
    url: Url,
    number: Annotated[int, Query(ge=0, le=1_000_000, description="`data-n` of the element")],
    sample: Annotated[list[str], Query(max_length=SAMPLE_PAGES)] = [],  # noqa: B006
) -> ChosenField:
    """Return a selector for an element of a fetched page that also fits other fetched pages."""
    pages = _pages(request)
    cached = [entry for each in dict.fromkeys((url, *sample)) if (entry := pages.get(each))]
    if not cached or cached[0].url != url:
        raise not_found("Fetched page")
    texts = [(entry.html, entry.final_url) for entry in cached]
    field = await pages.read(partial(site_setup.field_at, number, texts))
    if field is None:
        raise not_found("Element")
    return field


@api.get("/sites", name="setup.api_sites")
async def api_sites(store: StoreDep) -> DefinitionNames:
    """Return the names of the sites that can be edited."""
    return DefinitionNames(names=await sites.editable_names(store.db))


@api.get("/sites/{name}", name="setup.api_site")
async def api_site(store: StoreDep, name: str) -> StoredDefinition:
    """Return a site definition."""
    editable = await _editable(store, name)
    edit = DefinitionEdit.of(editable.values)
    return StoredDefinition(definition=edit, digest=editable.digest, toml=_toml(edit, editable))


@api.put("/sites/{name}", name="setup.api_save")
async def api_save(
    request: Request, user: EditorDep, store: StoreDep, now: NowDep, name: str,
    given: SavedDefinition,
) -> StoredDefinition:  # fmt: skip
    """Store a new site definition, or replace an unchanged one (409 if it was changed)."""
    if given.definition.name != name:
        raise HTTPException(422, "definition.name: differs from the name in the path")
    editable = await sites.find_editable(store.db, name) if given.digest else None
    await _save(request, user, store, given.definition, editable, given.digest, now)
    return await api_site(store, name)
