"""Renders the pages of the web app, and the fragments of them that htmx asks for."""

from __future__ import annotations

import hashlib
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import HTTPException
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from crawler.utils.time import Clock
from crawler.web.auth import CSRF_FIELD, csrf_token, local_path, set_guest_cookie
from crawler.web.filters import FILTERS, shown

FOLDER = Path(__file__).resolve().parent
TEMPLATES, STATIC = FOLDER / "templates", FOLDER / "static"
DIGEST_CHARACTERS = 12


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

    fragment: block of the template to send if htmx asks for a part of the page
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
    response = HTMLResponse(text.encode("utf-8", "replace"), status)
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
        # Searches all routes, which takes half of the time of a page with 200 links.
        fields = {parameter: f"{{{parameter}}}" for parameter in parameters}
        templates[key] = str(request.app.url_path_for(name, **fields))
    return root + templates[key].format(**parameters)


def redirect(request: Request, name: str, /, **parameters: Any) -> Response:
    """Return the response after a write: the browser loads another page, also in htmx requests."""
    return redirect_to(request, path_to(request, name, **parameters))


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
        "now": Clock(state.database.config.clock_offset_hours).now(),
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
