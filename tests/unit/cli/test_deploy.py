"""The Dockerfile, compose.yaml, and systemd units name existing files, commands, and options."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from crawler.cli.commands import web
from crawler.config import PREFIX, SETTINGS, UNPREFIXED, Config
from crawler.errors import ConfigError
from crawler.ops import schedule as options
from crawler.ops.jobs import with_files
from crawler.ops.schedule import SERVICE, WEB, WORKER, periodic_jobs, unit
from crawler.ops.service import REST_SECONDS
from crawler.storage.client import with_database

ROOT = Path(__file__).resolve().parents[3]
Part = dict[str, Any]
MAX_SHUTDOWN_SECONDS = Config.load(mongo_uri=None).grace_seconds + REST_SECONDS
SECONDS = {"s": 1, "m": 60}


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions as (name, arguments), without comments."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [
        (name, " ".join(rest.split()))
        for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)
    ]


def final_stage() -> list[tuple[str, str]]:
    lines = instructions()
    last = max(i for i, (name, _) in enumerate(lines) if name == "FROM")
    return lines[last:]


@pytest.fixture(scope="module")
def compose() -> Part:
    loaded: Part = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]


def words_of(command: str | list[str], **variables: str) -> list[str]:
    """Return the words of a command as Compose expands them with these variables."""
    if isinstance(command, list):
        return command

    def value(match: re.Match[str]) -> str:
        name, or_empty, default = match.groups()
        given = variables.get(name)
        return default if given is None or (or_empty and not given) else given

    return shlex.split(re.sub(r"\$\{(\w+)(:?)-([^}]*)\}", value, command))


def parsed_options(words: list[str]) -> options.Order:
    """Return the options that `scrapy refresh run` parses from the words of a command."""
    assert words[:2] == ["refresh", "run"]
    parser = argparse.ArgumentParser()
    parser.add_argument("-L")  # Scrapy's
    options.add_options(parser)
    return options.options_of(Config.load(), parser.parse_intermixed_args(words[2:]))


def test_files_copied_into_image_exist_and_are_not_ignored() -> None:
    copied = [
        source.rstrip("/")
        for name, rest in instructions()
        if name == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert {"crawler", "spiders", "pipelines", "schedules"} < set(copied)
    docker_ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n")
    assert docker_ignore.index("*") < min(docker_ignore.index(f"!{source}") for source in copied)
    assert all((ROOT / source).exists() for source in copied)
    assert {line[1:] for line in docker_ignore if line.startswith("!")} == set(copied)


def test_build_stages_share_python_image_and_paths() -> None:
    bases = [rest.removesuffix(" AS build") for name, rest in instructions() if name == "FROM"]
    assert len(set(bases)) == 1, "a virtual environment must keep its path"
    for name, rest in final_stage():
        if rest.startswith("--from=build"):
            assert name == "COPY"
            _, source, target = rest.split()
            assert source == target


def test_image_runs_as_freshet_and_compiles_nothing() -> None:
    users = [rest for name, rest in final_stage() if name == "USER"]
    assert users == ["freshet"]
    runs = " ".join(rest for name, rest in instructions() if name == "RUN")
    assert "--require-hashes" in runs
    assert "--only-binary=:all:" in runs
    assert not re.search(r"apt-get|gcc|build-essential", runs)
    assert "pip" not in " ".join(rest for name, rest in final_stage())
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for package in re.findall(r"uninstall --yes (\S+)", runs):
        assert f"\n{package}==" in lock, "removed packages must have been installed"


@pytest.mark.parametrize("name", ["requirements", "requirements-dev"])
def test_a_lock_has_every_package_of_its_requirements(name: str) -> None:
    requirements = (ROOT / f"{name}.txt").read_text(encoding="utf-8")
    required = re.findall(r"^([A-Za-z][\w.-]*)==([\w.]+)", requirements, re.MULTILINE)
    lock = (ROOT / f"{name}.lock").read_text(encoding="utf-8")
    pins = set(re.findall(r"^([\w.-]+==\S+)", lock, re.MULTILINE))
    copied = {
        f"{re.sub('[-_.]+', '-', package).lower()}=={version}" for package, version in required
    }
    assert not copied - pins, "was `make lock` run on a Python later than 3.11.2?"


def test_image_sets_only_existing_settings() -> None:
    (env,) = (rest for name, rest in final_stage() if name == "ENV")
    ours = [word.split("=")[0] for word in env.split() if word.startswith(PREFIX)]
    assert ours == ["FRESHET_DATA_DIR"]
    assert set(ours) <= SETTINGS


def test_image_entrypoint_is_scrapy() -> None:
    stage = dict(final_stage())
    assert stage["ENTRYPOINT"] == '["python", "-m", "scrapy"]'
    assert stage["CMD"] == '["refresh", "run"]'
    assert stage["HEALTHCHECK"].endswith('CMD ["python", "-m", "scrapy", "doctor", "--quick"]')


def test_only_planner_replans_and_prunes(compose: Part) -> None:
    planner, worker = (
        parsed_options(words_of(compose["services"][name]["command"]))
        for name in ("planner", "worker")
    )
    assert (planner.replan_hours, planner.prunes) == (24, True)
    assert (worker.replan_hours, worker.prunes) == (0, False)
    for name in ("planner", "worker"):
        everything = words_of(compose["services"][name]["command"], WRAPPERS="")
        assert parsed_options(everything).names == []
    assert planner.seconds is worker.seconds is None


@pytest.mark.parametrize("name", ["planner", "worker", "web"])
def test_services_depend_on_and_reach_their_servers(compose: Part, name: str) -> None:
    service = compose["services"][name]
    env = service["environment"]
    assert set(env) <= SETTINGS | set(UNPREFIXED)
    servers = {part: env[key].split("//")[1].split(":")[0] for key, part in
               (("MONGO_URI", "mongo"), ("REDIS_URL", "valkey"))}  # fmt: skip
    assert servers == {"mongo": "mongo", "valkey": "valkey"}
    assert with_database(env["MONGO_URI"], "other").endswith("/freshet")
    assert service["depends_on"] == {server: {"condition": "service_healthy"} for server in servers}
    for server in servers:
        assert "healthcheck" in compose["services"][server]
        assert set(compose["services"][server]["networks"]) <= set(service["networks"])
    assert seconds(service["stop_grace_period"]) > MAX_SHUTDOWN_SECONDS
    written = [place.split(":")[0] for place in service["tmpfs"]]
    written += [volume.split(":")[1] for volume in service["volumes"] if not volume.endswith(":ro")]
    assert env["FRESHET_DATA_DIR"] in written, "other folders are read-only"


def test_the_web_app_serves_the_published_port(compose: Part) -> None:
    service = compose["services"]["web"]
    words = words_of(service["command"], WEB_OPTIONS="--public-url https://a.example")
    assert words[0] == "web"
    parser = argparse.ArgumentParser()
    web.add_options(parser)
    opts = parser.parse_args(words[1:])
    assert (opts.host, opts.public_url) == ("0.0.0.0", "https://a.example")
    assert service["ports"] == [f"127.0.0.1:{opts.port}:{opts.port}"]
    assert f"http://127.0.0.1:{opts.port}/health" in service["healthcheck"]["test"][-1]


def test_services_publish_only_to_localhost_and_have_time_to_end(compose: Part) -> None:
    for service in compose["services"].values():
        assert seconds(service["stop_grace_period"]) >= 30
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        named = {volume.split(":")[0] for volume in service["volumes"]}
        assert {name for name in named if not name.startswith(".")} <= compose["volumes"].keys()
        assert set(service["networks"]) <= compose["networks"].keys()
    assert compose["networks"]["store"]["internal"] is True


def test_folder_names_expand_to_their_site_definitions(tmp_path: Path) -> None:
    folder = f"{tmp_path}/"
    with pytest.raises(ConfigError, match=r"no site definitions"):
        list(with_files([folder]))
    for name in ("b.toml", "a.toml", "notes.txt"):
        (tmp_path / name).write_text("")
    files = [f"{tmp_path}/a.toml", f"{tmp_path}/b.toml"]
    assert list(with_files(["books", folder, "x.toml"])) == ["books", *files, "x.toml"]


def test_periodic_jobs_can_be_disabled() -> None:
    assert [job.name for job in periodic_jobs(60, 0, 0)] == ["replan", "prune"]
    assert [job.name for job in periodic_jobs(60, 0, 0, prunes=False)] == ["replan"]
    assert periodic_jobs(0, 0, 0, prunes=False) == []


@pytest.mark.parametrize("template", [SERVICE, WORKER])
def test_systemd_unit_is_hardened_and_valid(template: str, tmp_path: Path) -> None:
    config = Config.load(
        mongo_uri="mongodb://db/freshet", redis_url="redis://r",
        data_dir=tmp_path / "of data", metrics_dir=tmp_path / "metrics",
    )  # fmt: skip
    text = unit(config, ["books", "wrappers/"], template)
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert "@" not in text.replace("SystemCallFilter=@system-service", "")
    strict = {
        "ProtectSystem": "strict", "ProtectHome": "read-only", "NoNewPrivileges": "true",
        "PrivateTmp": "true", "SystemCallFilter": "@system-service", "RestrictNamespaces": "true",
    }  # fmt: skip
    assert strict.items() <= settings.items()
    assert set(settings["RestrictAddressFamilies"].split()) >= {"AF_INET", "AF_INET6", "AF_UNIX"}
    places = [f"-{ROOT}", f"-{tmp_path}/of data", f"-{tmp_path}/metrics", "-%C/freshet"]
    assert shlex.split(settings["ReadWritePaths"]) == places
    # A systemd user manager cannot drop capabilities and would fail to start these units.
    for name in ("CapabilityBoundingSet", "ProtectKernelModules", "PrivateDevices"):
        assert name not in settings
    (run,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    made = parsed_options(shlex.split(run.partition(" -m scrapy ")[2]))
    assert made.names == ["books", f"{Path('wrappers').resolve()}/"]
    assert made.prunes == (template == SERVICE)
    assert (made.replan_hours == 0) == (template == WORKER)
    (stop,) = re.findall(r"TimeoutStopSec=(\d+)", text)
    assert int(stop) > MAX_SHUTDOWN_SECONDS
    path = tmp_path / template
    path.write_text(text, encoding="utf-8")
    if verifier := shutil.which("systemd-analyze"):
        checked = subprocess.run(
            [verifier, "verify", path], check=False, capture_output=True, text=True, timeout=60
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_web_unit_has_the_same_hardening(tmp_path: Path) -> None:
    config = Config.load(mongo_uri="mongodb://db/freshet", data_dir=tmp_path)
    text = unit(config, [], WEB)
    assert "@" not in text.replace("SystemCallFilter=@system-service", "")
    (run,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    assert shlex.split(run.partition(" -m scrapy ")[2]) == ["web"]
    assert "KillMode=process" in text.splitlines(), "crawls that users started must keep running"
    limits = {"ProtectSystem", "NoNewPrivileges", "RestrictAddressFamilies", "SystemCallFilter"}
    common = {line for line in unit(config, []).splitlines() if line.split("=")[0] in limits}
    assert len(common) == len(limits)
    assert common <= set(text.splitlines())


def test_failed_installation_prints_the_cause(tmp_path: Path) -> None:
    lock = tmp_path / "some.lock"
    lock.write_text(f"no-such-package==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "install.py", lock],
        env={"PATH": os.defpath, "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "No matching distribution found for no-such-package==1.0" in done.stderr
