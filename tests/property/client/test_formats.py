"""Files are read as they were written, and no byte string can do more than raise the documented error."""

import contextlib
import io

from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.client.binding import Binding, Endpoint, choose, format_binding, parse_binding
from yarn_accel.client.token_file import read_secrets, write_secrets
from yarn_accel.client.typed_bytes import TypedBytesReader, encode_typed, encode_typed_pair
from yarn_accel.client.writable import decode_number, encode_number, n_bytes_after
from yarn_accel.errors import RejectedError, RemoteProtocolError

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=300)
INTS = st.integers(-(2**63), 2**63 - 1)
VALUES = st.one_of(st.binary(max_size=300), TEXT, INTS, st.booleans(), st.floats(allow_nan=False))
NODES = st.sampled_from(["w1", "w2", "w3", "w4", "w5"])


@given(INTS)
def test_variable_length_numbers(value):
    encoded = encode_number(value)
    assert n_bytes_after(encoded[0]) == len(encoded) - 1 <= 8
    assert decode_number(encoded) == value


@given(st.dictionaries(TEXT, st.binary(max_size=300), max_size=5))
def test_secrets(secrets):
    assert read_secrets(write_secrets(secrets)) == secrets


@given(st.binary(max_size=200), st.sampled_from([b"", b"HDTS\x00", b"HDTS\x01"]))
def test_any_bytes_as_a_token_file(content, start):
    try:
        secrets = read_secrets(start + content)
    except RemoteProtocolError:
        return
    assert sum(map(len, secrets.values())) <= len(content)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=10))
def test_typed_bytes(pairs):
    content = b"".join(encode_typed_pair(key, value) for key, value in pairs)
    reader = TypedBytesReader(io.BytesIO(content))
    assert [(type(k), k, type(v), v) for k, v in reader] == [(type(k), k, type(v), v) for k, v in pairs]
    assert reader.offset == len(content)


@given(st.binary(max_size=200))
def test_any_bytes_as_typed_bytes(content):
    reader = TypedBytesReader(io.BytesIO(content), max_bytes=64)
    with contextlib.suppress(RemoteProtocolError):
        for _key, value in reader:
            assert isinstance(value, RejectedError) or len(encode_typed(value)) <= 9 + 64
    assert reader.offset <= len(content)


@st.composite
def bindings(draw):
    names = draw(st.lists(TEXT.filter(bool), unique=True, max_size=6))
    servers = tuple(
        Endpoint(name, draw(TEXT) or "h", draw(st.integers(1, 65535)), draw(TEXT), draw(NODES | st.just("")))
        for name in names
    )
    racks = draw(st.dictionaries(NODES, st.sampled_from(["/r1", "/r2"])))
    choices = st.lists(st.sampled_from(names), unique=True).map(tuple) if names else st.just(())
    return Binding(servers, racks, draw(st.dictionaries(NODES, choices)))


@given(bindings())
def test_bindings_survive_their_file(binding):
    assert parse_binding(format_binding(binding)) == binding


@given(bindings(), NODES, st.integers(-5, 50))
def test_every_server_is_chosen_exactly_once_and_the_own_first(binding, node, spread):
    chosen = choose(binding, node, spread)
    assert sorted(e.name for e in chosen) == sorted(e.name for e in binding.servers)
    is_own = [endpoint.node == node for endpoint in chosen]
    assert is_own == sorted(is_own, reverse=True)
