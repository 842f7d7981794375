"""What docker/ promises, read from its files: no host or secret in them, no rights that nobody needs."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.programs import ran
from yarn_accel import __version__

ROOT = Path(__file__).resolve().parents[3]
DOCKER = ROOT / "docker"
COMPOSE = sorted(DOCKER.glob("compose*.yaml"))
DOCKERFILE = (DOCKER / "Dockerfile").read_text()


def services(path: Path) -> dict[str, dict[str, Any]]:
    return dict(yaml.safe_load(path.read_text())["services"])


ALL = services(DOCKER / "compose.yaml")


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_no_service_has_the_machine(path: Path):
    for name, service in services(path).items():
        assert not service.get("privileged"), name
        assert not service.get("cap_add"), f"{name}: docs/docker.md says that none is needed"
        for key in ("network_mode", "pid", "ipc", "userns_mode", "uts"):
            assert key not in service, name
        for volume in service.get("volumes", ()):
            assert "docker.sock" not in str(volume), name
            assert not re.match("/[^:]*:", str(volume)), f"{name} sees a folder of this machine"


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_service_drops_what_it_has(name: str):
    service = ALL[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["init"] is True
    assert service["read_only"] == "${READ_ONLY:-true}"
    assert len({place.partition(":")[0] for place in service["tmpfs"]}) >= 3  # /tmp, /run and the home
    assert service["mem_limit"] == "${NODE_MEMORY:-4g}"
    assert service["pids_limit"] == "${NODE_PROCESSES:-4096}"
    assert re.fullmatch(r"true\$\{COMPOSE_1:\+[^}]*\}", service["labels"]["yarn-accel.compose"])
    # Whoever holds that name at a registry must not get to run here.
    assert service["pull_policy"] == "never"
    assert service.get("profiles") in (None, ["torque"], ["sites"], ["client"])
    assert set(service["healthcheck"]) in (
        {"disable"},
        {"test", "interval", "timeout", "retries", "start_period"},
    )


def test_one_service_of_what_is_started_together_builds_their_image():
    """Each service that builds gives its image a label of its own: another image, so that the next `up`
    replaces the containers of the earlier ones."""
    together = (["client", "master", "w1", "w2", "w3", "w4"], ["torque"], ["alpha", "beta"])
    assert sorted(name for group in together for name in group) == sorted(ALL)
    for group in together:
        assert len([name for name in group if "build" in ALL[name]]) == 1
        assert len({ALL[name]["image"] for name in group}) == 1


def test_ports_are_published_on_the_loopback_alone():
    published = {name: service["ports"] for name, service in ALL.items() if "ports" in service}
    assert set(published) == {"master"}
    for port in published["master"]:
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+:-\d+\}:\d+", port), port


def test_all_workers_are_alike_and_known_to_the_master():
    workers = sorted(name for name in ALL if re.fullmatch(r"w\d+", name))
    assert f"--nodes=${{NODES:-{len(workers)}}}" in ALL["master"]["command"]
    for number, name in enumerate(workers, start=2):
        assert ALL[name]["hostname"] == name
        assert name in ALL[name]["command"]
        assert ALL[name]["networks"]["hadoop"]["ipv4_address"] == f"10.231.${{SUBNET:-200}}.{number}"


def test_more_workers_are_like_the_fourth_and_known_to_all():
    done = ran([sys.executable, str(DOCKER / "more_workers.py"), "6"])
    assert done.returncode == 0, done.stderr
    more = yaml.safe_load(done.stdout)["services"]
    assert set(more) == {"master", "client", *(f"w{number}" for number in range(1, 7))}
    hosts = ["w5:10.231.${SUBNET:-200}.6", "w6:10.231.${SUBNET:-200}.7"]
    assert all(service["extra_hosts"] == hosts for service in more.values())
    for name, number in (("w5", 6), ("w6", 7)):
        assert more[name]["extends"] == {"file": "compose.yaml", "service": "w4"}
        assert more[name]["hostname"] == name
        assert more[name]["command"] == [*ALL["w4"]["command"][:3], name, *ALL["w4"]["command"][4:]]
        assert more[name]["networks"]["hadoop"]["ipv4_address"] == f"10.231.${{SUBNET:-200}}.{number}"


@pytest.mark.parametrize("words", [[], ["4"], ["121"], ["many"]])
def test_a_wrong_number_of_workers_is_one_line(words: list[str]):
    done = ran([sys.executable, str(DOCKER / "more_workers.py"), *words])
    assert (done.returncode, done.stderr) == (1, "usage: docker/more_workers.py WORKERS, 5 to 120\n")


def test_the_images_name_no_host_and_end_as_an_ordinary_user():
    lines = [line for line in DOCKERFILE.splitlines() if not line.startswith("#")]
    text = "\n".join(lines)
    assert "://" not in text
    assert "# syntax=" not in DOCKERFILE
    assert not re.search(r"\.(crt|pem|key)\b|PASSW|TOKEN|SECRET|^ADD ", text, re.M)
    stages = {line.split()[-1]: line.split()[1] for line in lines if line.startswith("FROM ")}
    assert {base for base in stages.values() if base not in stages} == {"${BASE}"}
    assert "USER accel" in text[text.index("FROM python AS hadoop-node") :]
    assert "USER root" not in text


def test_compose_1_quotes_what_is_needed():
    """It expands variables first, service by service, and ends at the first form that it does not know."""
    forms = re.findall(r"\$\{[^}]*\}", json.dumps(ALL["master"]))
    assert forms
    known = re.compile(r"\$\{[_A-Z][_A-Z0-9]*(:?[-?][^}]+)?\}")
    (unknown,) = [form for form in forms if not known.fullmatch(form)]
    lowest = re.search(r"^lowest_compose=(.*)$", (DOCKER / "engine.sh").read_text(), re.M)
    assert lowest
    assert f"needs Compose {lowest[1]} or later, so say docker compose and not docker-compose" in unknown


def test_versions_agree_with_the_package():
    assert f"ARG VERSION={__version__}\n" in DOCKERFILE
    for path in (DOCKER / "compose.yaml", DOCKER / ".env.example"):
        named = re.findall(r"yarn-accel/\w+:([\w.]+)", path.read_text())
        assert set(named) == {__version__}, path


def test_the_example_of_settings_lists_every_variable_with_its_default():
    used = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", (DOCKER / "compose.yaml").read_text()))
    example = dict(
        line.split("=", 1)
        for line in (DOCKER / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert example == used


def test_the_modules_that_fetch_hadoop_need_no_other_of_ours():
    """The stage that fetches the jars has these files alone, so that no other change fetches again."""
    stage = DOCKERFILE[DOCKERFILE.index("AS jars") : DOCKERFILE.index("AS needs")]
    copied = set(re.findall(r"yarn_accel/[\w/]+\.py", stage))
    for name in copied:
        for module in re.findall(r"^from (yarn_accel[\w.]+) import", (ROOT / name).read_text(), re.M):
            assert module.replace(".", "/") + ".py" in copied, f"{name} imports {module}"


def test_requirements_are_those_of_setup_cfg():
    requirements = runpy.run_path(str(DOCKER / "requirements.py"))["requirements"]
    settings = (ROOT / "setup.cfg").read_text()
    base, full = requirements(settings, "base"), requirements(settings, "yarn,torque")
    assert "click>=8.1" in base
    assert "numpy>=1.26" not in base
    assert set(base) < set(full)
    assert "hdfs-native>=0.14.7" in full
    assert not any(line.startswith("#") for line in full)


#: A docker client whose engine answers; each variable makes one thing different.
CLIENT = """#!/bin/sh
case "$1 $2 $3" in
"version --format {{.Server.Version}}") [ -z "$REFUSAL" ] || { echo "$REFUSAL" >&2; exit 1; }; echo 20.10 ;;
"version --format {{.Client.Version}}") echo "${CLIENT_VERSION:-28.2.2}" ;;
"info --format {{.DockerRootDir}}") echo "$DOCKER_ROOT" ;;
"buildx version "*) exit "${BUILDX_STATUS:-0}" ;;
"image inspect "*) exit "${IMAGE_STATUS:-0}" ;;
"compose version --short") [ "$COMPOSE" != none ] || exit 1; echo "${COMPOSE:-2.26.1-4}" ;;
*) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""
REFUSED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock"
)
SILENT = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"


def said(
    tmp_path: Path, *words: str, has_client: bool = True, script: str = "engine.sh", **environ: str
) -> tuple[int, str]:
    """Exit status and standard error of a script, with a PATH where the client is ours or none."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("awk", "df", "dirname", "id", "ls", "mktemp", "rm", "sh"):
        found = next(path for path in (Path("/bin") / name, Path("/usr/bin") / name) if path.exists())
        (programs / name).symlink_to(found)
    if has_client:
        (programs / "docker").write_text(CLIENT)
        (programs / "docker").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    done = ran(
        [str(DOCKER / script), *words],
        env={**kept, "PATH": str(programs), "DOCKER_ROOT": str(tmp_path), **environ},
        timeout=60,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


IMAGE = ("0", "image", "yarn-accel/node:1.0.0")
COMPOSE_WANTED = ("0", "compose")
NO_PLUGIN = {"BUILDX_STATUS": "1"}
ACCEPTED: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "an engine": (("1", "build"), {}),
    "a client of 20.10 builds without a plugin": (
        ("1", "build"),
        {**NO_PLUGIN, "CLIENT_VERSION": "20.10.24"},
    ),
    "client 19.3 builds without a plugin": (("1", "build"), {**NO_PLUGIN, "CLIENT_VERSION": "19.3"}),
    "no plugin where nothing is built": (("1",), NO_PLUGIN),
    "no Compose where nothing needs it": (("1",), {"COMPOSE": "none"}),
    "an image": (IMAGE, {}),
    **{
        f"Compose {version}": (COMPOSE_WANTED, {"COMPOSE": version})
        for version in ("2.17.0", "v2.17.3", "2.26.1-4", "2.40.3", "5.0.0")
    },
}
ELSEWHERE = "on another machine.*; cure: unset DOCKER_HOST$"
REFUSALS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "no client": ((), {"has_client": False}, "^there is no docker client on PATH; cure: apt-get install"),
    "TCP": ((), {"DOCKER_HOST": "tcp://192.0.2.1:2375"}, f"tcp://192.0.2.1:2375.*{ELSEWHERE}"),
    "SSH": ((), {"DOCKER_HOST": "ssh://me@server"}, f"ssh://me@server.*{ELSEWHERE}"),
    "no rights": ((), {"REFUSAL": REFUSED}, "^this user may not use .*; cure: as root, or usermod"),
    "no engine": ((), {"REFUSAL": SILENT, "DOCKER_HOST": "unix:///x"}, "^no engine .* unix:///x; cure: sys"),
    "no space": (("999999999",), {}, "MiB free, 999999999 MiB are needed; cure: remove images you know"),
    "no plugin": (("1", "build"), NO_PLUGIN, "^the docker client 28.2.2 has no plugin buildx, .*; cure: apt"),
    "no Compose": (COMPOSE_WANTED, {"COMPOSE": "none"}, "^the docker client has no command compose; cure"),
    **{
        f"Compose {version}": (
            COMPOSE_WANTED,
            {"COMPOSE": version},
            f"Compose {version.lstrip('v')}, and 2.17 is",
        )
        for version in ("1.29.2", "v2.2.3", "2.16.0")
    },
    "no image": (IMAGE, {"IMAGE_STATUS": "1"}, f"^there is no image {IMAGE[2]}; cure: make docker-images$"),
    "no debootstrap": ((), {"script": "base.sh"}, "^there is no debootstrap; cure: apt-get install"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_will_do_is_used_without_a_word(tmp_path: Path, case: str):
    words, environ = ACCEPTED[case]
    assert said(tmp_path, *words, **environ) == (0, "")


@pytest.mark.parametrize("case", REFUSALS)
def test_what_will_not_do_is_one_line_with_its_cure(tmp_path: Path, case: str):
    words, options, line = REFUSALS[case]
    code, text = said(tmp_path, *words, **options)
    assert (code, text.count("\n")) == (3, 1), text
    assert re.search(line, text.strip()), text


def test_the_demo_says_so_before_it_installs_anything(tmp_path: Path):
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PYTHON": "/nonexistent"}
    done = subprocess.run(
        ["make", "demo", "DOCKER=1"],
        cwd=DOCKER.parent, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cure: " in done.stderr
    assert "install" not in done.stdout
