"""A user's own file in the user's own folder, whatever the user has put there before."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.conftest import NEEDS_ROOT
from yarn_accel.adapters.credentials import create_master_secret, read_credential
from yarn_accel.adapters.private_file import write_private_file
from yarn_accel.cli import root
from yarn_accel.errors import ConfigError

USER = "daemon"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of `USER`, or of ours where we are not root."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(path, *_ids(USER))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    create_master_secret(tmp_path / "secret")
    return tmp_path / "secret"


def issue(secret: Path, folder: Path, user: str = USER) -> Result:
    argv = ["credential", "issue", "--secret", str(secret), "--for", user, "--into", str(folder)]
    return CliRunner().invoke(root, argv)


def _ids(user: str) -> tuple[int, int]:
    found = pwd.getpwnam(user)
    return found.pw_uid, found.pw_gid


@needs_root
def test_the_file_is_the_users_own_and_private_and_is_replaced_by_the_next(
    secret: Path, folder: Path
) -> None:
    before = os.umask(0)
    try:
        first = issue(secret, folder)
    finally:
        os.umask(before)
    assert first.exit_code == 0, first.output
    path = folder / f"{USER}.credential"
    found = path.stat()
    assert (found.st_uid, found.st_gid) == _ids(USER)
    assert stat.S_IMODE(found.st_mode) == 0o600
    credential = read_credential(path)
    assert credential.tenant == USER
    assert f"tenant {USER}, key {credential.key_id}, until 2" in first.output
    assert secret.read_text().strip() not in first.output
    assert issue(secret, folder).exit_code == 0
    assert read_credential(path).key_id != credential.key_id
    assert [each.name for each in folder.iterdir()] == [path.name]


@needs_root
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "foreign", "folder", "pipe"])
def test_what_the_user_put_under_the_name_is_neither_followed_nor_changed(
    secret: Path, folder: Path, tmp_path: Path, kind: str
) -> None:
    victim = folder.parent / f"{folder.name}.victim"
    victim.write_text("precious")
    path = folder / f"{USER}.credential"
    try:
        {
            "link": lambda: path.symlink_to(victim),
            "dangling": lambda: path.symlink_to(tmp_path / "shadow"),
            "hard link": lambda: path.hardlink_to(victim),
            "foreign": lambda: path.write_text("root's"),
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
        }[kind]()
        before = path.lstat()
        result = issue(secret, folder)
        assert isinstance(result.exception, ConfigError), result.output
        assert str(path) in str(result.exception)
        assert victim.read_text() == "precious"
        assert victim.stat().st_uid == 0
        assert not (tmp_path / "shadow").exists()
        after = path.lstat()
        assert (after.st_ino, after.st_uid, after.st_size) == (before.st_ino, before.st_uid, before.st_size)
        assert [each.name for each in folder.iterdir()] == [path.name]
    finally:
        victim.unlink()


@needs_root
def test_a_link_on_the_way_is_not_followed(secret: Path, folder: Path, tmp_path: Path) -> None:
    (folder / "inner").symlink_to(tmp_path)
    for name in ("inner", "inner/..", "inner/x"):
        result = issue(secret, folder / name)
        assert isinstance(result.exception, ConfigError), name
        assert "symbolic link" in str(result.exception)
    assert not list(tmp_path.glob("*.credential"))


@needs_root
def test_a_name_that_is_put_there_meanwhile_is_replaced_and_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    fsync = os.fsync

    def meanwhile(fd: int) -> None:
        (folder / "x").symlink_to(victim)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_private_file(folder, "x", b"new", pwd.getpwnam(USER))
    assert victim.read_text() == "precious"
    assert (folder / "x").read_bytes() == b"new"
    assert not (folder / "x").is_symlink()


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [("bin", 0o755), (USER, 0o757), ("root", 0o777)])
def test_a_folder_where_others_may_write_is_refused(
    secret: Path, folder: Path, owner: str, mode: int
) -> None:
    os.chown(folder, *_ids(owner))
    folder.chmod(mode)
    result = issue(secret, folder)
    assert isinstance(result.exception, ConfigError), result.output
    assert f"users other than {USER} may write there" in str(result.exception)
    assert not list(folder.iterdir())


@needs_root
def test_a_sticky_folder_of_root_will_do(secret: Path, folder: Path) -> None:
    os.chown(folder, 0, 0)
    folder.chmod(0o1777)
    assert issue(secret, folder).exit_code == 0


def test_another_users_file_needs_root(secret: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_allowed(*_: object) -> None:
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(os, "fchown", not_allowed)
    result = issue(secret, folder)
    assert isinstance(result.exception, ConfigError), result.output
    assert not list(folder.iterdir())


def test_a_user_who_is_not_there(secret: Path, folder: Path) -> None:
    result = issue(secret, folder, "no-such-user")
    assert isinstance(result.exception, ConfigError)
    assert "no user 'no-such-user'" in str(result.exception)


@pytest.mark.parametrize(
    "more", [[], ["--tenant", "a"], ["--for", "a", "f"], ["--tenant", "a", "--for", "b", "f"]]
)
def test_half_of_a_command_line(secret: Path, more: list[str]) -> None:
    result = CliRunner().invoke(root, ["credential", "issue", "--secret", str(secret), *more])
    assert result.exit_code == 2
    assert "either --tenant NAME FILE or --for USER --into FOLDER" in result.output
