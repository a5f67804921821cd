"""Folders of static files as web hosts: `python -m tests.site.folder --host NAME=FOLDER`.

The server is the origin of its hosts (by Host header) and a plain HTTP proxy for them.
"""

from __future__ import annotations

import argparse
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from twisted.web.server import Request

from tests.site import serving
from tests.site.exchange import Answer, Exchange, RequestLog

NOT_FOUND = Answer(b"<!DOCTYPE html><h1>No such page</h1>\n", status=404)
REWRITTEN = (".html", ".xml")


class FolderSite:
    """Answer requests from the folder of the requested host, with or without `www.`."""

    def __init__(self, hosts: Mapping[str, Path], validators: bool) -> None:
        self._hosts = {name.lower(): path.resolve() for name, path in hosts.items()}
        self._validators = validators
        names = "|".join(re.escape(name) for name in self._hosts)
        # The name must end here: example.net.au is not the host example.net.
        pattern = rf"https://((?:www\.)?(?:{names}))(?![\w-]|\.\w)"
        self._https = re.compile(pattern.encode())

    def quick(self, request: Request) -> bytes | None:
        """Return None: every request is logged."""
        return None

    def handle(self, exchange: Exchange) -> None:
        """Answer a request."""
        exchange.send(self.answer(exchange.hostname, exchange.path))

    def answer(self, host: str, path: str) -> Answer:
        """Return the answer for a path of a host."""
        root = self._hosts.get(host.removeprefix("www."))
        if root is None or "\0" in unquote(path):
            return NOT_FOUND
        file = (root / unquote(path).lstrip("/")).resolve()
        if not file.is_relative_to(root):
            return NOT_FOUND
        if file.is_dir():
            if not path.endswith("/"):
                place = quote(unquote(path)) + "/"
                return Answer(b"", status=301, headers=[("Location", place)])
            file /= "index.html"
        elif path.endswith("/"):
            return NOT_FOUND
        return self._file(file) if file.is_file() else NOT_FOUND

    def _file(self, file: Path) -> Answer:
        body = file.read_bytes()
        if file.suffix in REWRITTEN:
            body = self._https.sub(rb"http://\1", body)
        usual = "application/octet-stream" if file.suffix else "text/html"
        kind = mimetypes.guess_type(file.name)[0] or usual
        etag = hashlib.sha256(body).hexdigest()[:20] if self._validators else None
        return Answer(body, kind, etag=etag)


def host_folder(text: str) -> tuple[str, Path]:
    """Return the two parts of NAME=FOLDER; raises ValueError if the format is wrong."""
    name, _, folder = text.partition("=")
    if not name or not Path(folder).is_dir():
        raise ValueError(f"{text!r} is not NAME=FOLDER with an existing folder")
    return name, Path(folder)


def main() -> None:
    """Serve until SIGTERM."""
    options = argparse.ArgumentParser(prog="python -m tests.site.folder", description=__doc__)
    options.add_argument("--host", type=host_folder, action="append", required=True)
    options.add_argument("--port", type=int, default=0, help="port (0: any free port)")
    options.add_argument("--log", type=Path, help="request log, one JSON line per request")
    options.add_argument("--validators", action="store_true", help="send ETags")
    args = options.parse_args()
    site = FolderSite(dict(args.host), args.validators)
    serving.run(site, RequestLog(args.log), args.port)


if __name__ == "__main__":
    main()
