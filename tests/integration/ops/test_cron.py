"""`scrapy cron`: lines that can be installed in a crontab unchanged."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from crawler.cli.commands.cron import _command
from crawler.config import Config
from tests.integration.harness import ROOT, Freshet

pytestmark = pytest.mark.soak

SPIDERS = {"books", "feeds", "quotes"}
AVAILABLE = "Available: books, feeds, quotes; or name a .toml file"


@pytest.fixture
def runner(tmp_path: Path) -> Freshet:
    """Return commands without a database: cron needs none for spider classes or files."""
    return Freshet(tmp_path, FRESHET_DATA_DIR=tmp_path / "data")


def lines_of(runner: Freshet, *names: object) -> list[tuple[str, str]]:
    done = runner("cron", "--json", *names)
    assert (done.code, done.err) == (0, "")
    return [(line["schedule"], line["command"]) for line in json.loads(done.out)]


def test_schedules_each_spider_replan_and_prune(runner: Freshet) -> None:
    lines = lines_of(runner, *sorted(SPIDERS))
    crawls = {command.partition("scrapy crawl ")[2].split()[0] for _, command in lines[:-2]}
    assert crawls == SPIDERS
    assert [command.split(" -m scrapy ")[1].split()[0] for _, command in lines[-2:]] == [
        "replan", "prune",
    ]  # fmt: skip
    for when, command in lines:
        assert command.startswith(f"cd {shlex.quote(str(ROOT))} && env FRESHET_")
        assert f" {sys.executable} -m scrapy " in command
        minutes, hours, *days = when.split()
        assert days == ["*"] * 3
        assert (hours == "*") == (" crawl " in command)
        assert minutes.endswith("/10") == (" crawl " in command)
    minutes_of_crawls = [when for when, _ in lines[:-2]]
    assert len(set(minutes_of_crawls)) == len(minutes_of_crawls), "crawls share a minute"


def test_notifications_are_delivered_if_there_is_a_file_of_channels(
    runner: Freshet, tmp_path: Path
) -> None:
    file = tmp_path / "notify.toml"
    runner.env["FRESHET_NOTIFY_FILE"] = str(file)
    assert not [command for _, command in lines_of(runner, "books") if "notify deliver" in command]
    file.write_text("")
    (when,) = [when for when, command in lines_of(runner, "books") if "notify deliver" in command]
    assert when.endswith("/5 * * * *")


def test_text_output_is_valid_crontab_lines(runner: Freshet) -> None:
    uri = "mongodb://me:hush@db.example/x"
    done = runner("cron", "books", FRESHET_BUDGET="5", MONGO_URI=uri)
    comment, *lines = done.out.splitlines()
    assert comment.startswith("# cron does not see ")
    assert "passwords: MONGO_URI. Set them in " in comment
    assert done.complaint == f"scrapy cron: warning: {comment.removeprefix('# ')}"
    assert "hush" not in done.out + done.err
    assert len(lines) == 3
    assert all(" FRESHET_BUDGET=5 " in line for line in lines)
    for line in lines:
        assert line.split(maxsplit=5)[5].startswith("cd ")


def test_site_definition_file_is_passed_to_the_crawl(runner: Freshet, tmp_path: Path) -> None:
    wrapper = runner.wrapper("my shop", start_urls=["https://s.example/"], item_pages="/item")
    text = wrapper.read_text(encoding="utf-8").replace('"my shop"', '"shop"')
    wrapper.write_text(text, encoding="utf-8")
    (_, crawl), *_ = lines_of(runner, wrapper)
    assert f"crawl site -a 'wrapper={wrapper}' -L WARNING" in crawl


def test_lines_run_in_a_minimal_environment(runner: Freshet, tmp_path: Path) -> None:
    *_, (_, prune) = lines_of(runner, "books")
    command = prune.replace(" prune ", " prune --help ")
    bare = {"PATH": "/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", command], check=True, env=bare, timeout=60)
    assert "scrapy prune" in (tmp_path / "data" / "cron.log").read_text()


def test_lines_use_the_data_of_this_shell_and_mail_failures(freshet: Freshet) -> None:
    definition = freshet.wrapper("shop", start_urls=["http://127.0.0.1:1/"], item_pages="/item")
    (_, crawl), *_ = lines_of(freshet, definition)
    bare = {"PATH": "/usr/bin:/bin", "LANG": "C", "TZ": "Odd/Zone"}
    run = ["/bin/sh", "-c", crawl]
    done = subprocess.run(
        run, check=False, env=bare, timeout=60, cwd="/", capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stderr == ""
    assert "WARNING: shop: nothing could be read: 1 visit failed" in done.stdout
    assert len(done.stdout.splitlines()) == 2
    # The site is still down.
    run[-1] = crawl.replace(" -L WARNING", " -a full=1 -L WARNING")
    again = subprocess.run(
        run, check=False, env=bare, timeout=60, cwd="/", capture_output=True, text=True,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (again.stdout, again.stderr) == ("", "")
    log = Path(freshet.env["FRESHET_DATA_DIR"]) / "cron.log"
    assert log.read_text(encoding="utf-8").count("nothing could be read") == 2
    assert freshet("targets", "shop").out.startswith("1 target")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nosuch", f"site not found: 'nosuch'. {AVAILABLE}"),
        ("site", f"site not found: 'site'. {AVAILABLE}"),
        ("/nosuch.toml", "/nosuch.toml: No such file or directory"),
    ],
)
def test_unknown_names_are_one_line_errors(name: str, complaint: str, freshet: Freshet) -> None:
    done = freshet("cron", name)
    assert (done.code, done.out, done.complaint) == (1, "", f"scrapy cron: {complaint}")


def test_systemd_unit_is_valid(runner: Freshet, tmp_path: Path) -> None:
    wrapper = runner.wrapper("shop", start_urls=["https://s.example/"], item_pages="/item")
    done = runner("cron", "--systemd", "books", wrapper)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert f"EnvironmentFile=-{ROOT}/.env" in lines
    run = f"ExecStart={sys.executable} -m scrapy refresh run -L WARNING books {wrapper}"
    assert run in lines
    unit = tmp_path / "freshet.service"
    unit.write_text(done.out, encoding="utf-8")
    if verifier := shutil.which("systemd-analyze"):
        checked = subprocess.run(
            [verifier, "verify", unit], check=False, capture_output=True, text=True, timeout=60
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_percent_signs_are_escaped() -> None:
    config = Config.load(data_dir=Path("/srv/50%"), mongo_uri=None)
    assert r"50\%" in _command(config, "replan")


def test_crawls_begin_in_different_minutes(runner: Freshet) -> None:
    names = [
        runner.wrapper(f"s{i}", start_urls=["https://s.example/"], item_pages="/item")
        for i in range(11)
    ]
    times = [when for when, _ in lines_of(runner, *names)[:-2]]
    assert set(times) == {"*/10 * * * *", *(f"{k}-59/10 * * * *" for k in range(1, 10))}
    assert times[0] == times[10]
