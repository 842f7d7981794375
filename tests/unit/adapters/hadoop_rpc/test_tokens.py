"""Token files in both formats, and what the mappers' own reader makes of them."""

import base64
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.hdfs_tokens import in_format_1
from yarn_accel.adapters.hadoop_rpc.tokens import (
    Token,
    TokenFile,
    TokenOwner,
    name_tokens,
    owner_of,
    read_identifier,
    read_token_file,
    replace_tokens,
    under_names,
    write_token_file,
)
from yarn_accel.client import token_file
from yarn_accel.client.writable import encode_number
from yarn_accel.errors import AccelError, AuthenticationError, LocalProtocolError, RemoteProtocolError

AM_RM = Token(b"identifier", b"hunter2", "YARN_AM_RM_TOKEN", "10.0.0.1:8030")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TOKENS = st.builds(Token, st.binary(max_size=300), st.binary(max_size=40), TEXT, TEXT)
FILES = st.builds(
    TokenFile,
    st.dictionaries(TEXT, TOKENS, max_size=4),
    st.dictionaries(TEXT, st.binary(max_size=300), max_size=4),
)


@given(FILES)
def test_what_is_written_is_read(content):
    assert read_token_file(write_token_file(content)) == content
    assert read_token_file(in_format_1(content)) == content


@given(FILES)
def test_the_mappers_reader_finds_the_same_secrets(content):
    assert token_file.read_secrets(write_token_file(content)) == content.secrets
    assert token_file.read_secrets(in_format_1(content)) == content.secrets


def test_bytes_of_format_0():
    content = TokenFile({"a": Token(b"i", b"p", "k", "s")}, {"x": b"y"})
    assert write_token_file(content) == b"HDTS\x00\x01\x01a\x01i\x01p\x01k\x01s\x01\x01x\x01y"


def test_a_token_is_found_by_its_kind():
    content = TokenFile({"": AM_RM, "hdfs": Token(b"", b"", "HDFS_DELEGATION_TOKEN", "")})
    assert content.of_kind("YARN_AM_RM_TOKEN") is AM_RM
    with pytest.raises(
        AuthenticationError, match=r"no NMToken \(kinds there: HDFS_DELEGATION_TOKEN, YARN_AM_RM"
    ):
        content.of_kind("NMToken")


def test_nothing_shows_a_secret():
    content = TokenFile({"alias": AM_RM}, {"secret": b"hidden"})
    shown = repr(content) + repr(AM_RM)
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
        (b"HDTS\x01\x7f", "127 bytes expected, 0 left"),
    ],
)
def test_damaged_files_are_refused(data, complaint):
    with pytest.raises(RemoteProtocolError, match=complaint):
        read_token_file(data)


def test_a_field_too_long_is_not_written():
    with pytest.raises(LocalProtocolError, match="1048577 bytes"):
        write_token_file(TokenFile(secrets={"a": bytes((1 << 20) + 1)}))


def test_mutations_end_in_an_error_of_ours():
    rng = random.Random(5)
    content = TokenFile({"a": AM_RM, "b": AM_RM}, {"x": bytes(200), "y": b"1"})
    for data in (write_token_file(content), in_format_1(content)):
        for _ in range(2000):
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(5, len(damaged))] = rng.randrange(256)
            try:
                read_token_file(bytes(damaged[: rng.randrange(len(damaged)) if rng.random() < 0.3 else None]))
            except AccelError as error:
                assert "hunter2" not in str(error)


ISSUED_MS = 1_700_000_000_000


def hdfs_token(
    owner=b"alice@R", ends_ms=1_800_000_000_000, sequence=7, real_user=b"", more=b"", issued_ms=ISSUED_MS
):
    texts = b"".join(encode_number(len(each)) + each for each in (owner, b"rm/m@R", real_user))
    numbers = b"".join(encode_number(each) for each in (issued_ms, ends_ms, sequence, 2))
    return Token(b"\0" + texts + numbers + more, b"password", "HDFS_DELEGATION_TOKEN", "")


#: Of a NameNode 2.x, as hdfs-native keeps it among its tests.
RECORDED = base64.b64decode("ABpoZGZzL2xvY2FsaG9zdEBFWEFNUExFLkNPTQAAigGJf+GCFIoBiaPuBhQBAg==")


def test_the_owner_and_the_end_of_an_hdfs_token():
    begin_s, end_s = 1_700_000_000.0, 1_800_000_000.0
    assert owner_of(hdfs_token()) == TokenOwner("alice@R", "rm/m@R", begin_s, end_s, "", 7)
    by_proxy = hdfs_token(b"bob", real_user=b"oozie/h@R")
    assert owner_of(by_proxy) == TokenOwner("bob", "rm/m@R", begin_s, end_s, "oozie/h@R", 7)
    assert read_identifier(RECORDED) == TokenOwner(
        "hdfs/localhost@EXAMPLE.COM", "", 1690067632.66, 1690672432.66, "", 1
    )


@pytest.mark.parametrize(
    "token",
    [
        Token(hdfs_token().identifier, b"", "RM_DELEGATION_TOKEN", ""),
        *(Token(hdfs_token().identifier[:end], b"", "HDFS_DELEGATION_TOKEN", "") for end in (0, 1, 5, 20)),
        Token(b"\1" + hdfs_token().identifier[1:], b"", "HDFS_DELEGATION_TOKEN", ""),
        hdfs_token(ends_ms=-1),
        hdfs_token(ends_ms=1 << 60),
        hdfs_token(sequence=(1 << 31) - 1),
        hdfs_token(b"alice\xff@R"),
        hdfs_token(b"alice\xed\xa0\x80@R"),
        hdfs_token(b"alice@R\nbob@R"),
        hdfs_token(b"a" * 5000),
        hdfs_token(more=b"\0"),
    ],
)
def test_an_identifier_that_is_none_is_refused(token):
    with pytest.raises(RemoteProtocolError, match="token"):
        owner_of(token)


@given(at=st.integers(0, len(RECORDED) - 1), value=st.binary(max_size=12), n_cut=st.integers(0, 4))
def test_a_damaged_identifier_is_read_whole_or_refused(at, value, n_cut):
    damaged = RECORDED[:at] + value + RECORDED[at + n_cut :]
    try:
        owner = read_identifier(damaged)
    except RemoteProtocolError:
        return
    assert owner.principal.isprintable() or not owner.principal.isascii()
    assert 0 <= owner.ends_s < 1e11


# ---- newer tokens in the place of a file's own

OLD_RM = Token(b"old rm", b"old", "RM_DELEGATION_TOKEN", "rm")
NEW_RM = Token(b"new rm", b"new", "RM_DELEGATION_TOKEN", "rm")
NEWER = TokenFile({"nn": hdfs_token(issued_ms=1_700_000_000_001), "rm": NEW_RM}, {"not": b"taken"})


def by_address(**changes):
    return replace(hdfs_token(**changes), service="10.0.0.1:8020")


@pytest.fixture
def place(tmp_path):
    """A container's token file."""
    path = tmp_path / "container_tokens"
    tokens = {"": AM_RM, "nn": hdfs_token(), "other": OLD_RM}
    path.write_bytes(write_token_file(TokenFile(tokens, {"key": b"kept"})))
    path.chmod(0o644)
    return path


def test_newer_tokens_take_the_place_of_older_ones_and_nothing_else_changes(place):
    assert replace_tokens(place, NEWER)
    found = read_token_file(place.read_bytes())
    assert found.tokens == {"": AM_RM, **NEWER.tokens}
    assert found.secrets == {"key": b"kept"}
    assert place.stat().st_mode & 0o777 == 0o600
    assert list(place.parent.iterdir()) == [place]


def test_a_kind_that_a_container_was_not_given_does_not_come_with_newer_tokens(place):
    place.write_bytes(write_token_file(TokenFile({"nn": hdfs_token()})))
    assert replace_tokens(place, NEWER)
    assert set(read_token_file(place.read_bytes()).tokens) == {"nn"}


def test_a_token_is_found_by_its_address_and_by_the_name_of_a_uri(place):
    place.write_bytes(write_token_file(TokenFile({"10.0.0.1:8020": by_address()}, {"key": b"kept"})))
    name_tokens(place, {"nn.site:8020": "10.0.0.1:8020"})
    name_tokens(place, {"nn.site:8020": "10.0.0.1:8020"})
    found = read_token_file(place.read_bytes())
    assert {alias: each.service for alias, each in found.tokens.items()} == {
        "10.0.0.1:8020": "10.0.0.1:8020",
        "nn.site:8020": "nn.site:8020",
    }
    assert found.secrets == {"key": b"kept"}
    newer = under_names(
        {"10.0.0.1:8020": by_address(issued_ms=ISSUED_MS + 1)}, {"nn.site:8020": "10.0.0.1:8020"}
    )
    assert replace_tokens(place, TokenFile(newer))
    assert dict(read_token_file(place.read_bytes()).tokens) == newer


def test_each_of_several_tokens_has_the_names_of_its_own_service():
    tokens = {
        "10.0.0.1:8020": by_address(),
        "ha-hdfs:ns": replace(by_address(), service="ha-hdfs:ns"),
        "10.0.0.2:9000": replace(by_address(), service="10.0.0.2:9000"),
        "rm": replace(by_address(), kind="RM_DELEGATION_TOKEN", service="10.0.0.3:8032"),
    }
    names = {"b:9000": "10.0.0.2:9000", "gone:8020": "10.0.0.9:8020", "rm:8032": "10.0.0.3:8032"}
    assert under_names(tokens, names) == {
        **tokens,
        "b:9000": replace(by_address(), service="b:9000"),
    }


@pytest.mark.parametrize("issued_ms", [1_700_000_000_000, 1_699_999_999_999])
def test_the_same_tokens_again_or_older_ones_change_nothing(place, issued_ms):
    before = place.read_bytes()
    assert not replace_tokens(place, TokenFile({"nn": hdfs_token(issued_ms=issued_ms), "rm": NEW_RM}))
    assert place.read_bytes() == before


@pytest.mark.parametrize(
    ("newer", "error"),
    [
        ({"nn": hdfs_token(b"bob@R", issued_ms=1_800_000_000_000)}, AuthenticationError),
        ({"nn": hdfs_token(b"alice@OTHER", issued_ms=1_800_000_000_000)}, AuthenticationError),
        ({"rm": NEW_RM}, AuthenticationError),
        ({"nn": Token(b"\0", b"", "HDFS_DELEGATION_TOKEN", "")}, RemoteProtocolError),
    ],
)
def test_tokens_of_another_owner_or_none_are_refused(place, newer, error):
    before = place.read_bytes()
    with pytest.raises(error) as caught:
        replace_tokens(place, TokenFile(newer))
    assert place.read_bytes() == before
    assert "password" not in str(caught.value)
