from __future__ import annotations

import io
import itertools
import struct
import sys
import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays
from PIL import Image
from skimage.feature import local_binary_pattern

from jobs.images.make_input import ALL_PHOTOGRAPHS
from tests.examples import examples
from tests.fixtures.refusals import refused
from yarn_accel.errors import RejectedError
from yarn_accel.operations import compiled, features, get, pixels

LEVELS = st.integers(0, 255) | st.integers(98, 100)


def photograph(name):
    (path,) = (photo.locate() for photo in ALL_PHOTOGRAPHS if photo.name == name)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def png(array, kind="PNG", **options):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, kind, **options)
    return stream.getvalue()


def run(name, images, **params):
    blob = np.frombuffer(b"".join(images), dtype=np.uint8)
    return get(name).run([blob, np.array([len(image) for image in images], dtype=np.int64)], params)


def many_ties():
    """With three levels interpolated values often equal the centre, and rounding decides."""
    return np.random.default_rng(4).integers(0, 3, (400, 500)).astype(np.uint8)


def assert_equals_skimage(grey):
    expected = local_binary_pattern(grey, 8, 1, "default")
    np.testing.assert_array_equal(features.patterns(grey[None])[0], expected)
    uniform = local_binary_pattern(grey, 8, 1, "nri_uniform")
    np.testing.assert_array_equal(features.UNIFORM[features.patterns(grey[None])[0]], uniform)


@pytest.mark.parametrize("name", ["china", "flower", "brick", "camera", "chelsea", "moon"])
def test_every_pattern_of_real_photographs_equals_scikit_image(name):
    assert_equals_skimage(pixels.grey(photograph(name)))


@settings(max_examples=examples(60), deadline=None)
@given(numpy_arrays(np.uint8, st.tuples(*[st.integers(1, 12)] * 2), elements=LEVELS))
def test_every_pattern_of_any_image_equals_scikit_image(grey):
    assert_equals_skimage(grey)


def test_all_256_patterns_map_to_the_bins_of_scikit_image():
    grey = np.random.default_rng(1).integers(0, 4, (300, 300)).astype(np.uint8)
    assert len(np.unique(features.patterns(grey[None]))) == 256
    assert_equals_skimage(grey)
    assert sorted(np.unique(features.UNIFORM)) == list(range(59))


@pytest.mark.parametrize(("bins", "method"), [(59, "nri_uniform"), (256, "default")])
def test_the_operation_gives_normalized_histograms(bins, method):
    patches = [photograph("china")[y : y + 64, y : y + 80] for y in (0, 100, 200)]
    features = run("lbp", [png(patch) for patch in patches], bins=bins).arrays["features"]
    assert features.dtype == np.float32
    for patch, row in zip(patches, features, strict=True):
        codes = local_binary_pattern(np.asarray(Image.fromarray(patch).convert("L")), 8, 1, method)
        expected = np.bincount(codes.astype(int).ravel(), minlength=bins) / codes.size
        np.testing.assert_array_equal(row, expected.astype(np.float32))


def test_strips_of_a_large_image_are_seamless(monkeypatch):
    image = photograph("flower")
    whole = features.histogram_256(pixels.grey(image)[None]), features.histogram_hsv(image[None])
    monkeypatch.setattr(features, "_STRIP_PIXELS", 7000)
    np.testing.assert_array_equal(features.histogram_256(pixels.grey(image)[None]), whole[0])
    np.testing.assert_array_equal(features.histogram_hsv(image[None]), whole[1])
    assert_equals_skimage(many_ties())


def test_grey_in_both_forms_equals_pillow():
    image = np.random.default_rng(2).integers(0, 256, (300, 300, 3)).astype(np.uint8)
    out = np.empty(300 * 300, np.uint8)
    compiled.grey(image.reshape(-1), out)
    for found in (pixels.grey(image), out.reshape(300, 300)):
        np.testing.assert_array_equal(found, np.asarray(Image.fromarray(image).convert("L")))


def exact_bin(red, green, blue, bins):
    """The definition, in fractions."""
    largest, spread = max(red, green, blue), max(red, green, blue) - min(red, green, blue)
    hue = saturation = Fraction(0)
    if spread:
        saturation = Fraction(spread, largest)
        if largest == red:
            hue = Fraction(green - blue, spread)
        elif largest == green:
            hue = 2 + Fraction(blue - red, spread)
        else:
            hue = 4 + Fraction(red - green, spread)
    h, s, v = bins
    bin_s = min(int(saturation * s), s - 1)
    return (int(hue / 6 % 1 * h) * s + bin_s) * v + int(Fraction(largest, 256) * v)


@given(
    st.lists(st.tuples(*[st.integers(0, 255)] * 3), min_size=1, max_size=20),
    st.sampled_from([(16, 4, 4), (18, 3, 3), (1, 1, 1), (7, 5, 256)]),
)
def test_colour_bins_follow_the_definition_exactly(points, bins):
    found = features.hsv_bins(np.array(points, dtype=np.uint8), bins)
    assert found.tolist() == [exact_bin(*point, bins) for point in points]


def test_features_are_texture_and_colour_side_by_side():
    images = [png(photograph("coffee")[:64, :64]), png(photograph("brick")[:64, :64])]
    both = run("features", images).arrays["features"]
    np.testing.assert_array_equal(both[:, :59], run("lbp", images).arrays["features"])
    np.testing.assert_array_equal(both[:, 59:], run("colour", images).arrays["features"])
    np.testing.assert_allclose(both.sum(axis=1), 2.0, rtol=1e-6)


def test_roots_turn_distance_into_hellinger_distance():
    images = [png(photograph("coffee")[:64, :64])]
    plain = run("features", images).arrays["features"]
    np.testing.assert_array_equal(run("features", images, root=True).arrays["features"], np.sqrt(plain))


def test_an_image_does_not_depend_on_its_neighbours_in_the_batch():
    sizes = [(64, 64), (64, 64), (10, 300), (1, 1), (64, 64), (300, 200)]
    images = [png(photograph("flower")[: size[0], : size[1]]) for size in sizes]
    together = run("features", images).arrays["features"]
    for image, row in zip(images, together, strict=True):
        np.testing.assert_array_equal(run("features", [image]).arrays["features"][0], row)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "PPM"])
def test_bad_images_cost_their_own_row_only(kind):
    good = png(photograph("china")[:64, :64], kind)
    images = [good, good[: len(good) // 2], b"", b"no image", good]
    outcome = run("features", images)
    assert [(index, code) for index, code, _ in outcome.info["rejected"]] == [
        (1, "broken-image"),
        (2, "not-an-image"),
        (3, "not-an-image"),
    ]
    assert outcome.info["n"] == 5
    assert not outcome.arrays["features"][1:4].any()
    np.testing.assert_array_equal(outcome.arrays["features"][0], outcome.arrays["features"][4])


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255), st.sampled_from(["PNG", "JPEG", "PPM"]))
def test_a_damaged_image_never_ends_in_another_error(place, mask, kind):
    damaged = bytearray(png(photograph("china")[:16, :16], kind))
    damaged[place % len(damaged)] ^= mask
    try:
        found = pixels.decode(bytes(damaged), max_pixels=4096)
    except RejectedError:
        return
    assert found.dtype == np.uint8
    assert found.shape[0] * found.shape[1] <= 4096


def test_a_bomb_is_refused_on_its_header():
    stream = io.BytesIO()
    Image.new("1", (30_000, 30_000)).save(stream, "PNG")
    with refused("too-large"):
        pixels.decode(stream.getvalue())
    small = png(np.zeros((100, 41, 3), np.uint8))
    with pytest.raises(RejectedError, match="41 x 100 pixels, the limit is 4096"):
        pixels.decode(small, max_pixels=4096)
    with refused("too-large", match="50000000 x 1 pixels"):
        pixels.decode(deep_png(np.zeros((1, 9), np.uint16), width=50_000_000))


def chunk(name, content):
    return struct.pack(">L", len(content)) + name + content + struct.pack(">L", zlib.crc32(name + content))


def raw_png(width, height, n_bits, kind, rows, is_interlaced=0):
    header = chunk(b"IHDR", struct.pack(">LLBBBBB", width, height, n_bits, kind, 0, 0, is_interlaced))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def deep_png(levels, width=0):
    """A PNG of 16 bits per channel, (height, width) or (height, width, 2, 3 or 4); its header may lie."""
    height, n_columns, *channels = levels.shape
    kind = {(): 0, (2,): 4, (3,): 2, (4,): 6}[tuple(channels)]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)
    return raw_png(width or n_columns, height, 16, kind, rows)


@pytest.mark.parametrize("channels", [(), (2,), (3,), (4,)])
def test_of_16_bits_per_channel_the_upper_8_are_taken(channels):
    levels = np.random.default_rng(1).integers(0, 1 << 16, (7, 9, *channels)).astype(np.uint16)
    upper = (levels >> 8).astype(np.uint8)
    if channels in ((3,), (4,)):
        expected = upper[:, :, :3]
    else:
        expected = np.repeat((upper[:, :, :1] if channels else upper[:, :, None]), 3, axis=2)
    np.testing.assert_array_equal(pixels.decode(deep_png(levels)), expected)


@pytest.mark.parametrize("kind", ["WebP", "GIF", "TIFF", "BMP"])
def test_other_formats_are_refused_by_their_name_and_never_decoded(kind, monkeypatch):
    """However large one says it is: its decoder does not see it."""
    encoded = png(np.zeros((4, 4, 3), np.uint8), kind.upper())
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(RejectedError, match=f"a {kind} image; known: PNG, JPEG, PPM") as caught:
        pixels.decode(encoded)
    assert caught.value.code == "unsupported-image"
    assert caught.value.cure == "convert it to PNG"


def with_chunk(encoded, name, content, at=33):
    """The PNG with one more chunk, behind its header by default."""
    return encoded[:at] + chunk(name, content) + encoded[at:]


LARGE = zlib.compress(bytes(3 << 20))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (b"zTXt", b"workflow\0\0" + LARGE),
        (b"iTXt", b"workflow\0\1\0\0\0" + LARGE),
        (b"tEXt", b"workflow\0" + b"x" * (3 << 20)),
        (b"iCCP", b"cmyk\0\0" + LARGE),
        (b"eXIf", b"MM" + b"x" * (3 << 20)),
        (b"zTXt", b"workflow\0\0no stream"),
        (b"gAMA", b"1"),
        (b"tRNS", b""),
        (b"acTL", b"\0"),
    ],
)
def test_metadata_of_a_png_is_skipped_whatever_is_in_it(name, content, monkeypatch):
    patch = photograph("china")[:20, :20]
    encoded = png(patch)
    monkeypatch.setattr(zlib, "decompressobj", None)
    np.testing.assert_array_equal(pixels.decode(with_chunk(encoded, name, content)), patch)
    behind = with_chunk(encoded, name, content, at=len(encoded) - 12)
    np.testing.assert_array_equal(pixels.decode(behind), patch)


def test_metadata_of_a_png_is_checked_by_its_checksum():
    damaged = bytearray(with_chunk(png(photograph("china")[:20, :20]), b"tEXt", b"Title\0flower"))
    damaged[45] ^= 1
    with refused("broken-image", match="bad checksum in b'tEXt'"):
        pixels.decode(bytes(damaged))


def with_segment(encoded, kind, content):
    """The JPEG with one more segment, in front of all others."""
    return encoded[:2] + struct.pack(">BBH", 0xFF, kind, len(content) + 2) + content + encoded[2:]


def test_metadata_of_a_jpeg_is_skipped_whatever_is_in_it():
    encoded = png(photograph("china")[:20, :20], "JPEG")
    expected = pixels.decode(encoded)
    exif = b"Exif\0\0II*\0\x08\0\0\0\x02\0\x1a\x01\x05\0"
    bare = encoded[:2] + encoded[2 + 2 + struct.unpack(">H", encoded[4:6])[0] :]
    for content in (
        exif,
        b"Exif\0\0",
        b"Exif\0\0" + b"x" * 65_000,
        b"http://ns.adobe.com/xap/1.0/\0" + b"<" * 999,
    ):
        for jpeg in (encoded, bare):
            found = pixels.decode(with_segment(jpeg, 0xE1, content))
            np.testing.assert_array_equal(found, expected)
    many = encoded
    for number in range(40):
        many = with_segment(many, 0xE2, b"ICC_PROFILE\0" + bytes([number + 1, 40]) + b"x" * 65_000)
    for kind in (0xED, 0xFE, 0xE5):
        many = with_segment(many, kind, b"Photoshop 3.0\x008BIM" + b"x" * 60_000)
    many = with_segment(many, 0xE2, b"MPF\0MM no index")
    np.testing.assert_array_equal(pixels.decode(many), expected)


def test_of_several_images_in_a_file_the_first_is_taken():
    first, second = photograph("china")[:20, :20], photograph("flower")[:20, :20]
    for kind in ("PNG", "MPO"):
        several = png(first, kind, save_all=True, append_images=[Image.fromarray(second)])
        alone = png(first, "JPEG" if kind == "MPO" else kind)
        np.testing.assert_array_equal(pixels.decode(several), pixels.decode(alone))
    assert pixels.jpeg_size(several, 1000) is None
    assert pixels.jpeg_size(alone, 1000) == (20, 20)


@pytest.mark.parametrize("mode", ["P", "1", "L", "RGB", "RGBA", "LA"])
def test_transparency_and_interlacing_change_no_colour(mode):
    patch = Image.fromarray(photograph("china")[:20, :20]).convert(mode)
    stream = io.BytesIO()
    options = {"transparency": bytes([0, 128, 255])} if mode == "P" else {}
    patch.save(stream, "PNG", **options)
    expected = np.asarray(patch.convert("RGB"))
    np.testing.assert_array_equal(pixels.decode(stream.getvalue()), expected)


def test_an_interlaced_png_is_read():
    """4 x 4 grey levels 0, 10, ... 150 in the seven passes of Adam7."""
    levels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 10
    starts = [(0, 0), (0, 4), (4, 0), (0, 2), (2, 0), (0, 1), (1, 0)]
    steps = [(8, 8), (8, 8), (8, 4), (4, 4), (4, 2), (2, 2), (2, 1)]
    parts = [levels[y::dy, x::dx] for (y, x), (dy, dx) in zip(starts, steps, strict=True)]
    rows = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    encoded = raw_png(4, 4, 8, 0, rows, is_interlaced=1)
    np.testing.assert_array_equal(pixels.decode(encoded), np.repeat(levels[:, :, None], 3, axis=2))


@pytest.mark.parametrize("largest", [256, 1000, 1023, 4095, 65535])
@pytest.mark.parametrize("is_plain", [True, False])
def test_of_deep_colours_and_deep_grey_levels_the_upper_8_bits_are_taken(largest, is_plain):
    levels = np.random.default_rng(2).integers(0, largest + 1, (5, 7, 3)).astype(np.uint16)
    levels[0, 0] = 0, largest // 2, largest
    upper = np.array(
        [round(Fraction(int(level) * 65535, largest)) >> 8 for level in levels.ravel()], np.uint8
    ).reshape(levels.shape)
    if largest in (1023, 4095, 65535):
        n_bits = largest.bit_length()
        np.testing.assert_array_equal(upper, levels >> (n_bits - 8))
    kinds = (b"P3", b"P2") if is_plain else (b"P6", b"P5")

    def encoded(kind, values):
        header = b"%s\n# a comment\n7 5\n%d\n" % (kind, largest)
        return header + (
            " ".join(map(str, values.ravel())).encode() if is_plain else values.astype(">u2").tobytes()
        )

    np.testing.assert_array_equal(pixels.decode(encoded(kinds[0], levels)), upper)
    grey = pixels.decode(encoded(kinds[1], levels[:, :, 0]))
    np.testing.assert_array_equal(grey, np.repeat(upper[:, :, :1], 3, axis=2))
    cut = encoded(kinds[0], levels[:4])
    with refused("broken-image"):
        pixels.decode(cut)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "PPM"])
def test_an_image_that_is_cut_short_or_has_a_damaged_header_is_a_broken_image(kind):
    encoded = png(photograph("china")[:16, :16], kind)
    for n_bytes in (2 if kind != "PNG" else 4, 12, 20, len(encoded) // 2):
        with pytest.raises(RejectedError) as caught:
            pixels.decode(encoded[:n_bytes])
        assert caught.value.code == "broken-image", n_bytes
    frame = encoded.find(b"\xff\xc0")
    at, found = {"PNG": (29, b"\0"), "JPEG": (frame + 2, b"\0\2"), "PPM": (3, b"x")}[kind]
    content = bytearray(encoded)
    content[at : at + len(found)] = found
    with refused("broken-image"):
        pixels.decode(bytes(content))


def test_a_jpeg_of_12_bits_is_a_kind_that_is_not_read():
    encoded = bytearray(png(photograph("china")[:16, :16], "JPEG"))
    encoded[encoded.index(b"\xff\xc0") + 4] = 12
    with refused("unsupported-image", match="12-bit"):
        pixels.decode(bytes(encoded))


@pytest.mark.parametrize("lengths", [[5, 6], [5], [-1, 11], [2**62, 2**62]])
def test_lengths_that_do_not_fit_the_bytes(lengths):
    blob = np.zeros(10, np.uint8)
    with refused("wrong-length", match="input 1"):
        get("features").run([blob, np.array(lengths, dtype=np.int64)], {})


def assert_compiled_patterns_are_numpys(grey):
    histogram = np.zeros(256, np.int64)
    compiled.add_patterns(grey, histogram)
    np.testing.assert_array_equal(histogram, features.histogram_256(grey[None])[0])


@settings(max_examples=examples(100), deadline=None)
@given(numpy_arrays(np.uint8, st.tuples(*[st.integers(1, 40)] * 2), elements=LEVELS))
def test_compiled_patterns_of_any_image_are_those_of_numpy(grey):
    assert_compiled_patterns_are_numpys(grey)


@pytest.mark.parametrize("shape", [(1, 3000), (3000, 1), (700, 900), (2100, 40)])
def test_patterns_where_rounding_decides(shape):
    """Far from the origin the fractions are other numbers: the tie breaks differently, but equally here."""
    grey = np.random.default_rng(4).integers(0, 3, shape).astype(np.uint8)
    assert_compiled_patterns_are_numpys(grey)
    assert_compiled_patterns_are_numpys(np.full(shape, 200, np.uint8))


@pytest.mark.parametrize("bins", [(16, 4, 4), (256, 1, 16), (1, 256, 16), (7, 5, 100), (1, 1, 1)])
def test_every_colour_there_is(bins):
    """All 16,777,216 for the usual bins, every fourth red for the others: no quotient is left to chance."""
    step = 1 if bins == (16, 4, 4) else 4
    rest = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2, indexing="ij"), axis=-1)
    for red in range(0, 256, step):
        image = np.concatenate([np.full((256, 256, 1), red, np.uint8), rest], axis=-1)
        histogram = np.zeros(int(np.prod(bins)), np.int64)
        compiled.add_colours(image.reshape(-1), np.array(bins, np.float32), histogram)
        np.testing.assert_array_equal(histogram, features.histogram_hsv(image[None], bins)[0])


def test_both_forms_give_the_same_features():
    images = [np.random.default_rng(i).integers(0, 256, (64, 48, 3)).astype(np.uint8) for i in range(3)]
    fast, plain = features.compiled_forms(), features.numpy_forms()
    assert (fast.name, plain.name) == ("numba", "numpy")
    np.testing.assert_array_equal(fast.patterns(images), plain.patterns(images))
    for bins in itertools.product((1, 16), (3, 4), (4, 9)):
        np.testing.assert_array_equal(fast.colours(images, bins), plain.colours(images, bins))


def test_without_numba_numpy_takes_over_and_says_so(monkeypatch):
    features.forms.cache_clear()
    assert features.forms().name == "numba"
    features.forms.cache_clear()
    monkeypatch.delitem(sys.modules, "yarn_accel.operations.compiled")
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.warns(RuntimeWarning, match="computed by numpy: the same results"):
        assert features.forms().name == "numpy"
    assert features.forms().name == "numpy"
    features.forms.cache_clear()


def test_without_a_place_for_a_cache_it_is_compiled_all_the_same(monkeypatch):
    """As in a zip archive, where numba finds no file to put machine code beside."""
    numba = compiled.numba
    plain = numba.njit

    def njit(function, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return plain(function, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled._compiled(lambda value: value + 1)(2) == 3
