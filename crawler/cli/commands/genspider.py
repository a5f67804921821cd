"""`scrapy genspider`: Scrapy's command, with Freshet's templates in addition to Scrapy's."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from scrapy.commands import genspider
from scrapy.spiderloader import get_spider_loader

from crawler.cli.base import Help
from crawler.errors import ConfigError, FreshetError
from crawler.utils.terminal import complain, print_line
from crawler.utils.text import is_spider_name

TEMPLATES = Path(__file__).resolve().parent.parent / "templates" / "spiders"
# Name in each module with a site definition.
BASE = "WrapperSpider"


class Command(genspider.Command):
    """Generate a spider from a template; `-t wrapper` writes a commented site definition."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add Scrapy's options and an example."""
        super().add_options(parser)
        parser.formatter_class = Help
        parser.epilog = "Example: scrapy genspider -t wrapper shop shop.example"

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Generate the spider; exit code 1 if that would break a module or reuse a name."""
        try:
            path = None
            if len(args) == 2 and not (opts.list or opts.dump):
                path = self._check(*args, force=opts.force)
            super().run(args, opts)
            if path is not None and path.exists() and BASE not in path.read_text("utf-8"):
                print_line(
                    f"{args[0]} is a plain Scrapy spider: Freshet does not store its pages. To "
                    "describe a site for Freshet, use -t wrapper",
                    error=True,
                )
        except FreshetError as error:
            complain("genspider", error)
            self.exitcode = 1

    def _check(self, name: str, url: str, *, force: bool) -> Path:
        """Return the path of the module; raise ConfigError if it would be invalid, or exists.

        An invalid module would stop all commands that load spiders, and Scrapy replaces modules in
        which no spider has this name, such as `spiders/wrapper.py`.
        """
        assert self.settings is not None
        module = genspider.sanitize_module_name(name)
        if not (is_spider_name(name) and module.isidentifier()):
            raise ConfigError(
                f"{name!r} is not a valid name of a spider. Use letters, digits, '-' and '_'"
            )
        if any(char in "\"'\\" or not char.isprintable() or char.isspace() for char in url):
            raise ConfigError(f"{url!r} is not a valid URL or host")
        folder = Path()
        if package := self.settings.get("NEWSPIDER_MODULE"):
            folder = Path(str(import_module(package).__file__)).parent
        path = folder / f"{module}.py"
        if path.exists() and not force:
            raise ConfigError(f"{path}: the file exists. Choose another name")
        return path

    def _spider_exists(self, name: str) -> bool:
        assert self.settings is not None
        loader = get_spider_loader(self.settings)
        try:
            loader.load(name)
        except KeyError:
            return False
        # Scrapy would print that and exit with 0.
        raise ConfigError(
            f"{name!r} is the name of a spider or of a stored site. Choose another name"
        )

    def _find_template(self, template: str) -> Path | None:
        template_path = TEMPLATES / f"{template}.tmpl"
        found = template_path if template_path.exists() else super()._find_template(template)
        if found is None:
            self.exitcode = 1
        return found

    def _list_templates(self) -> None:
        super()._list_templates()
        for path in sorted(TEMPLATES.glob("*.tmpl")):
            print_line(f"  {path.stem}")
