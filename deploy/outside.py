"""Explain Freshet's commands outside of its folder, where Scrapy would call them unknown.

Usage: python deploy/outside.py, run with the interpreter of the environment. It registers a class
for the name of each command. In a project of Freshet, the project's commands take its place.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "freshet_outside"
MODULE = '''"""Written by deploy/outside.py of Freshet."""

import sys

from scrapy.commands import ScrapyCommand


class Outside(ScrapyCommand):
    """A command of Freshet that was called outside of a project."""

    requires_crawler_process = False
    default_settings = {{"LOG_ENABLED": False}}
    name = ""

    def short_desc(self):
        return "Command of Freshet; run it in the folder of your project"

    def run(self, args, opts):
        print(
            f"scrapy {{self.name}}: this folder has no Freshet project (scrapy.cfg). Change to "
            "yours, for example: cd {root}",
            file=sys.stderr,
        )
        self.exitcode = 1


def __getattr__(name):
    return type(name, (Outside,), {{"name": name}})
'''


def main() -> int:
    """Write the module and its entry points into the environment."""
    packages = Path(sysconfig.get_paths()["purelib"])
    own = {path.stem for path in (ROOT / "crawler/cli/commands").glob("[a-z]*.py")}
    # Scrapy's own commands work in other projects of this environment.
    names = sorted(own - {path.stem for path in (packages / "scrapy/commands").glob("*.py")})
    (packages / f"{NAME}.py").write_text(MODULE.format(root=ROOT), encoding="utf-8")
    info = packages / f"{NAME}-1.dist-info"
    info.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n"
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    points = "".join(f"{name} = {NAME}:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[scrapy.commands]\n{points}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
