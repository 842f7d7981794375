"""The two files in data/ were written by Hadoop 3.5.0's own `Credentials`, one in each format."""

import base64
from pathlib import Path

import pytest

from yarn_accel.client.token_file import StoredToken, read_secrets, read_tokens, write_secrets
from yarn_accel.errors import RemoteProtocolError

DATA = Path(__file__).parent / "data"
IN_BOTH = {
    "yarn-accel.pipeline": "the value é".encode(),
    "long": bytes(i % 256 for i in range(300)),
    "empty": b"",
}


@pytest.mark.parametrize("name", ["format0.token", "format1.token"])
def test_reads_what_hadoop_wrote(name):
    assert read_secrets((DATA / name).read_bytes()) == IN_BOTH


@pytest.mark.parametrize("name", ["format0.token", "format1.token"])
def test_reads_the_tokens_that_hadoop_wrote_and_shows_nothing_secret_of_them(name):
    tokens = read_tokens((DATA / name).read_bytes())
    assert tokens == (StoredToken(b"identifier", b"password", "HDFS_DELEGATION_TOKEN", "10.0.0.1:8020"),)
    assert repr(tokens[0]) == "StoredToken(kind='HDFS_DELEGATION_TOKEN', service='10.0.0.1:8020')"


def test_the_form_of_a_token_in_an_address():
    token = StoredToken(b"identifier", b"password" * 20, "HDFS_DELEGATION_TOKEN", "10.0.0.1:8020")
    raw = b"\x0aidentifier\x8f\xa0" + b"password" * 20 + b"\x15HDFS_DELEGATION_TOKEN\x0d10.0.0.1:8020"
    assert base64.urlsafe_b64decode(token.url_form() + "==") == raw
    assert "=" not in token.url_form()


def test_what_is_written_begins_as_hadoop_wants_it():
    # Magic, format 0, no token, one secret: alias of 1 byte, value of 200 (0x8f: one byte of length follows).
    assert write_secrets({"a": b"v" * 200}) == b"HDTS\x00\x00\x01\x01a\x8f\xc8" + b"v" * 200


@pytest.mark.parametrize("name", ["format0.token", "format1.token"])
def test_every_cut_is_noticed_and_names_an_offset(name):
    whole = (DATA / name).read_bytes()
    for n_bytes in range(len(whole)):
        with pytest.raises(RemoteProtocolError, match="offset") as caught:
            read_secrets(whole[:n_bytes])
        assert "the value" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"HDTS\x00\x87\x00\x80",  # -121: a negative count
        b"HDTS\x00\x00\x01\x8c\x7f\xff\xff\xff",  # a length of 2 GiB
        b"HDTS\x00\x8d\x7f\xff\xff",  # eight million tokens
        b"HDTS\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",  # a number without end
        b"HDTS\x01\x02\x0b\x00",  # an unknown wire type
        b"HDTS\x02",
        b"PK\x03\x04\x00",
    ],
)
def test_hostile_files_are_refused(data):
    with pytest.raises(RemoteProtocolError, match="offset"):
        read_secrets(data)


def test_an_alias_that_is_not_text():
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        read_secrets(b"HDTS\x00\x00\x01\x01\xff\x00")
