"""What numpy and our own writer write is read; what is broken or hostile is refused by name, and soon."""

import io
import struct
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from yarn_accel.errors import RejectedError
from yarn_accel.formats import BytesInMemory, array_file, conversions, describe, load
from yarn_accel.formats.npz_writer import npz_parts
from yarn_accel.uris import split_member

ARRAYS = {
    "q": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "piv": np.arange(5, dtype=np.int32),
    "empty": np.zeros((0, 3), np.float32),
    "scalar": np.array(2.5),
    "large": np.random.default_rng(1).standard_normal((100, 200)),
}


def saved(save, *args, **arrays):
    file = io.BytesIO()
    save(file, *args, **arrays)
    return file.getvalue()


def written(arrays):
    return b"".join(npz_parts(arrays))


def zipped(*members, **options):
    """An archive of these (name, content)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def npy(array):
    return saved(np.save, array)


def read(content, uri="x.npz"):
    """The arrays by name, as both sides read them."""
    source, found = BytesInMemory(content), {}
    for each in describe(source, uri):
        memory = np.full(each.spec.nbytes, 77, np.uint8)
        load(each, source, memory.data)
        array = memory.view(each.spec.dtype).reshape(each.spec.shape, order=each.spec.order)
        found[each.place.partition("[")[2][:-1]] = array
    return found


def refused(content, uri="x.npz"):
    with pytest.raises(RejectedError) as caught:
        read(content, uri)
    assert caught.value.message.startswith(uri.partition("#")[0])
    return f"{caught.value.code}: {caught.value.message}"


WRITERS = {
    "ours": written,
    "savez": lambda arrays: saved(np.savez, **arrays),
    "savez_compressed": lambda arrays: saved(np.savez_compressed, **arrays),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_whatever_wrote_it_the_arrays_are_the_same(writer):
    found = read(WRITERS[writer](ARRAYS))
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert np.array_equal(found[name], array)
        assert (found[name].dtype, found[name].flags.f_contiguous) == (array.dtype, array.flags.f_contiguous)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_headers_of_all_versions_are_read(version):
    content = saved(np.lib.format.write_array, ARRAYS["q"], version=version)
    (found,) = read(content, "x.npy").values()
    assert np.array_equal(found, ARRAYS["q"])


def test_numpy_reads_what_we_write_and_every_array_is_aligned_in_the_file():
    content = written(ARRAYS)
    with np.load(io.BytesIO(content)) as loaded:
        assert {name: array.tolist() for name, array in loaded.items()} == {
            name: array.tolist() for name, array in ARRAYS.items()
        }
    for each in describe(BytesInMemory(content), "x.npz"):
        assert (each.start + each.header_bytes) % 64 == 0


def test_writing_copies_no_large_array():
    parts = [part for part in npz_parts(ARRAYS) if isinstance(part, memoryview)]
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), ARRAYS["large"]) for part in parts)


def test_one_array_is_named_behind_a_hash_and_others_are_not_read():
    content = bytearray(written(ARRAYS))
    first = content.index(b"\x93NUMPY")
    content[first : first + 6] = b"broken"
    assert list(read(bytes(content), "hdfs://nn/x.npz#piv")) == ["piv"]
    assert refused(bytes(content), "x.npz#no").endswith(
        "there is no array 'no'; there are q, piv, empty, scalar, large"
    )
    assert split_member("file:///a#b.bin") == ("file:///a#b.bin", "")


def test_only_headers_are_read_to_tell_what_is_in_a_file():
    class Counting(BytesInMemory):
        n_read = 0

        def read_into(self, start, view):
            self.n_read += len(view)
            super().read_into(start, view)

    source = Counting(written({"a": np.zeros(1 << 18), "b": np.zeros(1 << 18)}))
    assert [each.spec.shape for each in describe(source, "x.npz")] == [(1 << 18,), (1 << 18,)]
    assert source.n_read < 1 << 17


@pytest.mark.parametrize("dtype", [">f8", ">f4", ">i2", ">c16", "<f2", "<u8", "|b1", ">f2"])
@pytest.mark.parametrize("uri", ["x.npz", "x.npy"])
def test_any_order_of_bytes_is_read_and_a_change_is_said(dtype, uri):
    array = np.array([[1, 0, 3], [4, 5, 6]], dtype)
    content = npy(array) if uri == "x.npy" else saved(np.savez_compressed, a=array)
    (found,) = read(content, uri).values()
    assert np.array_equal(found, array)
    assert found.dtype == array.dtype.newbyteorder("<")
    changed = conversions(describe(BytesInMemory(content), uri))
    place = "x.npz[a]" if uri == "x.npz" else uri
    assert changed == (f"{place}: {dtype} to <{dtype[1:]}" if dtype[0] == ">" else "")


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["a"]), np.zeros(2, [("x", "<f8")]), np.zeros(2, "M8[s]")]
)
def test_objects_records_and_text_are_refused(array):
    content = saved(np.savez, a=np.eye(2), bad=array)
    assert "bad-npy: x.npz[bad]: arrays of type" in refused(content)
    assert "bad-npy: x.npy: arrays of type" in refused(
        saved(lambda file, value: np.save(file, value, allow_pickle=True), array), "x.npy"
    )


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f8', 'fortran_order': 1, 'shape': (1,)}",
        b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
        *(b"{'descr': '<f8'}", b"[", b"\0", b"1", b"'" * 99, b""),
    ],
)
def test_a_header_that_is_none_is_refused(header):
    content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(8)
    assert "bad-npy: x.npy: not an .npy file" in refused(content, "x.npy")


@pytest.mark.parametrize("cut", [-1, 1])
def test_an_npy_of_another_length_is_refused(cut):
    content = npy(np.eye(3))
    content = content[:-1] if cut < 0 else content + b"x"
    assert f"{72 + cut} bytes do not make shape (3, 3) of <f8" in refused(content, "x.npy")


def with_declared_size(array, shape):
    """A compressed archive whose header and directory promise another shape than its content has."""
    header = npy(np.zeros(0)).replace(b"(0,)", str(shape).encode())[:128]
    content = header[:128].ljust(128) + array.tobytes()
    packed = bytearray(zipped(("a.npy", content), compression=zipfile.ZIP_DEFLATED))
    at = packed.index(b"PK\1\2")
    struct.pack_into("<L", packed, at + 24, len(header) + 8 * int(np.prod(shape)))
    return bytes(packed)


def test_a_bomb_is_inflated_no_further_than_its_header_says():
    bomb = with_declared_size(np.zeros(1 << 20), (4,))
    assert refused(bomb).endswith("makes more bytes than its header says")
    short = with_declared_size(np.zeros(4), (1 << 20,))
    assert refused(short).endswith("makes fewer bytes than its header says")


def compressed_differently(flags=0, method=zipfile.ZIP_STORED):
    content = bytearray(zipped(("a.npy", npy(np.eye(2)))))
    at = content.index(b"PK\1\2")
    struct.pack_into("<HH", content, at + 8, flags, method)
    return bytes(content)


def overlapping():
    content = bytearray(zipped(("a.npy", npy(np.eye(2))), ("b.npy", npy(np.eye(2)))))
    at = content.rindex(b"PK\1\2")
    struct.pack_into("<L", content, at + 42, 0)
    return bytes(content)


def with_bytes_behind_the_stream():
    raw = npy(np.eye(2))
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    stream = packer.compress(raw) + packer.flush()
    content = bytearray(zipped(("a.npy", stream + b"more")))
    at = content.index(b"PK\1\2")
    struct.pack_into("<H", content, at + 10, zipfile.ZIP_DEFLATED)
    struct.pack_into("<LLL", content, at + 16, zlib.crc32(raw), len(stream) + 4, len(raw))
    return bytes(content)


def damaged():
    content = bytearray(saved(np.savez, a=np.eye(20)))
    content[content.index(b"\x93NUMPY") + 300] ^= 1
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "bad-npz: x.npz: not a zip archive"),
        (b"PK\3\4 no zip at all" * 5, "not a zip archive, cut short, or something follows its end"),
        (written({"a": np.eye(2)}) + b"x", "something follows its end"),
        (b"x" + written({"a": np.eye(2)}), "its directory is not where its end says"),
        (zipped(("a.npy", npy(np.eye(2))), ("a", npy(np.eye(2)))), "a: there are two arrays of this name"),
        (compressed_differently(flags=1), "a.npy: encrypted"),
        (compressed_differently(method=zipfile.ZIP_BZIP2), "a.npy: compressed by method 12"),
        (overlapping(), "b.npy: overlaps another member"),
        (with_bytes_behind_the_stream(), "x.npz[a]: bytes follow the end of its compressed content"),
        (damaged(), "x.npz[a]: damaged, its checksum does not match"),
        (zipped(("readme.txt", "hello")), "bad-npy: x.npz[readme.txt]: not an .npy file"),
        (zipped(("in.npz", written({"a": np.eye(2)}))), "bad-npy: x.npz[in.npz]: not an .npy file"),
        (zipped(("folder/", b"")), "bad-npy: x.npz[folder/]: not an .npy file"),
        (zipped(("a.npy", npy(np.eye(2)) + b"x")), "x.npz[a]: 33 bytes do not make shape"),
        (zipped(*((f"{i}.npy", npy(np.eye(1))) for i in range(65))), "65 arrays, at most 64"),
    ],
)
def test_what_is_no_plain_archive_is_refused_by_name(content, reason):
    assert reason in refused(content)


@pytest.mark.parametrize("is_needed", [True, False])
def test_an_archive_with_large_lengths_is_read(is_needed):
    """numpy.savez writes them beyond 4 GiB, others always, beside the lengths of 32 bits."""
    content = written({"a": np.eye(3)})
    at = content.index(b"PK\1\2")
    (length, here) = struct.unpack_from("<LL", content, at + 20)[0], 0
    entry = bytearray(content[at : content.index(b"PK\5\6")])
    struct.pack_into("<LL", entry, 20, 0xFFFFFFFF, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, 20)
    struct.pack_into("<L", entry, 42, here)
    entry += struct.pack("<HHQQ", 1, 16, length, length)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entry), at)
    place = struct.pack("<4sLQL", b"PK\6\7", 0, at + len(entry), 1)
    lengths = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF) if is_needed else (1, 1, len(entry), at)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *lengths, 0)
    large = content[:at] + bytes(entry) + end64 + place + end
    assert np.array_equal(read(large)["a"], np.eye(3))
    assert np.array_equal(np.load(io.BytesIO(large))["a"], np.eye(3))


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), st.sampled_from(["ours", "savez_compressed"]))
def test_a_damaged_file_is_refused_or_read_but_never_crashes(data, writer):
    content = bytearray(WRITERS[writer]({"a": np.eye(3), "b": np.arange(4)}))
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        arrays = read(bytes(content))
    except RejectedError as error:
        assert str(error).startswith("x")
    else:
        assert all(isinstance(array, np.ndarray) for array in arrays.values())


def test_a_header_is_parsed_again_where_pythons_parser_fails(monkeypatch):
    """Before Python 3.13 threads that parse at the same time may meet SystemError."""
    parse, n_left = array_file.ast.literal_eval, [2]

    def failing(text):
        if n_left[0]:
            n_left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch")
        return parse(text)

    monkeypatch.setattr(array_file.ast, "literal_eval", failing)
    assert array_file.parse_header(saved(np.save, ARRAYS["q"])).spec.shape == (3, 4)
    n_left[0] = 1000
    with pytest.raises(array_file.BadNpyError, match="not an"):
        array_file.parse_header(saved(np.save, ARRAYS["q"]))
