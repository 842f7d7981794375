from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from yarn_accel.adapters.credentials import create_master_secret, read_master_secret
from yarn_accel.errors import AuthenticationError, ConfigError, StartupError
from yarn_accel.hadoop import retained as retained_module
from yarn_accel.hadoop.retained import (
    RetainedApplication,
    own_master_secret,
    retained_applications,
    state_dir,
)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(tmp_path)}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_secret_of_32_bytes_that_only_we_can_read(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    secret = kept.create("hdfs://nn/x")
    assert len(secret) == 32
    assert RetainedApplication.of("application_1_0001", environ).secret() == secret
    assert kept.staging_uri() == "hdfs://nn/x"
    assert mode(kept.folder) == 0o700
    assert mode(kept.folder / "control-secret") == 0o600
    assert RetainedApplication.of("application_1_0002", environ).create("") != secret
    with pytest.raises(ConfigError, match="File exists"):
        kept.create("hdfs://nn/x")


def test_a_secret_that_others_may_read_is_not_used(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    kept.create("")
    (kept.folder / "control-secret").chmod(0o644)
    with pytest.raises(ConfigError, match="others may read it"):
        kept.secret()


def test_where_no_start_was_made_is_reported(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    with pytest.raises(
        AuthenticationError, match=r"not here.*machine that ran `yarn-accel start`.*stop --force"
    ):
        kept.secret()
    assert kept.staging_uri() == ""
    kept.remove()


def test_all_are_listed_and_one_is_removed(environ, tmp_path) -> None:
    assert retained_applications(environ) == ()
    for number in (2, 1):
        RetainedApplication.of(f"application_1_000{number}", environ).create("")
    found = retained_applications(environ)
    assert [kept.application for kept in found] == ["application_1_0001", "application_1_0002"]
    found[0].remove()
    assert retained_applications(environ) == found[1:]


def test_damaged_notes_are_named(environ) -> None:
    kept = RetainedApplication.of("application_1_0001", environ)
    kept.create("")
    (kept.folder / "start.json").write_text("[")
    with pytest.raises(ConfigError, match=r"start\.json is damaged"):
        kept.staging_uri()


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    (tmp_path / "cluster-accel").write_text("a file")
    with pytest.raises(StartupError, match="XDG_STATE_HOME"):
        RetainedApplication.of("application_1_0001", {"XDG_STATE_HOME": str(tmp_path)}).create("")


def test_a_users_own_master_secret_stays_the_same(environ) -> None:
    path = own_master_secret(environ)
    secret = read_master_secret(path)
    assert read_master_secret(own_master_secret(environ)) == secret
    assert path.parent == state_dir(environ)


def test_the_folder_is_that_of_the_user() -> None:
    assert state_dir({"HOME": "/srv/u"}) == Path("/srv/u/.local/state/cluster-accel")


def test_where_no_secret_of_ones_own_can_be_made_is_reported(tmp_path) -> None:
    (tmp_path / "cluster-accel").write_text("a file")
    with pytest.raises(StartupError, match="XDG_STATE_HOME"):
        own_master_secret({"XDG_STATE_HOME": str(tmp_path)})


def test_of_two_starts_that_make_the_users_secret_both_take_the_first(environ, monkeypatch) -> None:
    def other_is_first(path: Path) -> None:
        create_master_secret(path)
        create_master_secret(path)

    monkeypatch.setattr(retained_module, "create_master_secret", other_is_first)
    assert len(read_master_secret(own_master_secret(environ))) == 32


def test_a_folder_of_another_user_is_named(environ, monkeypatch) -> None:
    """As `sudo yarn-accel start` leaves it: every look below it is refused."""

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    for method in ("stat", "iterdir", "exists", "read_text"):
        monkeypatch.setattr(Path, method, refuse)
    with pytest.raises(StartupError, match="applications: Permission denied: set XDG_STATE_HOME"):
        retained_applications(environ)
    with pytest.raises(ConfigError, match=r"control secret .*Permission denied: run as the user who owns it"):
        RetainedApplication.of("application_1_0001", environ).secret()
    with pytest.raises(ConfigError, match="Permission denied"):
        read_master_secret(own_master_secret(environ))
