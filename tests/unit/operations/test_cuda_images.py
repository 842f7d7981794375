"""Images on a GPU, and JPEG through nvImageCodec, emulated by Pillow; some tests also on a real GPU."""

import io
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.unit.operations.linear import Area
from yarn_accel.operations import cuda_images, get, pixels


def picture(size, kind="JPEG", mode="RGB", seed=0, **settings):
    """An encoded image of that size (width, height), with soft colours as JPEG likes them."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode).save(
        stream, kind, **settings
    )
    return stream.getvalue()


def packed_images(images):
    return [np.frombuffer(b"".join(images), np.uint8), np.array([len(image) for image in images], np.int64)]


def with_text(png):
    text = b"zTXtnote\0\0" + zlib.compress(bytes(3 << 20))
    chunk = (len(text) - 4).to_bytes(4, "big") + text + zlib.crc32(text).to_bytes(4, "big")
    return png[:33] + chunk + png[33:]


def deep(kind):
    stream = io.BytesIO()
    levels = np.random.default_rng(1).integers(0, 1 << 16, (20, 30)).astype(np.uint16)
    Image.fromarray(levels).save(stream, kind)
    return stream.getvalue()


FOR_THE_CPU = {
    "png": picture((20, 30), "PNG"),
    "grey": picture((20, 30), mode="L"),
    "cmyk": picture((20, 30), mode="CMYK"),
    "rgb": picture((20, 30), keep_rgb=True),
    "cut short": picture((20, 30))[:-100],
    "cut short, with an end": picture((20, 30))[:-100] + b"\xff\xd9\x00",
    "too large": picture((200, 30)),
    "png with a large text": with_text(picture((20, 30), "PNG")),
    "png of 16 bits": deep("PNG"),
    "ppm of 16 bits": deep("PPM"),
    "mpo": picture((20, 30), "MPO", save_all=True, append_images=[Image.new("RGB", (20, 30))]),
    "damaged png": picture((20, 30), "PNG")[:50],
    "no image": b"\xff\xd8\xff nothing \xff\xd9",
}


@pytest.mark.parametrize("name", ["lbp", "colour", "features"])
def test_jpeg_goes_to_the_gpus_decoder_and_nothing_else_does(codec, name):
    """Emulated."""
    jpegs = [picture((20, 30), seed=i) for i in range(3)] + [picture((7, 5), progressive=True)]
    images = [jpegs[0], *FOR_THE_CPU.values(), *jpegs[1:]]
    expected = get(name).run(packed_images(images), {"max_pixels": 1000})
    found = get(name).form("cuda")(packed_images(images), {"max_pixels": 1000}, Area().place)
    np.testing.assert_array_equal(found.arrays["features"], expected.arrays["features"])
    assert found.info == expected.info
    assert codec.n_decoded == len(jpegs)
    assert "too-large" in [code for _, code, _ in found.info["rejected"]]


def test_images_are_decoded_window_by_window(codec, monkeypatch):
    """Emulated."""
    monkeypatch.setattr(cuda_images, "_WINDOW_IMAGES", 3)
    monkeypatch.setattr(cuda_images, "_WINDOW_PIXELS", 1000)
    images = [picture((20, 10 + i), seed=i) for i in range(5)] + [picture((50, 50)), FOR_THE_CPU["png"]]
    found = get("colour").form("cuda")(packed_images(images), {}, Area().place)
    expected = get("colour").run(packed_images(images), {})
    np.testing.assert_array_equal(found.arrays["features"], expected.arrays["features"])
    assert codec.n_decoded == 6


def test_what_the_gpus_decoder_cannot_do_the_cpu_does(codec, caplog):
    """Emulated."""
    images = packed_images([picture((20, 30), seed=i) for i in range(2)] + [picture((7, 5))])
    expected = get("lbp").run(images, {}).arrays["features"]
    codec.failing = [(7, 5)]
    np.testing.assert_array_equal(get("lbp").form("cuda")(images, {}).arrays["features"], expected)
    assert codec.n_decoded == 2
    codec.error = RuntimeError("no decoder")
    found = get("lbp").form("cuda")(images, {})
    assert "JPEG are decoded by the CPU: RuntimeError: no decoder" in caplog.text
    assert found.info["decoder_failure"] == "RuntimeError: no decoder"
    np.testing.assert_array_equal(found.arrays["features"], expected)


def test_features_of_jpeg_are_close_to_those_of_the_cpu(device):
    """nvJPEG rounds otherwise than libjpeg, so a pixel on the edge of a bin may move."""
    images = packed_images([picture((200, 300), seed=i) for i in range(4)] + [picture((64, 64), seed=9)])
    expected = get("colour").run(images, {})
    found = get("colour").form("cuda")(images, {}, Area().place)
    assert found.info == expected.info
    assert np.abs(found.arrays["features"] - expected.arrays["features"]).sum(axis=1).max() < 0.1


@pytest.mark.parametrize("name", ["lbp", "colour", "features"])
def test_images(device, name):
    images = []
    for seed, size in enumerate([(20, 30), (20, 30), (7, 5), (1, 1)]):
        stream = io.BytesIO()
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(stream, "PNG")
        images.append(stream.getvalue())
    images.insert(2, b"no image")
    blob = np.frombuffer(b"".join(images), np.uint8)
    lengths = np.array([len(image) for image in images], np.int64)
    expected = get(name).run([blob, lengths], {})
    found = get(name).form("cuda")([blob, lengths], {}, Area().place)
    np.testing.assert_array_equal(found.arrays["features"], expected.arrays["features"])
    assert found.info == expected.info


LEFT_TO_THE_CPU = {
    "its size is another one there": ("CodeStream.height", property(lambda _: 10**5, lambda *_: None), ""),
    "the decoder does not open it": ("CodeStream", lambda _: 1 / 0, ""),
    "the decoder does not start": ("DecodeParams", lambda **_: 1 / 0, "by the CPU: ZeroDivisionError"),
    "there is no decoder": ("", None, ""),
}


@pytest.mark.parametrize("case", LEFT_TO_THE_CPU)
def test_what_the_gpus_decoder_does_not_take_is_left_to_the_cpu(codec, monkeypatch, caplog, case):
    """Emulated: what was found within the limit must be what is decoded."""
    place, found, warning = LEFT_TO_THE_CPU[case]
    images = packed_images([picture((20, 30))])
    expected = get("lbp").run(images, {}).arrays["features"]
    owner, _, name = place.rpartition(".")
    if place:
        monkeypatch.setattr(getattr(codec, owner) if owner else codec, name, found, raising=False)
    else:
        monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", None)
    np.testing.assert_array_equal(get("lbp").form("cuda")(images, {}).arrays["features"], expected)
    assert codec.n_decoded == 0
    assert warning in caplog.text


def test_a_decoder_that_failed_to_start_is_tried_again(codec, monkeypatch):
    """Emulated."""
    images = packed_images([picture((20, 30))])
    with monkeypatch.context() as broken:
        broken.setattr(codec, "Decoder", lambda **_: 1 / 0, raising=False)
        for _ in range(2):
            outcome = get("lbp").form("cuda")(images, {})
            assert outcome.info["decoder_failure"] == "ZeroDivisionError: division by zero"
    assert "decoder_failure" in get("lbp").form("cuda")(images, {}).info
    monkeypatch.setattr(cuda_images, "_RETRY_S", 0.0)
    assert "decoder_failure" not in get("lbp").form("cuda")(images, {}).info
    assert codec.n_decoded == 1


def segment(kind, content=b""):
    return b"\xff" + bytes([kind]) + (2 + len(content)).to_bytes(2, "big") + content


START, END, SCAN = b"\xff\xd8", b"\xff\xd9", segment(0xDA, bytes(10))
JFIF, FRAME = segment(0xE0, b"JFIF\0" + bytes(9)), segment(0xC0, b"\x08\0\x1e\0\x14\x03" + bytes(9))
ADOBE = [segment(0xEE, b"Adobe" + bytes(6) + bytes([transform])) for transform in range(3)]


@pytest.mark.parametrize(
    ("parts", "size"),
    [
        ([JFIF, FRAME, SCAN], (30, 20)),
        ([ADOBE[1], FRAME, SCAN], (30, 20)),
        (
            [JFIF, segment(0xE2, b"ICC_PROFILE\0" + bytes(60000)), segment(0xE1, b"Exif"), FRAME, SCAN],
            (30, 20),
        ),
        ([JFIF, *[segment(0xFE)] * 900, FRAME, SCAN], (30, 20)),
        ([JFIF, *[segment(0xFE)] * 4_000_000, FRAME, SCAN], None),
        ([JFIF, segment(0xE2, b"MPF\0"), FRAME, SCAN], None),
        ([ADOBE[0], FRAME, SCAN], None),
        ([JFIF, ADOBE[2], FRAME, SCAN], None),
        ([ADOBE[0], JFIF, FRAME, SCAN], None),
        ([FRAME, SCAN], None),
        ([JFIF, SCAN], None),
        ([JFIF, FRAME], None),
        ([JFIF, FRAME, FRAME, SCAN], None),
        ([JFIF, FRAME.replace(b"\x08", b"\x0c"), SCAN], None),
        ([JFIF, FRAME.replace(b"\0\x1e", b"\0\0"), SCAN], None),
        ([JFIF, FRAME.replace(b"\0\x1e", b"\xff\xff"), SCAN], None),
        ([JFIF, FRAME.replace(b"\xc0", b"\xc3"), SCAN], None),
        ([JFIF, b"\xff\xfe\0\0", FRAME, SCAN], None),
        ([JFIF, b"\xff\xfe\xff\xff", FRAME, SCAN], None),
        ([JFIF, b"\0" * 40, FRAME, SCAN], None),
        ([segment(0xEE, b"Adobe"), FRAME, SCAN], None),
        ([JFIF, b"\xff\xfe\0\1", FRAME, SCAN], None),
        ([JFIF, b"\xff\xc0\0\2", SCAN], None),
        ([JFIF, FRAME, FRAME.replace(b"\xc0", b"\xc2"), SCAN], None),
        ([], None),
    ],
)
def test_the_size_of_a_jpeg_by_its_markers(parts, size):
    encoded = b"".join([START, *parts, b"pixels", END])
    assert pixels.jpeg_size(encoded, 1000) == size
    for cut in {*range(0, min(len(encoded), 200), 3)}:
        assert pixels.jpeg_size(encoded[:cut], 1000) is None


@pytest.mark.parametrize("kind", ["baseline", "progressive", "exif", "profile"])
def test_the_size_by_markers_is_pillows(kind):
    settings = {
        "baseline": {},
        "progressive": {"progressive": True},
        "exif": {"exif": b"Exif\0\0" + bytes(3000)},
        "profile": {"icc_profile": bytes(200_000)},
    }[kind]
    encoded = picture((20, 30), **settings)
    assert pixels.jpeg_size(encoded, 600) == pixels._walked_size(encoded, 600) == (30, 20)
    assert pixels.jpeg_size(picture((20, 30), **settings), 599) is None


def test_a_jpeg_of_millions_of_segments_is_refused_at_once():
    images = packed_images([START + segment(0xFE) * 4_000_000 + END, picture((20, 30))])
    ((index, code, message),) = get("lbp").run(images, {}).info["rejected"]
    assert (index, code, message) == (0, "broken-image", "more than 1000 segments before the pixels")
