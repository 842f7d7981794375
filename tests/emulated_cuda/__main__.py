"""``python -m tests.emulated_cuda COMMAND...``: builds the emulated CUDA, runs Python with it."""

import os
import sys

from tests.emulated_cuda.build import build, environment

build()
os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment())
