"""Misbehaving resources, mounted at `/edge/<name>` and at `/edge/item/<name>`.

`/edge/` lists all of them. The path after the name is passed to the resource as `rest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tests.site import edge_bodies as bodies
from tests.site import edge_replies as replies
from tests.site.edge_text import TEXTS
from tests.site.exchange import Answer, Exchange

# Example paths for resources that require more than their name.
EXAMPLES = {
    "status": ("status/403", "status/404", "status/410", "status/500", "status/503"),
    "retry-after": ("retry-after/2",),
    "redirect": ("redirect/301/edge/item/plain", "redirect/302/edge/item/plain"),
}


class Edge(Protocol):
    """A misbehaving resource."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Answer a request for the resource."""


def resources(edits: Callable[[str], int]) -> dict[str, Edge]:
    """Return all resources by name; `edits` returns the number of edits of a path."""
    named: dict[str, Edge] = {
        "plain": replies.Plain(edits),
        "empty": bodies.Empty(),
        "binary": bodies.Binary(),
        "pdf": bodies.Pdf(),
        "truncated": bodies.Truncated(),
        "chunked-truncated": bodies.ChunkedTruncated(),
        "huge": bodies.Huge(),
        "slow": bodies.Slow(),
        "status": replies.Status(),
        "retry-after": replies.RetryAfter(dated=False),
        "retry-after-date": replies.RetryAfter(dated=True),
        "always-429": replies.Always429(),
        "flaky": replies.Flaky(),
        "redirect": replies.Redirect(),
        "redirect-loop": replies.RedirectLoop(),
        "redirect-offsite": replies.RedirectOffsite(),
        "gone-after": replies.GoneAfter(edits),
        "no-fields": bodies.NoFields(),
        "headers-flood": replies.HeadersFlood(),
        "close": replies.Close(),
        "etag-less": bodies.NoValidators(),
    }
    for name, text in TEXTS.items():
        named[name] = bodies.Encoded(text, declared=True)
        named[f"{name}-undeclared"] = bodies.Encoded(text, declared=False)
    return named


class EdgeSite:
    """Answer requests below `/edge/`."""

    def __init__(self, edits: Callable[[str], int]) -> None:
        self._resources = resources(edits)
        self._list = _list_html(self._resources).encode()

    def handle(self, exchange: Exchange) -> None:
        """Answer a request; an invalid `rest` gets status 400."""
        place = exchange.path.removeprefix("/edge/").removeprefix("item/")
        name, _, rest = place.partition("/")
        resource = self._resources.get(name)
        if place == "":
            exchange.send(Answer(self._list))
        elif resource is None:
            exchange.send(Answer(b"<!DOCTYPE html><h2>No such page</h2>\n", status=404))
        else:
            self._serve(resource, exchange, rest)

    def _serve(self, resource: Edge, exchange: Exchange, rest: str) -> None:
        try:
            resource.serve(exchange, rest)
        except ValueError as error:
            exchange.send(Answer(str(error).encode(), "text/plain", status=400))


def _list_html(named: dict[str, Edge]) -> str:
    places = [place for name in named for place in EXAMPLES.get(name, (name,))]
    lines = "\n".join(f'<li class="product"><a href="/edge/item/{p}">{p}</a></li>' for p in places)
    return f"""<!DOCTYPE html>
<html lang="en"><head><title>Edge cases</title></head>
<body><main id="content"><h1>Edge cases</h1>
<ul class="products">
{lines}
</ul></main></body></html>
"""
