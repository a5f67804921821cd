"""A site whose archive the tests read: compressed, chunked and redirected responses."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from warcio.archiveiterator import ArchiveIterator

from crawler.archive.files import WarcFile, files_of
from tests.integration.harness import Freshet, Row

SECRET = "s3cret-token"


class Shop(BaseHTTPRequestHandler):
    """A list and items with compressed, chunked and redirected responses; tests set the titles."""

    protocol_version = "HTTP/1.1"
    titles: ClassVar[dict[str, str]] = {}
    etags: ClassVar[bool] = True
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Shop.asked.append(self.path)
        if self.path == "/robots.txt":
            return self.answer(404, b"", {})
        if self.path == "/list":
            links = "".join(f"<a href={path}>x</a>" for path in self.titles)
            return self.answer(200, f"<html>{links}</html>".encode(), {})
        if self.path == "/item/moved":
            return self.answer(301, b"moved", {"Location": "/item/new"})
        title = self.titles.get(self.path, "none")
        body = f"<html><h1>{title}</h1><p class=price>{len(title)}</p></html>".encode()
        headers = {"ETag": f'"{title}"'} if self.etags else {}
        if self.headers.get("If-None-Match") == f'"{title}"':
            return self.answer(304, b"", headers)
        return self.answer(
            200, gzip.compress(body, mtime=0), headers | {"Content-Encoding": "gzip"}
        )

    def answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("x-ODD-name", "kept   as it  came")
        self.send_header("Set-Cookie", "visitor=1")
        for name, value in headers.items():
            self.send_header(name, value)
        if status == 304:
            self.end_headers()
        elif self.path == "/list":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        else:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress the request log."""


@contextmanager
def running() -> Iterator[str]:
    """Run the site without items, and yield its URL."""
    Shop.titles, Shop.etags, Shop.asked = {}, True, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Shop) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def definition(freshet: Freshet, url: str, **keys: object) -> Path:
    usual: dict[str, object] = {
        "start_urls": [f"{url}/list"], "item_pages": "/item/", "fields": {"title": "h1"},
        "archive": True, "headers": {"X-Own": "${SHOP_TOKEN}"}, "cookies": {"me": "${SHOP_TOKEN}"},
    }  # fmt: skip
    freshet.env["SHOP_TOKEN"] = SECRET
    return freshet.wrapper("shop", **usual | keys)


def folder(freshet: Freshet) -> Path:
    return Path(freshet.env["FRESHET_DATA_DIR"]) / "archive" / "shop"


def warcs(freshet: Freshet) -> list[WarcFile]:
    return files_of(folder(freshet))


def records(path: Path, offset: int = 0) -> list[Any]:
    """Return type, URL, headers and body of each record of a file."""
    with path.open("rb") as stream:
        stream.seek(offset)
        return [
            (
                record.rec_type, record.rec_headers.get_header("WARC-Target-URI"),
                record.rec_headers, record.http_headers, record.raw_stream.read(),
            )
            for record in ArchiveIterator(stream, check_digests="raise")
        ]  # fmt: skip


def of_visit(freshet: Freshet, row: Row) -> Any:
    return records(folder(freshet) / row["archived"]["file"], row["archived"]["offset"])[0]
