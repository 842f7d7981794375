"""A container takes the newest tokens over; a folder of this machine plays HDFS."""

import time

import pytest

from tests.unit.adapters.hadoop_rpc.test_tokens import NEWER, hdfs_token
from yarn_accel.adapters.hadoop_rpc import TokenFile, read_token_file, write_token_file
from yarn_accel.errors import AccelError
from yarn_accel.launch.token_follower import TOKENS_LOCATION, follow, interval_s, look
from yarn_accel.storage import Store

FIRST = TokenFile({"nn": hdfs_token()}, {"key": b"kept"})


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "container_tokens"
    path.write_bytes(write_token_file(FIRST))
    return path


@pytest.fixture
def uri(tmp_path):
    return f"file://{tmp_path}/application/tokens"


def test_the_token_that_lives_shortest_says_how_often_it_looks(place):
    short = hdfs_token(ends_ms=1_700_000_600_000)
    place.write_bytes(write_token_file(TokenFile({**FIRST.tokens, "ns2": short})))
    assert interval_s(place) == 30.0


def test_it_takes_newer_tokens_over_once_and_older_ones_never(place, uri):
    assert interval_s(place) == 300.0
    assert not look(uri, place), "the master has written none yet"
    Store().write_private(uri, write_token_file(NEWER))
    assert look(uri, place)
    newest = place.read_bytes()
    assert read_token_file(newest).tokens == {"nn": NEWER.tokens["nn"]}
    assert not look(uri, place)
    Store().write_private(uri, write_token_file(FIRST))
    assert not look(uri, place)
    assert place.read_bytes() == newest


@pytest.mark.parametrize("content", [b"HDTS\0", b"x", bytes(1 << 17)], ids=["empty", "short", "long"])
def test_what_is_no_token_file_changes_nothing(place, uri, content):
    Store().write_private(uri, content)
    with pytest.raises(AccelError):
        look(uri, place)
    assert place.read_bytes() == write_token_file(FIRST)


def test_only_the_owner_can_read_what_the_master_puts_there(uri, tmp_path):
    Store().mkdirs(f"file://{tmp_path}/application", 0o700)
    Store().write_private(uri, b"x")
    assert (tmp_path / "application").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "application" / "tokens").stat().st_mode & 0o777 == 0o600


def test_a_thread_follows_where_a_master_renews(place, uri, caplog):
    assert follow({"HADOOP_TOKEN_FILE_LOCATION": str(place)}) is None
    place.write_bytes(write_token_file(TokenFile({"nn": hdfs_token(ends_ms=1_700_000_000_001)})))
    before = place.read_bytes()
    done = follow({"HADOOP_TOKEN_FILE_LOCATION": str(place), TOKENS_LOCATION: uri})
    assert done is not None
    try:
        Store().write_private(uri, b"damaged")
        while "no newer tokens: token file" not in caplog.text:
            time.sleep(0.05)
        Store().write_private(uri, write_token_file(NEWER))
        while place.read_bytes() == before:
            time.sleep(0.05)
    finally:
        done.set()
    assert read_token_file(place.read_bytes()).tokens == {"nn": NEWER.tokens["nn"]}
