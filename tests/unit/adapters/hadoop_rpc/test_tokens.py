"""Token files in both formats, and what the mappers' own reader makes of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.adapters.hadoop_rpc.protobuf import delimited, encode
from yarn_accel.adapters.hadoop_rpc.tokens import (
    CredentialsEntry,
    StoredCredentials,
    Token,
    TokenFile,
    read_token_file,
    write_token_file,
)
from yarn_accel.client import token_file
from yarn_accel.errors import AccelError, AuthenticationError, LocalProtocolError, RemoteProtocolError

AM_RM = Token(b"identifier", b"hunter2", "YARN_AM_RM_TOKEN", "10.0.0.1:8030")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TOKENS = st.builds(Token, st.binary(max_size=300), st.binary(max_size=40), TEXT, TEXT)
FILES = st.builds(
    TokenFile,
    st.dictionaries(TEXT, TOKENS, max_size=4),
    st.dictionaries(TEXT, st.binary(max_size=300), max_size=4),
)


def in_protobuf(content: TokenFile) -> bytes:
    tokens = tuple(CredentialsEntry(alias, token=token) for alias, token in content.tokens.items())
    entries = tuple(CredentialsEntry(alias, secret=value) for alias, value in content.secrets.items())
    return b"HDTS\x01" + delimited(encode(StoredCredentials(tokens, entries)))


@given(FILES)
def test_what_is_written_is_read(content: TokenFile) -> None:
    assert read_token_file(write_token_file(content)) == content
    assert read_token_file(in_protobuf(content)) == content


@given(FILES)
def test_the_mappers_reader_finds_the_same_secrets(content: TokenFile) -> None:
    assert token_file.read_secrets(write_token_file(content)) == content.secrets
    assert token_file.read_secrets(in_protobuf(content)) == content.secrets


def test_bytes_of_format_0() -> None:
    content = TokenFile({"a": Token(b"i", b"p", "k", "s")}, {"x": b"y"})
    assert write_token_file(content) == b"HDTS\x00\x01\x01a\x01i\x01p\x01k\x01s\x01\x01x\x01y"


def test_a_token_is_found_by_its_kind() -> None:
    content = TokenFile({"": AM_RM, "hdfs": Token(b"", b"", "HDFS_DELEGATION_TOKEN", "")})
    assert content.of_kind("YARN_AM_RM_TOKEN") is AM_RM
    with pytest.raises(
        AuthenticationError, match=r"no NMToken \(kinds there: HDFS_DELEGATION_TOKEN, YARN_AM_RM"
    ):
        content.of_kind("NMToken")


def test_nothing_shows_a_secret() -> None:
    content = TokenFile({"alias": AM_RM}, {"secret": b"hidden"})
    shown = repr(content) + repr(AM_RM) + repr(CredentialsEntry("a", AM_RM, b"hidden"))
    assert "hunter2" not in shown
    assert "hidden" not in shown


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "does not begin with 'HDTS'"),
        (b"HDTS", "does not begin"),
        (b"HDTX\x00\x00\x00", "does not begin"),
        (b"HDTS\x02", "unknown format 2"),
        (b"HDTS\x00\x01\x05ab", "5 bytes expected, 2 left"),
        (b"HDTS\x00\x8c\x7f\xff\xff\xff", r"outside 0\.\.10000"),
        (b"HDTS\x00\xff", r"outside 0\.\.10000"),
        (b"HDTS\x01\x7f", "127 bytes announced"),
    ],
)
def test_damaged_files_are_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        read_token_file(data)


def test_a_field_too_long_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="1048577 bytes"):
        write_token_file(TokenFile(secrets={"a": bytes((1 << 20) + 1)}))


def test_mutations_end_in_an_error_of_ours() -> None:
    rng = random.Random(5)
    content = TokenFile({"a": AM_RM, "b": AM_RM}, {"x": bytes(200), "y": b"1"})
    for data in (write_token_file(content), in_protobuf(content)):
        for _ in range(2000):
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(5, len(damaged))] = rng.randrange(256)
            try:
                read_token_file(bytes(damaged[: rng.randrange(len(damaged)) if rng.random() < 0.3 else None]))
            except AccelError as error:
                assert "hunter2" not in str(error)
