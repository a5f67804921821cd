"""Generate parts of the reference from the code: `make reference`.

A page holds lines such as `<!-- generated: settings -->` and `<!-- end: settings -->`. What is
between them comes from the settings, the parsers of the commands, the types of their JSON output,
the validators of the collections, the metrics catalog or the models of site definitions. It is
committed, so that people can also read the pages in the repository. A test fails if it is outdated.

As an extension of Sphinx, this module publishes the JSON Schema of each document that a command
prints with `--json`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyCommand
from scrapy.utils.misc import walk_modules_iter
from scrapy.utils.project import get_project_settings

from crawler.cli.base import ActionsCommand, FreshetCommand, schema_of
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.exchange.tables import TABLES
from crawler.extract.cells import Cell, Source
from crawler.extract.fields import Field
from crawler.extract.keys import CategoryRule
from crawler.extract.notification_rules import Rule
from crawler.extract.site_definition import Wrapper
from crawler.notify.channels import Channel, Smtp
from crawler.ops.service_metrics import of_processes
from crawler.reports.metrics import Described, of_database
from crawler.storage.schema import VALIDATORS
from spiders.feeds import FeedsArguments
from spiders.site import CellsArguments, SiteArguments
from spiders.wrapper import Arguments

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
PART = re.compile(
    r"^<!-- generated: (?P<name>\w+) -->\n(?:.*?^<!-- end: (?P=name) -->\n)?",
    re.MULTILINE | re.DOTALL,
)
# Outside of code, Markdown would take these for emphasis and HTML.
CODE_OR_SPECIAL = re.compile(r"(`[^`]*`)|([*<])")
# The meaning of a default of None, in a description.
UNSET = re.compile(r"; unset: ([^;]+)")
BSON_NAMES = {
    "binData": "binary", "bool": "boolean", "date": "time", "double": "number", "int": "number",
    "long": "number",
}  # fmt: skip
# How documents are added to each collection, and when they are deleted.
_WITH_TARGET = "deleted with its target or site (`scrapy forget`)"
_USER = "deleted by an editor or `scrapy web`"
LIMITS = {
    "targets": (
        "one per URL that a site definition, a list or a feed names",
        "never deleted automatically; with its site by `scrapy forget`",
    ),
    "visits": ("one per visit", "aggregated by day after `FRESHET_KEEP_VISITS_DAYS`"),
    "days": (
        "one per target and day with aggregated visits",
        "deleted after `FRESHET_KEEP_AGGREGATES_DAYS`",
    ),
    "versions": (
        "one per new content of a target or post",
        "the newest `FRESHET_KEEP_VERSIONS` per target stay, at most `FRESHET_MAX_TARGET_MB` "
        "per target and `FRESHET_MAX_SITE_MB` per site",
    ),
    "posts": ("one per item and per post of a feed", _WITH_TARGET),
    "listings": ("one per list page and item that it shows", "deleted when no list shows the item"),
    "feeds": ("one per feed", _WITH_TARGET),
    "pushes": (
        "one per delivery of a hub",
        "deleted when a run has stored its posts; limited per feed and in total",
    ),
    "cells": ("one per cell", _WITH_TARGET),
    "rereads": ("writes of a running `scrapy reread`", "deleted when it ends"),
    "runs": ("one per run", "deleted after `FRESHET_KEEP_RUNS_DAYS`, except the last one"),
    "plans": (
        "one per replan and sampling phase",
        "deleted after `FRESHET_KEEP_PLANS_DAYS` when no target has it any more",
    ),
    "sites": ("one per site", "deleted with the site by `scrapy forget`"),
    "dead_letters": (
        "one per page that repeatedly crashed workers",
        "deleted when it is retried or dropped (`scrapy deadletters`), or with its target",
    ),
    "alarms": ("one per silence or breakage", "deleted a year after its end"),
    "outbox": (
        "one per notification",
        "deleted a week after delivery; dead letters after 60 days; limited per channel",
    ),
    "notification_rules": ("one per rule of the web app", "removed by an editor; at most 200"),
    "notification_channels": ("one per channel of the web app", "removed by an editor; at most 50"),
    "leases": ("one per site, channel and kind of work", "none; there are few names"),
    "hosts": ("one per host that requested a pause", "deleted after the pause"),
    "signatures": ("one per post that is compared", "deleted with its post"),
    "clusters": ("one per group of near-duplicates", "deleted with its last copy"),
    "boilerplate": ("one per source of posts", "deleted with its source"),
    "duplicate_labels": ("one per pair that a user labeled", "changed by the user only"),
    "users": ("one per user", _USER),
    "sessions": ("one per signed-in browser", "deleted when it expires"),
    "api_tokens": ("one per token", f"{_USER}, or when it expires"),
    "saved_searches": ("up to 50 per user", _USER),
    "readers": ("two per user", "deleted with the user; less than 1 MB each"),
    "audit": ("one per change in the web app", "deleted after 400 days"),
    "meta": ("state of the database", "a few documents"),
}
# Fills in `%(default)s` and the like.
FORMATTER = argparse.HelpFormatter("")
GLOBAL_OPTIONS = "Global Options"
EXAMPLE = "Example: "
# Folder of the published JSON Schemas, next to the page that links to them.
SCHEMAS = "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ARGUMENTS: dict[str, type[Arguments]] = {
    "all": Arguments, "`site`": SiteArguments, "`feeds`": FeedsArguments, "`cells`": CellsArguments,
}  # fmt: skip


def settings() -> Iterator[str]:
    """Yield a table of the settings: variable, meaning, default."""
    yield from table("variable", "meaning", "default")
    for name, field in Config.model_fields.items():
        variable = next((key for key, of in UNPREFIXED.items() if of == name), None)
        shown = variable or PREFIX + name.upper()
        yield row(f"`{shown}`", *described(field, ("on", "off")))


def keys(model: type[BaseModel]) -> Iterator[str]:
    """Yield a table of the keys of a site definition, of `notify.toml`, or of a table in them."""
    yield from table("key", "meaning", "default")
    for name, field in model.model_fields.items():
        yield row(f"`{field.alias or name}`", *described(field, ("`true`", "`false`")))


def arguments() -> Iterator[str]:
    """Yield a table of the `-a` arguments of the spiders."""
    yield from table("spider", "argument", "meaning")
    for usage, model in ARGUMENTS.items():
        for name, field in model.model_fields.items():
            if model is Arguments or name not in Arguments.model_fields:
                value = "1" if field.annotation is bool else "…"
                yield row(usage, f"`-a {name}={value}`", field.description)


def commands() -> Iterator[str]:
    """Yield a section for each command and action: purpose, usage, options and example."""
    for name, command in project_commands():
        yield f"\n## scrapy {name}\n"
        yield f"{sentence(command.short_desc())}\n"
        usage = f"scrapy {name} {command.syntax()}".strip()
        parser = ScrapyArgumentParser(conflict_handler="resolve", add_help=False)
        command.add_options(parser)
        if isinstance(command, ActionsCommand):
            for action, of in command.actions.items():
                own = command.parser_of(action)
                yield f"\n### scrapy {name} {action}\n"
                yield f"{sentence(of.summary)}\n"
                usage = " ".join(own.format_usage().removeprefix("usage: ").split())
                yield from usage_of(usage, [*options_of(own), *options_of(parser)], of.example)
        else:
            epilog = parser.epilog or ""
            example = epilog.removeprefix(EXAMPLE) if epilog.startswith(EXAMPLE) else ""
            yield from usage_of(usage, options_of(parser), getattr(command, "example", example))


def collections() -> Iterator[str]:
    """Yield a section for each collection: purpose and fields."""
    for name, validator in VALIDATORS.items():
        schema = validator["$jsonSchema"]
        yield f"\n## {name}\n"
        yield f"{sentence(schema['description'])}\n"
        yield from table("field", "type", "meaning")
        yield from fields_of(schema, "")


def limits() -> Iterator[str]:
    """Yield a table of the collections: what adds a document, and what deletes it."""
    yield from table("collection", "documents", "limit")
    for name, limit in LIMITS.items():
        yield row(f"`{name}`", *limit)


def exports() -> Iterator[str]:
    """Yield a section for each exported table: what a row is, and the columns."""
    for name, of in TABLES.items():
        yield f"\n## {name}\n"
        yield f"Each row is {of.rows}.\n"
        yield from table("column", "type", "meaning")
        for column in of.columns:
            schema = VALIDATORS[name]["$jsonSchema"]
            # The fields of a content depend on the site definition, and have no schema.
            for part in column.path.split("."):
                schema = schema.get("properties", {}).get(part, schema)
            yield row(f"`{column.name}`", column.type, column.description or schema["description"])


def metrics(catalog: Callable[[], list[Described]]) -> Iterator[str]:
    """Yield a table of metrics: name, type, labels, meaning."""
    yield from table("metric", "type", "labels", "meaning")
    for name, kind, labels, text in catalog():
        names = ", ".join(f"`{label}`" for label in labels)
        yield row(f"`{name}`", kind, names or "none", text.removesuffix("."))


def json_output() -> Iterator[str]:
    """Yield a section for each command with `--json`: examples, and the fields of the output."""
    for name, documents in json_documents().items():
        yield f"\n## scrapy {name}\n"
        for line, schema in documents.items():
            definitions = schema.get("$defs", {})
            kind, document = "Object", schema
            if "items" in schema:
                ((_, document),) = json_type(schema["items"], definitions)[1]
                kind = "Array of objects"
            text = document["description"]
            yield f"```sh\n{line}\n```\n"
            yield f"{kind}: {text[:1].lower()}{text[1:]}"
            yield f'<a href="{SCHEMAS}/{schema_name(line)}">JSON Schema</a>\n'
            yield from table("field", "type", "meaning")
            yield from fields_of_output(document, definitions, "")
            yield ""


GENERATORS: dict[str, Callable[[], Iterable[str]]] = {
    "settings": settings,
    "arguments": arguments,
    "site_keys": partial(keys, Wrapper),
    "category_keys": partial(keys, CategoryRule),
    "field_keys": partial(keys, Field),
    "rule_keys": partial(keys, Rule),
    "channel_keys": partial(keys, Channel),
    "smtp_keys": partial(keys, Smtp),
    "cell_keys": partial(keys, Cell),
    "database_keys": partial(keys, Source),
    "commands": commands,
    "json_output": json_output,
    "collections": collections,
    "limits": limits,
    "exports": exports,
    "process_metrics": partial(metrics, of_processes),
    "database_metrics": partial(metrics, of_database),
}


def project_commands() -> Iterator[tuple[str, ScrapyCommand]]:
    """Yield the project's commands by name, each with the project's settings."""
    for module in walk_modules_iter("crawler.cli.commands"):
        kind = getattr(module, "Command", None)
        if kind is not None:
            command: ScrapyCommand = kind()
            command.settings = get_project_settings()
            yield module.__name__.rpartition(".")[2], command


def json_documents() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the schemas of the JSON outputs, by command and example line."""
    return {
        name: {line: schema_of(type_) for line, type_ in command.json_types().items()}
        for name, command in project_commands()
        if isinstance(command, FreshetCommand)
    }


def schema_name(line: str) -> str:
    """Return the file name of the schema of an example line's output."""
    words = line.removeprefix("scrapy ").removesuffix(" --json")
    return f"{re.sub('[^a-z0-9]+', '-', words.lower())}.json"


def fields_of_output(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str
) -> Iterator[str]:
    """Yield table rows of the fields of a JSON Schema, and of the documents in them."""
    for name, field in schema.get("properties", {}).items():
        words, documents = json_type(field, definitions)
        # A description that equals that of the document's type is only in the definition.
        text = field.get("description") or documents[0][1]["description"]
        if name not in schema.get("required", ()):
            text += " Not always present."
        yield row(f"`{prefix}{name}`", words, text.removesuffix("."))
        for suffix, document in documents:
            yield from fields_of_output(document, definitions, f"{prefix}{name}{suffix}.")


def json_type(
    field: Mapping[str, Any], definitions: Mapping[str, Any]
) -> tuple[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return the type of a field in words, and the schemas of the documents in it.

    Each schema comes with a suffix: `[]` for documents of an array, `.*` for documents by name.
    """
    if "$ref" in field:
        return "object", [("", definitions[field["$ref"].rpartition("/")[2]])]
    if "anyOf" in field:
        parts = [json_type(part, definitions) for part in field["anyOf"]]
        return " or ".join(words for words, _ in parts), [
            each for _, docs in parts for each in docs
        ]
    if "enum" in field or "const" in field:
        values = field.get("enum", [field.get("const")])
        return ", ".join(f"`{value}`" for value in values), []
    if field.get("type") == "array" and "items" in field:
        words, documents = json_type(field["items"], definitions)
        return f"array of {plural(words)}", [
            (f"[]{suffix}", document) for suffix, document in documents
        ]
    values = field.get("additionalProperties")
    if field.get("type") == "object" and isinstance(values, dict):
        words, documents = json_type(values, definitions)
        return f"{plural(words)} by name", [
            (f".*{suffix}", document) for suffix, document in documents
        ]
    if field.get("format") == "date-time":
        return "time", []
    return str(field.get("type", "any")), []


def plural(words: str) -> str:
    """Return the plural of the words for a type."""
    if words.startswith("array of "):
        return words.replace("array", "arrays", 1)
    return " or ".join(word if word.endswith("`") else f"{word}s" for word in words.split(" or "))


def options_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of a parser, except those of all Scrapy commands."""
    return [
        action
        for group in parser._action_groups
        if group.title != GLOBAL_OPTIONS
        for action in group._group_actions
        if action.help is not argparse.SUPPRESS
    ]


def usage_of(usage: str, options: list[argparse.Action], example: str) -> Iterator[str]:
    """Yield a usage line, a table of options, and an example."""
    yield f"```text\n{usage}\n```\n"
    if options:
        yield from table("option", "meaning")
        for option in options:
            yield row(f"`{invocation(option)}`", FORMATTER._expand_help(option))
        yield ""
    if example:
        lines = (line.removeprefix(EXAMPLE) for line in example.strip().splitlines())
        yield "Example:\n\n```sh\n" + "\n".join(lines) + "\n```\n"


def invocation(action: argparse.Action) -> str:
    """Return an option with its value, as users type it."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    if not action.option_strings:
        return str(value or action.dest)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value or action.dest.upper()}"


def fields_of(schema: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield table rows of the fields of a schema, and of the documents in them."""
    for name, field in schema.get("properties", {}).items():
        yield row(f"`{prefix}{name}`", type_of(field), field.get("description"))
        yield from fields_of(field, f"{prefix}{name}.")
        yield from fields_of(field.get("items", {}), f"{prefix}{name}[].")


def type_of(field: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "title" in field:
        return str(field["title"])
    if field.get("items", {}).get("bsonType") == "string":
        return "array of strings"
    kinds = field["bsonType"]
    names = [kinds] if isinstance(kinds, str) else kinds
    return " or ".join(dict.fromkeys(BSON_NAMES.get(name, name) for name in names))


def described(field: FieldInfo, booleans: tuple[str, str]) -> tuple[str, str]:
    """Return the description and the default of a setting or key. booleans: true and false."""
    text, value = field.description or "", field.default
    if get_origin(field.annotation) is Literal:
        text += f" ({', '.join(f'`{choice}`' for choice in get_args(field.annotation))})"
    if field.is_required():
        return text, "required"
    if stated := UNSET.search(text):
        return text.replace(stated[0], ""), stated[1]
    if isinstance(value, bool):
        return text, booleans[not value]
    if value is None or value in ("", (), {}):
        return text, "none"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return text, f"`{shown.removeprefix(f'{PROJECT}/')}`"


def sentence(text: str) -> str:
    """Return a text as a sentence: with a capital and a period."""
    text = cell(text).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}."


def table(*names: str) -> Iterator[str]:
    """Yield the head of a table."""
    yield f"| {' | '.join(names)} |"
    yield f"|{' --- |' * len(names)}"


def row(*cells: str | None) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(cell(text).replace("|", "\\|") for text in cells) + " |"


def cell(text: str | None) -> str:
    """Return a text as one line of Markdown."""
    line = " ".join((text or "").split())
    return CODE_OR_SPECIAL.sub(lambda match: match[1] or f"\\{match[2]}", line)


def current(page: str) -> str:
    """Return the text of a page with its generated parts as the code is now."""

    def generated(match: re.Match[str]) -> str:
        name = match["name"]
        text = "\n".join(GENERATORS[name]()).strip("\n")
        return f"<!-- generated: {name} -->\n\n{text}\n\n<!-- end: {name} -->\n"

    return PART.sub(generated, page)


def pages() -> Iterator[Path]:
    """Yield the pages with generated parts."""
    for path in sorted(DOCS.rglob("*.md")):
        if PART.search(path.read_text(encoding="utf-8")):
            yield path


def main() -> int:
    """Write the generated parts of all pages; print the pages that changed."""
    for path in pages():
        before = path.read_text(encoding="utf-8")
        if (after := current(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"Wrote {path.relative_to(DOCS.parent)}")
    return 0


def publish_schemas(app: Sphinx, error: Exception | None) -> None:
    """Write the JSON Schemas into the built site."""
    if error is not None:
        return
    folder = Path(app.outdir) / "reference" / SCHEMAS
    folder.mkdir(parents=True, exist_ok=True)
    for documents in json_documents().values():
        for line, schema in documents.items():
            text = json.dumps({"$schema": DIALECT} | schema, indent=1, ensure_ascii=False)
            (folder / schema_name(line)).write_text(f"{text}\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("build-finished", publish_schemas)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    sys.exit(main())
