"""Where the secrets of a running application are to be found on its nodes, and where not."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.fixtures.yarn_site import Site
from yarn_accel.adapters.credentials import read_master_secret
from yarn_accel.adapters.signed_http import sender_key
from yarn_accel.hadoop.control import RetainedApplication
from yarn_accel.launch.container_entry import MASTER_SECRET_FILE

pytestmark = [pytest.mark.hadoop]

_MAX_BYTES = 64 << 20
#: What YARN itself keeps of an application's credentials: its own files, and what it needs after a restart.
_YARNS = ("container_tokens", ".tokens")
_STORES = ("rm-state", "nm-recovery")


@pytest.fixture
def forms(site: Site) -> list[bytes]:
    """Every secret of the application in every form it might be written in."""
    control = RetainedApplication.of(str(site.application), site.environ).secret()
    pipeline = read_master_secret(site.cluster.master_secret_file)
    keys = [sender_key(control, f"agent:{host}") for host in site.names]
    return [form for secret in (control, pipeline, *keys) for form in _forms(secret)]


def test_no_command_line_and_no_environment_holds_one(site: Site, forms: list[bytes]) -> None:
    pids = site.processes()
    assert any("pipeline.json" in command for command in pids.values()), pids
    for pid, command in pids.items():
        for name in ("cmdline", "environ"):
            assert not _has(_read(Path(f"/proc/{pid}/{name}")), forms), (name, command)


def test_no_log_and_no_upload_holds_one_and_nobody_else_can_read_them(site: Site, forms: list[bytes]) -> None:
    place = site.cluster.conf_dir.parent
    holding = [path for path in _files(place) if _has(_read(path), forms)]
    assert {path.name for path in holding} >= {MASTER_SECRET_FILE, "container_tokens"}, (
        "they are found at all"
    )
    strange = [path for path in holding if not _is_expected(path, place)]
    assert not strange
    own = [path for path in holding if path.name == MASTER_SECRET_FILE or path.parent == place]
    assert {oct(path.stat().st_mode & 0o777) for path in own} == {"0o600"}


def _is_expected(path: Path, place: Path) -> bool:
    if path == place / "master-secret" or path.name == MASTER_SECRET_FILE:
        return True
    return path.name.endswith(_YARNS) or any(store in path.parts for store in _STORES)


def _forms(secret: bytes) -> Iterator[bytes]:
    yield from (secret, secret.hex().encode(), base64.b64encode(secret).rstrip(b"="))


def _has(content: bytes, forms: Iterable[bytes]) -> bool:
    return any(form in content for form in forms)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and path.stat().st_size <= _MAX_BYTES)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""  # it ended meanwhile, or is no file that can be read
