"""Help output keeps its headings at every terminal width."""

from __future__ import annotations

import argparse
from itertools import pairwise

import pytest
from scrapy.settings import Settings

from crawler.cli.base import FreshetCommand
from crawler.cli.commands import replan, simulate

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
