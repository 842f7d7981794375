"""The helper by which tests look for secrets finds those that were planted."""

import base64
import subprocess
import sys

import pytest

from tests.fixtures.secret_search import SecretSearch, keytab_keys, misplaced_secrets
from yarn_accel.adapters.hadoop_rpc import Token, TokenFile, write_token_file

TOKEN = Token(b"identifier", b"the password", "HDFS_DELEGATION_TOKEN", "nn:8020")


@pytest.fixture
def root(kdc, keytabs, tmp_path):
    """The folder of a cluster: a keytab, a container's tokens, and a log."""
    (tmp_path / "alice.keytab").write_bytes(keytabs["alice"].read_bytes())
    (tmp_path / "container_tokens").write_bytes(write_token_file(TokenFile({"a": TOKEN}, {"b": b"a secret"})))
    (tmp_path / "log").write_text("all is well\n")
    return tmp_path


def test_secrets_where_they_belong_are_no_matter(root):
    assert misplaced_secrets(root, "all is well") == []


@pytest.mark.parametrize(
    "form",
    [
        lambda key, password: key,
        lambda key, password: b"key=" + key.hex().encode(),
        lambda key, password: b"password " + base64.b64encode(password),
        lambda key, password: repr(password).encode(),
        lambda key, password: str(list(password)).encode(),
        lambda key, password: b"a secret",
    ],
)
def test_a_secret_in_a_log_is_found(root, form):
    key = next(keytab_keys((root / "alice.keytab").read_bytes()))
    (root / "log").write_bytes(b"before " + form(key, TOKEN.password) + b" after")
    assert misplaced_secrets(root) == [str(root / "log")]


def test_a_secret_in_a_process_and_in_a_text_is_found(root):
    words = [sys.executable, "-c", "input()", "the password"]
    with subprocess.Popen(words, env={"A": "a secret"}, stdin=subprocess.PIPE) as process:
        found = misplaced_secrets(root, "fine", "here is the password", "here is none")
        process.communicate(b"\n")
    assert found == [f"{process.pid}/cmdline", f"{process.pid}/environ", "here is the password"]


def test_a_secret_that_is_too_short_is_refused():
    with pytest.raises(AssertionError, match="by chance"):
        SecretSearch([b"abc"])
