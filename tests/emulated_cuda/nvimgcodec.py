"""What this project calls of NVIDIA's package nvImageCodec, by Pillow: in its place on the emulated CUDA."""

import io

import cupy
import numpy as np
from PIL import Image


class CodeStream:
    def __init__(self, encoded):
        self.encoded = encoded
        self.width, self.height = Image.open(io.BytesIO(encoded)).size


class DecodeParams:
    def __init__(self, apply_exif_orientation=True):
        assert not apply_exif_orientation


class Decoder:
    def __init__(self, max_num_cpu_threads, options):
        assert max_num_cpu_threads > 0
        assert options == ":fancy_upsampling=1"

    def decode(self, streams, *, params, cuda_stream):
        assert isinstance(params, DecodeParams)
        assert cuda_stream == cupy.cuda.get_current_stream().ptr
        return [cupy.asarray(np.array(Image.open(io.BytesIO(one.encoded)))) for one in streams]
