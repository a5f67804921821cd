"""Renders the pages of the web app, their forms, the fragments that htmx requests, and errors.

A form that is rejected is shown again with all values, and each problem next to its field.

Errors are a page for browsers, an alert for htmx, and problem JSON (RFC 9457) for the API.

The template filters format times, numbers and links, and are safe for untrusted text: templates
escape all text, and text longer than MAX_CHARACTERS is cut before it is printed, because the title
of a page may be a megabyte long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Scope

from crawler.errors import Busy, ConfigError, FreshetError, StorageError, cause_of
from crawler.extract.item_values import difference_of, percent_of
from crawler.utils.text import (
    amount,
    count,
    day,
    documents,
    megabytes,
    plain,
    price,
    signed_percent,
    span,
    without_surrogates,
)
from crawler.utils.time import NEVER, iso, time_in
from crawler.utils.urls import target_id
from crawler.web.auth import (
    CSRF_FIELD,
    SignInRequired,
    csrf_token,
    is_for_programs,
    local_path,
    own_origin,
    set_guest_cookie,
)

Model = TypeVar("Model", bound=BaseModel)
MAX_CHARACTERS = 2000
MAX_FIELDS = 1000
# Smaller sizes are shown in kB: in MB, they would be 0.0.
MIN_MEGABYTES_BYTES = 1024**2
# Values of these fields are not sent back to the browser.
SECRET = "password"
ELLIPSIS = "…"
LINKED = ("http", "https")
NOTHING = Markup('<span class="none">\N{EN DASH}</span>')
FOLDER = Path(__file__).resolve().parent
TEMPLATES, STATIC = FOLDER / "templates", FOLDER / "static"
DIGEST_CHARACTERS = 12
WEEK_SECONDS = 7 * 86_400
RETRY_SECONDS = "5"
# Details of HTTPExceptions that were raised without a detail: the phrases of the statuses.
USUAL = {status.phrase for status in HTTPStatus}
ADVICE = {
    404: "Check the address",
    405: "This address does not support the method of the request",
    413: "The data that was sent is too large",
}


def cut(value: Any, characters: int = MAX_CHARACTERS) -> Any:
    """Return a text cut to a number of characters; other values, and markup, unchanged.

    Lone surrogates, which cannot be encoded, become replacement characters.
    """
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    text = value if len(value) <= characters else value[: characters - 1] + ELLIPSIS
    return without_surrogates(text)


def shown(value: Any) -> Any:
    """Return a value as templates print it: nothing for None, long texts cut."""
    return "" if value is None else cut(value)


def time_of(at: datetime | None) -> Markup:
    """Return a time in UTC, which a script converts to the reader's zone; a dash for None."""
    if at is None:
        return NOTHING
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        iso(at), f"{utc:%Y-%m-%d %H:%M:%S} UTC", f"{day(utc)}, {utc:%H:%M} UTC"
    )


def ago(at: datetime | None, now: datetime) -> Markup:
    """Return a time relative to now, such as `3 h ago` or `in 5 min`, or a date over a week ago.

    A script converts the date to the reader's zone. None and NEVER are a dash.
    """
    if at is None or at >= NEVER:
        return NOTHING
    seconds = (now - at).total_seconds()
    shown = span(abs(seconds), is_exact=False)
    utc = at.astimezone(UTC)
    form, text = "relative", f"{shown} ago" if seconds >= 0 else f"in {shown}"
    if seconds > WEEK_SECONDS:
        form, text = "day", day(utc)
    return Markup('<time datetime="{}" title="{}" data-{}>{}</time>').format(
        iso(at), f"{utc:%Y-%m-%d %H:%M:%S} UTC", form, text
    )


def dated(text: str) -> str | Markup:
    """Return a value of an item as people read it: an ISO date as `20 Nov 2026`, others as is."""
    at = time_in(text)
    if at is None:
        return text
    if isinstance(at, datetime):
        return time_of(at)
    return Markup('<time datetime="{0}" title="{0}" data-date>{1}</time>').format(
        at.isoformat(), day(at)
    )


def clock(at: datetime) -> Markup:
    """Return the time of day in UTC, which a script converts to the reader's zone."""
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}" title="{}" data-clock>{}</time>').format(
        iso(at), f"{utc:%Y-%m-%d %H:%M:%S} UTC", f"{utc:%H:%M}"
    )


def number(value: float | None) -> str | Markup:
    """Return a number with thousands separators; a dash for None."""
    return NOTHING if value is None else amount(value)


def utc(at: datetime) -> str:
    """Return a time in UTC as text, for attributes."""
    at = at.astimezone(UTC)
    return f"{day(at)}, {at:%H:%M} UTC"


def exact(value: float) -> str:
    """Return a number with up to ten digits."""
    return f"{value:,.10g}"


def percent(share: float | None) -> str | Markup:
    """Return a share between 0 and 1 in percent; a dash for None."""
    return NOTHING if share is None else f"{share:.1%}".replace("%", " %")


def size(value: float | None) -> str | Markup:
    """Return a number of bytes in MB, a small one in kB; a dash for None."""
    if value is None:
        return NOTHING
    return megabytes(value) if value >= MIN_MEGABYTES_BYTES else f"{value / 1024:.0f} kB"


def is_linked(url: Any) -> bool:
    """Return whether an untrusted URL may be a link: http and https, but not `javascript:`."""
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
    except ValueError:
        return False
    return parts is not None and parts.scheme in LINKED and bool(parts.netloc)


def outside(url: Any, text: Any = None) -> Markup:
    """Return an untrusted URL as a link, or as text if it is too long or not http or https.

    text: shown instead of the URL
    """
    label = cut(str(url if text in (None, "") else text))
    if not is_linked(url) or len(url) > MAX_CHARACTERS:
        return Markup('<bdi class="outside">{}</bdi>').format(label)
    return Markup(
        '<a class="outside" href="{}" rel="noopener noreferrer nofollow" target="_blank">'
        "<bdi>{}</bdi></a>"
    ).format(cut(url), label)


def link_out(url: Any, name: str) -> Markup:
    """Return a small link to an untrusted URL; nothing if the URL cannot be a link.

    name: of what the URL shows, for screen readers
    """
    if not is_linked(url) or len(url) > MAX_CHARACTERS:
        return Markup("")
    return Markup(
        '<a class="out" href="{}" rel="noopener noreferrer nofollow" target="_blank" '
        'title="Open the page on its site">\N{NORTH EAST ARROW}'
        '<span class="hidden"> page of {} on its site</span></a>'
    ).format(cut(url), cut(name, 200))


def with_unit(value: float, unit: str | None) -> str:
    """Return a number with its currency, such as `£289.90`; unit: None for other numbers."""
    return price({"amount": value, "currency": unit}) if unit else exact(value)


def long_text(text: str) -> Markup:
    """Return an untrusted text, escaped but not cut; its caller has limited its length."""
    return escape(without_surrogates(text))


def whole(text: str) -> Markup:
    """Return a text of the app itself, escaped but not cut; never use it for untrusted text."""
    return escape(text)


FILTERS = {
    "ago": ago, "clock": clock, "count": count, "cut": cut, "dated": dated,
    "difference": difference_of, "documents": documents, "exact": exact,
    "link_out": link_out, "long_text": long_text,
    "number": number, "outside": outside, "percent": percent, "percent_of": percent_of,
    "plain": plain, "signed_percent": signed_percent, "size": size, "span": span,
    "target_id": target_id, "time": time_of, "utc": utc, "whole": whole, "with_unit": with_unit,
}  # fmt: skip


@dataclass(slots=True)
class Form:
    """The values of a form, and its problems.

    values:   first value by field
    lists:    all values by field, for checkboxes and multiple choices
    problems: message by field; the empty field stands for the whole form
    """

    values: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def read(cls, request: Request) -> Self:
        """Read the fields that a browser sent; files are left out."""
        return cls.of_items((await request.form(max_fields=MAX_FIELDS)).multi_items())

    @classmethod
    def of_items(cls, items: Iterable[tuple[str, Any]]) -> Self:
        """Return a form with these names and values, such as those of a query."""
        form = cls()
        for name, value in items:
            if isinstance(value, str):
                form.values.setdefault(name, value)
                form.lists.setdefault(name, []).append(value)
        return form

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return a form filled with the current values."""
        texts = {name: "" if value is None else str(value) for name, value in values.items()}
        return cls(texts, {name: [text] for name, text in texts.items()})

    def __getitem__(self, name: str) -> str:
        """Return the value of a field, empty without one; never a password."""
        return "" if SECRET in name else self.values.get(name, "")

    def secret(self, name: str) -> str:
        """Return the value of a field with a password."""
        return self.values.get(name, "")

    def reject(self, name: str, problem: object) -> None:
        """Record a problem of a field, or of the whole form if the name is empty."""
        self.problems.setdefault(name, str(problem))

    @contextmanager
    def rejecting(
        self, name: str, expected: type[Exception] | tuple[type[Exception], ...] = ConfigError
    ) -> Iterator[None]:
        """Record an expected error of the block as a problem of a field, instead of raising it."""
        try:
            yield
        except expected as error:
            self.reject(name, error)

    def reject_values(self, error: ValidationError) -> None:
        """Record the problems of a model that does not accept the values."""
        for each in error.errors(include_url=False):
            self.reject(str(each["loc"][0]) if each["loc"] else "", cause_of(each))

    @property
    def is_valid(self) -> bool:
        """Return whether no problem was recorded."""
        return not self.problems

    def parse(self, model: type[Model]) -> Model | None:
        """Return the values as a model; None, with the problems recorded, if they do not fit.

        Fields of the model that are lists get all values of the field.
        """
        given: dict[str, Any] = {}
        for name, info in model.model_fields.items():
            if name in self.values:
                is_list = "list" in str(info.annotation) or "tuple" in str(info.annotation)
                given[name] = self.lists[name] if is_list else self.values[name]
        try:
            return model.model_validate(given)
        except ValidationError as error:
            self.reject_values(error)
            return None


@cache
def environment() -> Environment:
    """Return the environment of all templates of the app."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= FILTERS
    return made


def page(
    request: Request,
    template: str,
    *,
    fragment: str | None = None,
    status: int = 200,
    **context: Any,
) -> HTMLResponse:
    """Render a template.

    fragment: block of the template to send if htmx requests a part of the page
    context:  variables of the template, in addition to those of `_context`
    """
    loaded = environment().get_template(template)
    values = _context(request) | context
    values["ui"] = environment().get_template("macros.html").make_module(values)
    if fragment is not None and wants_fragment(request):
        made = loaded.new_context(values)
        text = environment().concat(loaded.blocks[fragment](made))
    else:
        text = loaded.render(values)
    response = HTMLResponse(without_surrogates(text), status)
    response.headers["Vary"] = "HX-Request, HX-Request-Type"
    set_guest_cookie(request, response)
    return response


def wants_fragment(request: Request) -> bool:
    """Return whether htmx sent the request, to replace a part of the page."""
    headers = request.headers
    return headers.get("hx-request") == "true" and headers.get("hx-request-type") != "full"


def path_to(request: Request, name: str, /, **parameters: Any) -> str:
    """Return the path of a route by its name, such as `board.index`, below the root path."""
    root: str = request.scope.get("root_path", "")
    templates: dict[tuple[str, ...], str] = request.app.state.path_templates
    if (key := (name, *parameters)) not in templates:
        # url_path_for() searches all routes: without a cache, half the time of a page of 200 links.
        fields = {parameter: f"{{{parameter}}}" for parameter in parameters}
        templates[key] = str(request.app.url_path_for(name, **fields))
    return root + templates[key].format(**parameters)


def redirect(
    request: Request, name: str, query: Mapping[str, str] | None = None, /, **parameters: Any
) -> Response:
    """Return the response after a write: the browser loads another page, also in htmx requests.

    query:      of the page
    parameters: those in the path of the route
    """
    path = path_to(request, name, **parameters)
    return redirect_to(request, with_parameters(path, **query) if query else path)


def redirect_to(request: Request, path: str | None) -> Response:
    """Return a redirect to a path of this app, or to the first page if it is anything else."""
    target = local_path(path, path_to(request, "board.index"))
    if request.headers.get("hx-request") == "true":
        return Response(status_code=204, headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


def static_path(request: Request, name: str) -> str:
    """Return the path of a file in `static`; the path changes with the content of the file."""
    return f"{request.scope.get('root_path', '')}/static/{name}?v={_digest(name)}"


@cache
def _digest(name: str) -> str:
    content = (STATIC / name).read_bytes()
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARACTERS]


def with_query(request: Request, **parameters: Any) -> str:
    """Return the path of this page with some parameters changed; None removes one."""
    removed = [name for name, value in parameters.items() if value is None]
    changed = {name: value for name, value in parameters.items() if value is not None}
    url = request.url.remove_query_params(removed).include_query_params(**changed)
    return url.path + (f"?{url.query}" if url.query else "")


def with_parameters(path: str, **parameters: str) -> str:
    """Return a path with a query."""
    return f"{path}?{urlencode(parameters)}"


def _context(request: Request) -> dict[str, Any]:
    """Return the variables of every template.

    user, now, navigation; path_to(name, …), static(name), with_query(name=…): this page with other
    parameters; csrf(): hidden field for forms; ui: the macros of macros.html
    """
    state = request.app.state
    return {
        "request": request,
        "user": getattr(request.state, "user", None),
        "now": state.database.config.clock.now(),
        "navigation": state.navigation,
        "area": getattr(request.scope.get("endpoint"), "__module__", "").rpartition(".")[2],
        "path_to": partial(path_to, request),
        "static": partial(static_path, request),
        "with_query": partial(with_query, request),
        "with_parameters": with_parameters,
        "csrf_token": partial(csrf_token, request),
        "csrf": lambda: Markup('<input type="hidden" name="{}" value="{}">').format(
            CSRF_FIELD, csrf_token(request)
        ),
    }


def not_found(what: str) -> HTTPException:
    """Return the error for something that a URL names and that does not exist."""
    return HTTPException(404, f"{what} not found")


def problem_response(
    request: Request, status: int, detail: str, headers: dict[str, str] | None = None, **more: Any
) -> Response:
    """Return an error response in the format that the client expects.

    detail: what is wrong and what to do, one line
    more:   further members of the problem JSON
    """
    title = HTTPStatus(status).phrase
    if is_for_programs(request):
        content = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        return JSONResponse(content | more, status, headers, media_type="application/problem+json")
    response: Response
    if wants_fragment(request):
        response = page(
            request, "errors/alert.html", status=status, title=title, detail=detail, code=status
        )
        response.headers["HX-Retarget"] = "#notices"
        response.headers["HX-Reswap"] = "innerHTML"
    else:
        response = page(
            request, "errors/page.html", status=status, title=title, detail=detail, code=status
        )
    response.headers.update(headers or {})
    return response


def error_page(scope: Scope, status: int, detail: str) -> Response:
    """Return the response for an error outside of the routes."""
    return problem_response(Request(scope), status, detail)


def add_error_handlers(app: FastAPI) -> None:
    """Register the responses to errors in routes."""

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        detail = str(error.detail)
        if detail in USUAL:
            detail = ADVICE.get(error.status_code, detail)
        return problem_response(request, error.status_code, detail, dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        problems = [
            {"field": ".".join(str(part) for part in each["loc"][1:]), "problem": cause_of(each)}
            for each in error.errors()
        ]
        first = problems[0]
        detail = f"{first['field'] or 'request'}: {first['problem']}"
        return problem_response(request, 422, detail, errors=problems)

    @app.exception_handler(FreshetError)
    async def freshet_error(request: Request, error: FreshetError) -> Response:
        if isinstance(error, StorageError):
            return problem_response(request, 503, str(error), {"Retry-After": RETRY_SECONDS})
        return problem_response(request, 409 if isinstance(error, Busy) else 422, str(error))

    @app.exception_handler(SignInRequired)
    async def sign_in(request: Request, _: SignInRequired) -> Response:
        """Redirect browsers to the sign-in page, and from there back; return 401 to programs."""
        if is_for_programs(request):
            headers = {"WWW-Authenticate": 'Bearer realm="Freshet"'}
            return problem_response(
                request, 401, "Sign in, or send Authorization: Bearer TOKEN", headers
            )
        path = path_to(request, "account.sign_in")
        if here := _page_shown(request):
            path += f"?next={quote(here, safe='/')}"
        if request.headers.get("hx-request") == "true":
            return Response(status_code=401, headers={"HX-Redirect": path})
        return RedirectResponse(path, 303)


def _page_shown(request: Request) -> str | None:
    """Return the path of the page that a browser requests, or that sent the request; else None."""
    path, query = request.url.path, request.url.query
    is_part = request.headers.get("hx-request") == "true"
    if is_part or request.method != "GET":
        try:
            url = urlsplit(request.headers.get("hx-current-url" if is_part else "referer", ""))
        except ValueError:
            return None
        if f"{url.scheme}://{url.netloc}" != own_origin(request):
            return None
        path, query = url.path, url.query
    return f"{path}?{query}" if query else path
