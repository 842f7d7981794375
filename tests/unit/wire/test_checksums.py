"""Checksums that mean the same everywhere, and the digest that tells payloads apart."""

import builtins
import hashlib
import random
import sys

import pytest

from yarn_accel.errors import LocalProtocolError
from yarn_accel.wire import available_checksums, payload_digest
from yarn_accel.wire.checksums import checksum_maker

DATA = random.Random(7).randbytes(300_000)


@pytest.fixture
def without_packages(monkeypatch):
    real = builtins.__import__

    def only_standard(name, *rest):
        if name in ("xxhash", "google_crc32c"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", only_standard)


def checksum(name, *parts):
    running = checksum_maker(name)()
    for part in parts:
        running.update(part)
    return running.digest()


@pytest.mark.parametrize(
    ("name", "trailer"),
    [("xxh3", "78af5f94892f3950"), ("crc32c", "e3069283"), ("crc32", "cbf43926"), ("none", "")],
)
def test_known_values(name, trailer):
    """The values of the checksums' own specifications: "123456789" for the CRCs, "abc" for XXH3."""
    assert checksum(name, b"abc" if name == "xxh3" else b"123456789").hex() == trailer


@pytest.mark.parametrize("name", available_checksums())
def test_the_pieces_do_not_matter(name):
    whole = checksum(name, DATA)
    view = memoryview(bytearray(DATA))
    assert checksum(name, view[:1], view[1:70_000], view[70_000:]) == whole
    assert checksum(name, DATA[:-1]) != whole


def test_without_the_packages_crc32_remains(without_packages):
    assert available_checksums() == ("crc32",)
    with pytest.raises(LocalProtocolError, match="xxh3"):
        checksum_maker("xxh3")
    assert payload_digest([b"abc"]) == hashlib.blake2b(bytes(7) + b"\3abc", digest_size=16).digest()


def test_both_ends_agree_on_what_both_can_compute(make_pair, without_packages):
    asked = {"checksums": ("xxh3", "crc32c", "crc32")}
    pair = make_pair(client_options=asked, server_options=asked).open()
    assert pair.client.checksum == pair.server.checksum == "crc32"


@pytest.mark.parametrize("n_bytes", [0, 1, 65_536, 65_537, 300_000])
def test_the_digest_does_not_depend_on_the_parts(n_bytes):
    whole = payload_digest([DATA[:n_bytes]])
    view = memoryview(DATA)[:n_bytes]
    cuts = sorted(random.Random(n_bytes).sample(range(n_bytes + 1), min(20, n_bytes)))
    parts = [view[start:end] for start, end in zip([0, *cuts], [*cuts, n_bytes], strict=True)]
    assert payload_digest(parts) == whole
    assert len(whole) == 16


@pytest.mark.parametrize("n_bytes", [65_537, 66_560, 300_001])
def test_the_digest_is_the_same_before_numpy_is_loaded(n_bytes, monkeypatch):
    import numpy

    found = payload_digest([DATA[:n_bytes]])
    assert numpy.__name__ in sys.modules
    monkeypatch.delitem(sys.modules, "numpy")
    assert payload_digest([DATA[:n_bytes]]) == found


@pytest.mark.parametrize("n_bytes", [1, 1000, 65_536])
def test_the_digest_of_a_small_payload_covers_every_byte(n_bytes):
    whole = payload_digest([DATA[:n_bytes]])
    for at in random.Random(1).sample(range(n_bytes), min(n_bytes, 50)):
        changed = bytearray(DATA[:n_bytes])
        changed[at] ^= 1
        assert payload_digest([changed]) != whole


def test_the_digest_of_a_large_payload_covers_length_both_ends_and_samples():
    whole = payload_digest([DATA])
    assert payload_digest([DATA, b"\0"]) != whole

    def is_found(at):
        return payload_digest([DATA[:at], bytes([DATA[at] ^ 1]), DATA[at + 1 :]]) != whole

    assert sum(map(is_found, range(0, len(DATA), 1000))) > 50
    assert all(map(is_found, (0, 1023, len(DATA) - 1024, len(DATA) - 1)))
    assert payload_digest([bytes(100_000)]) != payload_digest([bytes(100_001)])
