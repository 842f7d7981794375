from __future__ import annotations

import stat

import pytest

from yarn_accel.adapters.credentials import read_master_secret
from yarn_accel.client.token_file import write_secrets
from yarn_accel.errors import StartupError
from yarn_accel.launch.container_secrets import FILE_ALIAS, MASTER_ALIAS, MASTER_SECRET_FILE, deliver

SECRET = bytes(range(32))


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    (tmp_path / "container_tokens").write_bytes(write_secrets({MASTER_ALIAS: SECRET, "other": b"x"}))
    return {"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "container_tokens"), "CONTAINER_ID": "container_1"}


def test_the_secret_becomes_the_file_that_a_server_reads(environ, tmp_path) -> None:
    for _ in range(2):  # a container is started again in the same folder
        assert deliver(environ, tmp_path) == (MASTER_SECRET_FILE,)
    assert read_master_secret(tmp_path / MASTER_SECRET_FILE) == SECRET
    assert stat.S_IMODE((tmp_path / MASTER_SECRET_FILE).stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [MASTER_SECRET_FILE, "container_tokens"]


def test_small_files_come_with_the_credentials_and_stay_in_the_folder(environ, tmp_path) -> None:
    tokens = tmp_path / "container_tokens"
    tokens.write_bytes(write_secrets({f"{FILE_ALIAS}plan.json": b"{}", f"{FILE_ALIAS}master.json": b"[1]"}))
    assert sorted(deliver(environ, tmp_path)) == ["master.json", "plan.json"]
    assert (tmp_path / "master.json").read_bytes() == b"[1]"
    for name in ("../x", "/x", "", ".."):
        tokens.write_bytes(write_secrets({FILE_ALIAS + name: b"x"}))
        with pytest.raises(StartupError, match="not the name of a file"):
            deliver(environ, tmp_path)
    assert not (tmp_path.parent / "x").exists()


def test_without_a_secret_nothing_is_written(environ, tmp_path) -> None:
    (tmp_path / "container_tokens").write_bytes(write_secrets({"other": b"x"}))
    assert not deliver(environ, tmp_path)
    assert not deliver({}, tmp_path)
    del environ["CONTAINER_ID"]
    assert not deliver(environ, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["container_tokens"]


def test_damaged_credentials_are_said_without_their_content(environ, tmp_path) -> None:
    (tmp_path / "container_tokens").write_bytes(write_secrets({MASTER_ALIAS: SECRET})[:-3])
    with pytest.raises(StartupError, match=r"container_tokens.*cut short") as caught:
        deliver(environ, tmp_path)
    assert SECRET.hex() not in str(caught.value)
    (tmp_path / "container_tokens").unlink()
    with pytest.raises(StartupError, match="No such file"):
        deliver(environ, tmp_path)
