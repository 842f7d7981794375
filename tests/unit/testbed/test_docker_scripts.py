"""docker/engine.sh and base.sh where no images can be built or run: one line with the cure for each."""

import os
import subprocess
from pathlib import Path

import pytest

DOCKER = Path(__file__).resolve().parents[3] / "docker"
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
    done = subprocess.run(
        [str(DOCKER / script), *words],
        env={**kept, "PATH": str(programs), "DOCKER_ROOT": str(tmp_path), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def refusal(tmp_path: Path, *words: str, **options: object) -> str:
    """The one line that it ends with."""
    code, text = said(tmp_path, *words, **options)  # type: ignore[arg-type]
    assert (code, text.count("\n")) == (3, 1), text
    return text.strip()


def test_an_engine_that_will_do(tmp_path: Path):
    assert said(tmp_path, "1", "build") == (0, "")


@pytest.mark.parametrize("version", ["20.10.24", "19.3"])
def test_an_old_client_builds_without_a_plugin(tmp_path: Path, version: str):
    assert said(tmp_path, "1", "build", BUILDX_STATUS="1", CLIENT_VERSION=version) == (0, "")


def test_no_client(tmp_path: Path):
    text = refusal(tmp_path, has_client=False)
    assert text.startswith("there is no docker client on PATH; cure: apt-get install")


@pytest.mark.parametrize("address", ["tcp://192.0.2.1:2375", "ssh://me@server"])
def test_an_engine_on_another_machine(tmp_path: Path, address: str):
    text = refusal(tmp_path, DOCKER_HOST=address)
    assert address in text
    assert "on another machine" in text
    assert text.endswith("cure: unset DOCKER_HOST")


def test_no_rights(tmp_path: Path):
    text = refusal(tmp_path, REFUSAL=REFUSED)
    assert text.startswith("this user may not use the engine's socket; cure: as root, or usermod -aG docker")


def test_no_engine(tmp_path: Path):
    text = refusal(tmp_path, REFUSAL=SILENT, DOCKER_HOST="unix:///srv/none.sock")
    assert text.startswith("no engine answers at unix:///srv/none.sock; cure: systemctl start docker")


def test_no_space(tmp_path: Path):
    text = refusal(tmp_path, "999999999")
    assert "MiB free, 999999999 MiB are needed; cure: remove images you know" in text


def test_no_program_to_build_with(tmp_path: Path):
    text = refusal(tmp_path, "1", "build", BUILDX_STATUS="1")
    assert text.startswith("the docker client 28.2.2 has no plugin buildx, which builds images; cure: apt")
    (tmp_path / "again").mkdir()
    assert said(tmp_path / "again", "1", BUILDX_STATUS="1") == (0, ""), "nothing is built"


@pytest.mark.parametrize("version", ["2.17.0", "v2.17.3", "2.26.1-4", "2.40.3", "5.0.0"])
def test_a_compose_that_will_do(tmp_path: Path, version: str):
    assert said(tmp_path, "0", "compose", COMPOSE=version) == (0, "")


@pytest.mark.parametrize("version", ["1.29.2", "v2.2.3", "2.16.0"])
def test_a_compose_that_is_too_old(tmp_path: Path, version: str):
    text = refusal(tmp_path, "0", "compose", COMPOSE=version)
    assert text.startswith(
        f"this is Compose {version.lstrip('v')}, and 2.17 is the lowest that was tried; cure: apt-get install"
    )


def test_no_compose(tmp_path: Path):
    text = refusal(tmp_path, "0", "compose", COMPOSE="none")
    assert text.startswith("the docker client has no command compose; cure: apt-get install docker-compose")
    (tmp_path / "again").mkdir()
    assert said(tmp_path / "again", "1", COMPOSE="none") == (0, ""), "nothing needs it"


def test_no_image(tmp_path: Path):
    text = refusal(tmp_path, "0", "image", "yarn-accel/node:0.1.0", IMAGE_STATUS="1")
    assert text == "there is no image yarn-accel/node:0.1.0; cure: make docker-images"
    (tmp_path / "again").mkdir()
    assert said(tmp_path / "again", "0", "image", "yarn-accel/node:0.1.0") == (0, "")


def test_the_demo_says_so_before_it_installs_anything(tmp_path: Path):
    environ = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PYTHON": "/nonexistent"}
    done = subprocess.run(
        ["make", "demo", "DOCKER=1"],
        cwd=DOCKER.parent, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "cure: " in done.stderr
    assert "install" not in done.stdout


def test_the_base_needs_debootstrap(tmp_path: Path):
    assert refusal(tmp_path, script="base.sh").startswith("there is no debootstrap; cure: apt-get install")
