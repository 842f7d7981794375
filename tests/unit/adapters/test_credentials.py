"""Secrets and credentials live in files of their owner alone, whatever the owner has put there before.

The list of revoked credentials follows its file, and never becomes empty by an accident.
"""

import errno
import os
import pwd
import shutil
import stat
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conftest import NEEDS_ROOT
from yarn_accel.adapters import credentials
from yarn_accel.cli import root
from yarn_accel.client.token_file import read_secrets
from yarn_accel.errors import ConfigError
from yarn_accel.wire.credential import SECRET_ALIAS, decode, derive_key


@pytest.fixture
def secret_file(tmp_path):
    credentials.create_master_secret(tmp_path / "secret")
    return tmp_path / "secret"


def test_a_new_secret_is_private_and_kept(secret_file):
    secret = credentials.read_master_secret(secret_file)
    assert len(secret) == 32
    assert stat.S_IMODE(secret_file.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="File exists"):
        credentials.create_master_secret(secret_file)
    assert credentials.read_master_secret(secret_file) == secret


def test_a_secret_that_is_not_there_names_who_makes_it(tmp_path):
    path = tmp_path / "secret"
    with pytest.raises(ConfigError, match=f"No such file.*`yarn-accel credential new-secret {path}`"):
        credentials.read_master_secret(path)
    with pytest.raises(ConfigError, match=f"agent.secret_file {path}.*`yarn-accel node make-secret {path}`"):
        credentials.read_master_secret(path, "agent.secret_file", credentials.MAKE_AGENTS_SECRET)


def test_a_secret_of_another_user_names_its_owner_as_the_cure(secret_file, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ConfigError, match="Permission denied: run as the user who owns it"):
        credentials.read_master_secret(secret_file)


def test_a_secret_others_may_read_is_refused(secret_file):
    secret_file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        credentials.read_master_secret(secret_file)


@pytest.mark.parametrize(("content", "reason"), [("zz", "not hexadecimal"), ("00" * 31, "at least 32")])
def test_a_bad_secret_is_refused(tmp_path, content, reason):
    path = tmp_path / "secret"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=reason):
        credentials.read_master_secret(path)


def test_a_token_file_holds_a_credential_of_this_secret(secret_file, tmp_path):
    master = credentials.read_master_secret(secret_file)
    path = credentials.issue_token_file(tmp_path / "token", master, 60, "alice")
    credential = decode(read_secrets(path.read_bytes())[SECRET_ALIAS])
    assert credential.tenant == "alice"
    assert 0 < credential.expires_s - time.time() <= 60
    assert credential.key == derive_key(master, credential.identifier())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_command_issues_what_the_function_does(secret_file, tmp_path):
    token = tmp_path / "token"
    argv = [
        *("credential", "issue", "--secret", str(secret_file), "--tenant", "bob", "--hours", "1", str(token)),
    ]
    result = CliRunner().invoke(root, argv)
    assert result.exit_code == 0, result.output
    assert decode(read_secrets(token.read_bytes())[SECRET_ALIAS]).tenant == "bob"
    assert secret_file.read_text().strip() not in result.output


USER = "daemon"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason=NEEDS_ROOT)


@pytest.fixture
def folder():
    """A folder of `USER`, or of ours where we are not root."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    if os.geteuid() == 0:
        os.chown(path, *_ids(USER))
    yield path
    shutil.rmtree(path)


def issue(secret_file, folder, user=USER):
    argv = ["credential", "issue", "--secret", str(secret_file), "--for", user, "--into", str(folder)]
    return CliRunner().invoke(root, argv)


def _ids(user):
    found = pwd.getpwnam(user)
    return found.pw_uid, found.pw_gid


@needs_root
def test_the_file_is_the_users_own_and_private_and_is_replaced_by_the_next(secret_file, folder):
    before = os.umask(0)
    try:
        first = issue(secret_file, folder)
    finally:
        os.umask(before)
    assert first.exit_code == 0, first.output
    path = folder / f"{USER}.credential"
    found = path.stat()
    assert (found.st_uid, found.st_gid) == _ids(USER)
    assert stat.S_IMODE(found.st_mode) == 0o600
    credential = credentials.read_credential(path)
    assert credential.tenant == USER
    assert f"tenant {USER}, key {credential.key_id}, until 2" in first.output
    assert secret_file.read_text().strip() not in first.output
    assert issue(secret_file, folder).exit_code == 0
    assert credentials.read_credential(path).key_id != credential.key_id
    assert [each.name for each in folder.iterdir()] == [path.name]


@needs_root
@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "foreign", "folder", "pipe"])
def test_what_the_user_put_under_the_name_is_neither_followed_nor_changed(
    secret_file, folder, tmp_path, kind
):
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
        result = issue(secret_file, folder)
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
def test_a_link_on_the_way_is_not_followed(secret_file, folder, tmp_path):
    (folder / "inner").symlink_to(tmp_path)
    for name in ("inner", "inner/..", "inner/x"):
        result = issue(secret_file, folder / name)
        assert isinstance(result.exception, ConfigError), name
        assert "symbolic link" in str(result.exception)
    assert not list(tmp_path.glob("*.credential"))


@needs_root
def test_a_name_that_is_put_there_meanwhile_is_replaced_and_not_followed(folder, tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    fsync = os.fsync

    def meanwhile(fd):
        (folder / "x").symlink_to(victim)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", meanwhile)
    credentials.write_private_file(folder, "x", b"new", pwd.getpwnam(USER))
    assert victim.read_text() == "precious"
    assert (folder / "x").read_bytes() == b"new"
    assert not (folder / "x").is_symlink()


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [("bin", 0o755), (USER, 0o757), ("root", 0o777)])
def test_a_folder_where_others_may_write_is_refused(secret_file, folder, owner, mode):
    os.chown(folder, *_ids(owner))
    folder.chmod(mode)
    result = issue(secret_file, folder)
    assert isinstance(result.exception, ConfigError), result.output
    assert f"users other than {USER} may write there" in str(result.exception)
    assert not list(folder.iterdir())


@needs_root
def test_a_sticky_folder_of_root_will_do(secret_file, folder):
    os.chown(folder, 0, 0)
    folder.chmod(0o1777)
    assert issue(secret_file, folder).exit_code == 0


def test_another_users_file_needs_root(secret_file, folder, monkeypatch):
    def not_allowed(*_):
        raise PermissionError(1, os.strerror(1))

    monkeypatch.setattr(os, "fchown", not_allowed)
    result = issue(secret_file, folder)
    assert isinstance(result.exception, ConfigError), result.output
    assert not list(folder.iterdir())


def test_a_user_who_is_not_there(secret_file, folder):
    result = issue(secret_file, folder, "no-such-user")
    assert isinstance(result.exception, ConfigError)
    assert "no user 'no-such-user'" in str(result.exception)


@pytest.mark.parametrize(
    "more", [[], ["--tenant", "a"], ["--for", "a", "f"], ["--tenant", "a", "--for", "b", "f"]]
)
def test_half_of_a_command_line(secret_file, more):
    result = CliRunner().invoke(root, ["credential", "issue", "--secret", str(secret_file), *more])
    assert result.exit_code == 2
    assert "either --tenant NAME FILE or --for USER --into FOLDER" in result.output


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


def test_it_is_read_again_when_it_changes(tmp_path):
    path, clock = tmp_path / "revoked", Clock()
    path.write_text("# nobody\n")
    found = credentials.RevocationList(str(path), clock)
    assert not found.now().covers("alice")
    path.write_text("alice\n")
    assert not found.now().covers("alice"), "it is looked at once a second"
    clock.now_s += 1
    assert found.now().covers("alice")


def test_a_damaged_or_lost_list_stays_as_it_was(tmp_path, caplog):
    path, clock = tmp_path / "revoked", Clock()
    path.write_text("alice\n")
    found = credentials.RevocationList(str(path), clock)
    for spoil in (lambda: path.write_text("a b c d\n"), lambda: path.chmod(0o666), path.unlink):
        spoil()
        clock.now_s += 1
        assert found.now().covers("alice")
    assert len(caplog.records) == 3
    path.write_text("bob\n")
    clock.now_s += 1
    assert found.now().covers("bob")
    assert not found.now().covers("alice")


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [(None, 0, "No such file"), ("a\n", 0o622, "others may write"), ("a b c\n", 0o600, "line 1")],
)
def test_a_list_that_cannot_be_used_is_an_error_at_the_start(tmp_path, text, mode, reason):
    path = tmp_path / "revoked"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=reason):
        credentials.RevocationList(str(path))


def test_without_a_file_nothing_is_revoked():
    assert not credentials.RevocationList("").now().covers("alice", "k")
