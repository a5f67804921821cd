"""Generate the reference pages from the code, so that they describe the version they belong to.

A page of `docs/reference` holds lines such as `<!-- generated: settings -->`. When Sphinx reads the
page, this extension replaces each of them with Markdown from the settings, the parsers of the
commands, the validators of the collections, the metrics catalog or the models of site definitions.
"""

from __future__ import annotations

import argparse
import re
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

from crawler.cli.base import ActionsCommand
from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.extract.cells import Cell, Source
from crawler.extract.fields import Field
from crawler.extract.keys import CategoryRule
from crawler.extract.site_definition import Wrapper
from crawler.ops.metrics_database import Described, of_database, of_processes
from crawler.storage.validators import VALIDATORS
from spiders.cells import CellsArguments
from spiders.feeds import FeedsArguments
from spiders.site import SiteArguments
from spiders.wrapper import Arguments

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

PLACEHOLDER = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
# Outside of code, Markdown would take these for emphasis and HTML.
CODE_OR_SPECIAL = re.compile(r"(`[^`]*`)|([*<])")
# The meaning of a default of None, in a description.
UNSET = re.compile(r"; unset: ([^;]+)")
BSON_NAMES = {
    "binData": "binary", "bool": "boolean", "date": "time", "double": "number", "int": "number",
    "long": "number",
}  # fmt: skip
# Fills in `%(default)s` and the like.
FORMATTER = argparse.HelpFormatter("")
GLOBAL_OPTIONS = "Global Options"
EXAMPLE = "Example: "
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
    """Yield a table of the keys of a site definition, or of a table in it."""
    yield from table("key", "meaning", "default")
    for name, field in model.model_fields.items():
        yield row(f"`{name}`", *described(field, ("`true`", "`false`")))


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


def metrics(catalog: Callable[[], list[Described]]) -> Iterator[str]:
    """Yield a table of metrics: name, type, labels, meaning."""
    yield from table("metric", "type", "labels", "meaning")
    for name, kind, labels, text in catalog():
        names = ", ".join(f"`{label}`" for label in labels)
        yield row(f"`{name}`", kind, names or "none", text.removesuffix("."))


GENERATORS: dict[str, Callable[[], Iterable[str]]] = {
    "settings": settings,
    "arguments": arguments,
    "site_keys": partial(keys, Wrapper),
    "category_keys": partial(keys, CategoryRule),
    "field_keys": partial(keys, Field),
    "cell_keys": partial(keys, Cell),
    "database_keys": partial(keys, Source),
    "commands": commands,
    "collections": collections,
    "process_metrics": partial(metrics, of_processes),
    "database_metrics": partial(metrics, of_database),
}


def project_commands() -> Iterator[tuple[str, ScrapyCommand]]:
    """Yield the project's commands by name, each with the project's settings."""
    for module in walk_modules_iter("crawler.commands"):
        kind = getattr(module, "Command", None)
        if kind is not None:
            command: ScrapyCommand = kind()
            command.settings = get_project_settings()
            yield module.__name__.rpartition(".")[2], command


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


def replace_placeholders(_: Sphinx, __: str, source: list[str]) -> None:
    """Put the generated Markdown into the source of a page."""
    source[0] = PLACEHOLDER.sub(lambda match: "\n".join(GENERATORS[match[1]]()), source[0])


def generated_pages(_: Sphinx, env: BuildEnvironment, *__: object) -> list[str]:
    """Return the pages to read again in every build, as the code may have changed."""
    paths = {name: Path(env.doc2path(name)) for name in env.found_docs}
    return [name for name in paths if PLACEHOLDER.search(paths[name].read_text(encoding="utf-8"))]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", replace_placeholders)
    app.connect("env-get-outdated", generated_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
