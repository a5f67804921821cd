"""Help output keeps its headings at every terminal width."""

from __future__ import annotations

import argparse
from itertools import pairwise
from types import ModuleType

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyCommand
from scrapy.settings import Settings

from crawler.cli.base import FreshetCommand
from crawler.cli.commands import fetch, genspider, metrics, prune, replan, shell, simulate

HEADINGS = {"Options", "Pages And Feeds", "Pages", "Feeds", "Overload", "Global Options"}


@pytest.mark.parametrize("command", [replan.Command, simulate.Command])
@pytest.mark.parametrize("columns", range(50, 130, 3))
def test_only_group_titles_are_underlined(
    command: type[FreshetCommand], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = argparse.ArgumentParser(prog="scrapy", usage="scrapy")
    instance = command()
    instance.settings = Settings()
    instance.add_options(parser)
    lines = pairwise(parser.format_help().splitlines())
    underlined = {above.strip() for above, line in lines if line.startswith("===")}
    assert underlined <= HEADINGS | {"Usage"}
    assert "Options" in underlined


@pytest.mark.parametrize("module", [fetch, genspider, metrics, prune, shell])
def test_example_is_one_line_to_paste(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command: ScrapyCommand = module.Command()
    command.settings = Settings()
    parser = ScrapyArgumentParser(prog="scrapy", conflict_handler="resolve")
    command.add_options(parser)
    example = parser.format_help().splitlines()[-1]
    assert example == parser.epilog
    assert example.startswith("Example: scrapy ")
