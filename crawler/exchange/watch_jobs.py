"""Read the jobs of urlwatch and webchanges (YAML)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from cssselect import HTMLTranslator, SelectorError

from crawler.errors import ConfigError
from crawler.exchange.watch import (
    JQ_PATH,
    JSON_PATH,
    MAX_KEY_CHARACTERS,
    MAX_WATCHES,
    NO_BROWSER,
    NO_COMMANDS,
    NO_TEXT_FILTER,
    ONLY_GET,
    ONLY_TEXTS,
    Watch,
    WatchFile,
    is_feed_url,
    mapping,
    take_json_path,
    texts,
)
from crawler.utils.sandbox import TimeLimitExceeded, time_limit
from crawler.utils.urls import proxy_problem

URLWATCH = "urlwatch or webchanges"
MAX_DEPTH, READ_SECONDS = 40, 120
# Values that all aliases of a file may stand for.
MAX_ALIASED = 10_000
# Tag of an alias without a value.
UNDEFINED = "!undefined"
# Exceptions of the loader for values that do not match their tag, such as `!!bool x`.
BAD_VALUES = (AttributeError, LookupError, TypeError, ValueError, RecursionError)
LOST_OF_JOBS = {
    **dict.fromkeys(("diff_filter", "diff_filters", "additions_only", "deletions_only", "differ",
                     "diff_tool", "contextlines"), "Freshet always stores the whole version"),
    **dict.fromkeys(("wait_until", "wait_for", "wait_for_navigation", "wait_for_selector",
                     "chromium_revision", "switches", "user_data_dir"), NO_BROWSER),
    "cookies": "may be secret; set cookies = { NAME = '${VARIABLE}' }",
    "timeout": "set DOWNLOAD_TIMEOUT for all sites",
    "encoding": "Freshet detects the encoding",
    "ignore_http_error_codes": "error pages are never stored",
    "compared_versions": "each page is compared with its last version",
    "no_redirects": "redirects are followed",
}  # fmt: skip
# Settings of jobs, likewise.
KNOWN_OF_JOBS = frozenset(
    {"url", "navigate", "name", "filter", "filters", "headers", "http_proxy", "https_proxy",
     "ssl_no_verify", "tags", "enabled", "method", "data", "post", "kind", "use_browser",
     "command", "shell", "index_number", "note", "user_visible_url", "guid", "max_tries",
     "ignore_cached", "ignore_connection_errors", "ignore_timeout_errors",
     "ignore_too_many_redirects", "is_markdown", "markdown_padded_tables"}
)  # fmt: skip
# Filters of jobs that Freshet always applies, or that change nothing in the values of fields.
IMPLIED = frozenset(
    {"html2text", "strip", "striplines", "strip_each_line", "beautify", "format-json",
     "format-xml", "pretty-xml", "absolute_links", "content_only"}
)  # fmt: skip
# Filters for documents that are not HTML, XML or JSON.
UNREADABLE = frozenset({"pdf2text", "ical2text", "csv2text", "ocr", "hexdump"})


class _Loader(yaml.SafeLoader):
    """Loader that limits nesting, and the values that aliases stand for.

    Aliases of aliases would otherwise stand for exponentially many values. Anchors are known in all
    later documents of the file, too, as each job is a document.
    """

    depth = 0
    # Number of values that the aliases so far stand for.
    aliased = 0

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.known: dict[str, Any] = {}
        self.sizes: dict[int, int] = {}

    def compose_document(self) -> Any:
        """Return the next document; keep its anchors."""
        self.get_event()  # type: ignore[no-untyped-call]
        node = self.compose_node(None, None)
        self.get_event()  # type: ignore[no-untyped-call]
        self.known |= self.anchors
        self.anchors: dict[str, Any] = {}
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node."""
        if self.check_event(yaml.AliasEvent):
            event: Any = self.get_event()  # type: ignore[no-untyped-call]
            node = self.anchors.get(event.anchor) or self.known.get(event.anchor)
            if node is None or id(node) not in self.sizes:
                # Not defined, or the alias is within the value that it stands for.
                return yaml.ScalarNode(UNDEFINED, event.anchor, event.start_mark, event.end_mark)
            self.aliased += self.sizes[id(node)]
            if self.aliased > MAX_ALIASED:
                line = event.start_mark.line + 1
                problem = f"aliases (*name) stand for more than {MAX_ALIASED:,} values"
                raise ConfigError(f"line {line}: {problem}. Write them out")
            return node
        node = self._composed(parent, index)
        self.sizes[id(node)] = 1 + sum(
            self.sizes.get(id(part), 1)
            for child in (node.value if isinstance(node.value, list) else ())
            for part in (child if isinstance(child, tuple) else (child,))
        )
        return node

    def _composed(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ConfigError(f"more than {MAX_DEPTH} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


@dataclass(frozen=True, slots=True)
class _Undefined:
    """An alias without a value. Only its job is refused."""

    name: str


_Loader.add_constructor(UNDEFINED, lambda _, node: _Undefined(str(node.value)))


def _undefined_in(value: object) -> str | None:
    """Return the name of an undefined alias in a value; None without one."""
    if isinstance(value, _Undefined):
        return value.name
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if not isinstance(parts, list):
        return None
    return next(filter(None, map(_undefined_in, parts)), None)


def yaml_documents(data: bytes, name: str) -> list[Any]:
    """Return the jobs of a file; raises ConfigError with the file's name."""
    documents = []
    try:
        with time_limit(READ_SECONDS):
            for document in yaml.load_all(data, _Loader):
                if document is not None:
                    documents.append(document)
                if len(documents) > MAX_WATCHES:
                    raise ConfigError(f"more than {MAX_WATCHES:,} watches. Split the file")
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    except TimeLimitExceeded:
        raise ConfigError(f"{name}: takes more than {READ_SECONDS} s to read. Split it") from None
    except (yaml.YAMLError, *BAD_VALUES) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"{name}: {line}not valid YAML. Fix the file") from None
    if len(documents) == 1 and isinstance(documents[0], list):
        documents = documents[0]
    marks = {"url", "navigate", "command", "shell", "path"}
    if not any(isinstance(job, dict) and job.keys() & marks for job in documents):
        raise ConfigError(
            f"{name}: no watches found. Give url-watches.json, a backup of changedetection.io, "
            "urls.yaml or jobs.yaml"
        )
    return documents


def read_jobs(jobs: Sequence[Any], name: str) -> WatchFile:
    """Return the watches of jobs; raises ConfigError with the file's name."""
    if len(jobs) > MAX_WATCHES:
        raise ConfigError(f"{name}: more than {MAX_WATCHES:,} watches")
    watches = [_job(mapping(job), f"job {n}") for n, job in enumerate(jobs, start=1)]
    return WatchFile(URLWATCH, watches)


def _job(values: Mapping[str, Any], where: str) -> Watch:
    url = str(values.get("url") or values.get("navigate") or "").strip()
    watch = Watch(where, url, str(values.get("name") or "") or None, name_key="name")
    if (alias := _undefined_in(values)) is not None:
        watch.refusal = f"the alias *{alias[:MAX_KEY_CHARACTERS]} has no value"
        return watch
    if not url:
        is_command = any(key in values for key in ("command", "shell"))
        watch.refusal = NO_COMMANDS if is_command else "the job has no URL"
        return watch
    if values.get("enabled") is False:
        watch.refusal = "the job is disabled"
    elif str(values.get("method") or "GET").upper() != "GET" or values.keys() & {"data", "post"}:
        watch.refusal = ONLY_GET
    for key, reason in LOST_OF_JOBS.items():
        if values.get(key):
            watch.lose(key, reason)
    if values.get("navigate") or values.get("use_browser") or values.get("kind") == "browser":
        watch.lose("use_browser" if values.get("use_browser") else "navigate", NO_BROWSER)
    watch.take_headers(values.get("headers"))
    _take_connection(watch, values)
    watch.tags = tuple(texts(values.get("tags")))
    watch.is_feed = is_feed_url(url)
    _take_filters(watch, values.get("filters") or values.get("filter"))
    watch.check_url()
    watch.lose_unknown(values, KNOWN_OF_JOBS)
    return watch


def _take_filters(watch: Watch, filters: object) -> None:
    # Old versions have all filters in one text.
    entries = filters.split(",") if isinstance(filters, str) else filters
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, Mapping):
            for kind, argument in entry.items():
                _take_filter(watch, str(kind), argument)
        else:
            kind, _, argument = str(entry).partition(":")
            _take_filter(watch, kind.strip(), argument or None)


def _take_connection(watch: Watch, values: Mapping[str, Any]) -> None:
    """Take the proxy of a job, and whether certificates are verified."""
    if values.get("ssl_no_verify"):
        watch.keys["verify_tls"] = False
    proxies = {str(values[key]) for key in ("http_proxy", "https_proxy") if values.get(key)}
    if len(proxies) == 1 and "@" not in (proxy := next(iter(proxies))):
        if (problem := proxy_problem(proxy)) is None:
            watch.keys["proxy"] = watch.literal("http_proxy", proxy)
        else:
            watch.lose("http_proxy", problem)
    elif proxies:
        watch.lose("http_proxy", "has a password, or differs by scheme; set proxy")


def _take_filter(watch: Watch, kind: str, argument: Any) -> None:
    """Turn the selector of a filter into a field, or record that the filter is not carried over."""
    if kind in IMPLIED:
        return
    if kind in UNREADABLE:
        watch.refusal = f"{kind}: {ONLY_TEXTS}"
    elif kind in ("shellpipe", "execute"):
        watch.lose(f"filter {kind}", NO_COMMANDS)
    elif kind in ("jq", "jsonpath"):
        path = str(mapping(argument).get("query") or argument or "")
        take_json_path(watch, path, JQ_PATH if kind == "jq" else JSON_PATH)
    elif kind not in ("xpath", "css") and not kind.startswith("element-by-"):
        watch.lose(f"filter {kind}", NO_TEXT_FILTER)
    elif watch.fields:
        watch.lose(f"filter {kind}", "only the first selector of a chain is used")
    elif kind.startswith("element-by-"):
        name, quoted = kind.removeprefix("element-by-"), json.dumps(str(argument))
        selectors = {"tag": str(argument), "class": f"[class~={quoted}]"}
        css = selectors.get(name, f"[{name}={quoted}]")
        watch.take_selector("css", css, is_one=name == "id" or css in ("body", "html"))
    else:
        options = mapping(argument)
        selector = str(options.get("path" if kind == "xpath" else "selector") or argument or "")
        for key in ("exclude", "namespaces"):
            if options.get(key) and not watch.is_feed:
                watch.lose(f"{kind}.{key}", "a field supports a single selector only")
        _take_part(watch, kind, selector, options)


def _take_part(watch: Watch, kind: str, selector: str, options: Mapping[str, Any]) -> None:
    """Add a field for the matches of a selector, after the first `skip`, at most `maxitems`."""
    try:
        skip, limit = int(options.get("skip") or 0), int(options.get("maxitems") or 0)
        if skip or limit:
            if kind == "css":
                selector = HTMLTranslator().css_to_xpath(selector)
            last = f" and position() <= {skip + limit}" if limit else ""
            number = "1" if (skip, limit) == (0, 1) else f"position() > {skip}{last}"
            kind, selector = "xpath", f"({selector})[{number}]"
    except (TypeError, ValueError, OverflowError, SelectorError, RecursionError):
        watch.refusal = f"the selector is not valid: {selector[:80]!r}"
        return
    watch.take_selector(kind, selector, is_one=options.get("maxitems") == 1)
