"""How commands show their help: Scrapy's way, mended."""

from __future__ import annotations

import argparse

from scrapy.commands import ScrapyHelpFormatter


class Help(ScrapyHelpFormatter):
    """No line of an option's help is a heading.

    Scrapy takes each line for one that ends in a colon, and so, at some widths of the terminal, the
    middle of an option's help.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = super()._split_lines(text, width)
        return [f"{line} " if line.endswith(":") else line for line in lines]


class HelpWithLines(argparse.RawDescriptionHelpFormatter, Help):
    """The same, with the lines of examples as they are."""
