"""Secrets live in files of their owner: made 0600, refused when others may read them, never overwritten."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from yarn_accel.adapters.credentials import (
    MAKE_AGENTS_SECRET,
    create_master_secret,
    issue_token_file,
    read_master_secret,
)
from yarn_accel.cli import root
from yarn_accel.client.token_file import read_secrets
from yarn_accel.errors import ConfigError
from yarn_accel.wire.credential import SECRET_ALIAS, decode, derive_key


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    create_master_secret(tmp_path / "secret")
    return tmp_path / "secret"


def test_a_new_secret_is_private_and_kept(secret_file: Path) -> None:
    secret = read_master_secret(secret_file)
    assert len(secret) == 32
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="File exists"):
        create_master_secret(secret_file)
    assert read_master_secret(secret_file) == secret


def test_a_secret_that_is_not_there_names_who_makes_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match=f"No such file.*`yarn-accel credential new-secret {path}`"):
        read_master_secret(path)
    with pytest.raises(ConfigError, match=f"agent.secret_file {path}.*`yarn-accel node make-secret {path}`"):
        read_master_secret(path, "agent.secret_file", MAKE_AGENTS_SECRET)


def test_a_secret_of_another_user_names_its_owner_as_the_cure(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ConfigError, match="Permission denied: run as the user who owns it"):
        read_master_secret(secret_file)


def test_a_secret_others_may_read_is_refused(secret_file: Path) -> None:
    secret_file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_master_secret(secret_file)


@pytest.mark.parametrize(("content", "reason"), [("zz", "not hexadecimal"), ("00" * 31, "at least 32")])
def test_a_bad_secret_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=reason):
        read_master_secret(path)


def test_a_token_file_holds_a_credential_of_this_secret(secret_file: Path, tmp_path: Path) -> None:
    master = read_master_secret(secret_file)
    path = issue_token_file(tmp_path / "token", master, 60, "alice")
    credential = decode(read_secrets(path.read_bytes())[SECRET_ALIAS])
    assert credential.tenant == "alice"
    assert 0 < credential.expires_s - time.time() <= 60
    assert credential.key == derive_key(master, credential.identifier())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_command_issues_what_the_function_does(secret_file: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    argv = [
        "credential",
        "issue",
        "--secret",
        str(secret_file),
        "--tenant",
        "bob",
        "--hours",
        "1",
        str(token),
    ]
    result = CliRunner().invoke(root, argv)
    assert result.exit_code == 0, result.output
    assert decode(read_secrets(token.read_bytes())[SECRET_ALIAS]).tenant == "bob"
    assert secret_file.read_text().strip() not in result.output
