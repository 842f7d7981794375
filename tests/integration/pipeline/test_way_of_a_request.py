"""A request's way through the server passes few files: who has to follow it reads no more than these."""

import sys
import threading
from pathlib import Path

import numpy as np

import yarn_accel
from yarn_accel.client.calls import Call, Reference
from yarn_accel.client.client import Client
from yarn_accel.pipeline.loop import EventLoop
from yarn_accel.wire import TensorSpec

PACKAGE = Path(yarn_accel.__file__).parent
OURS = ("pipeline/", "core/requests/")
MOST_FILES = 15


def is_called_by_the_clock(frame):
    """Whether the loop does this because of the time, as it looks after workers and connections."""
    while frame is not None and frame.f_code is not EventLoop._ring.__code__:
        frame = frame.f_back
    return frame is not None


def test_a_matrix_from_storage_to_storage_passes_fifteen_files(start_server, credential, tmp_path):
    passed = set()
    is_on_its_way = threading.Event()

    def note(frame, event, argument):
        if event == "call" and is_on_its_way.is_set() and not is_called_by_the_clock(frame):
            passed.add(frame.f_code.co_filename)

    # Of all threads that start from here on: the server's loop and those of its storage.
    threading.setprofile(note)
    try:
        server = start_server(workers=1)
    finally:
        threading.setprofile(None)
    matrix = np.random.default_rng(1).random((64, 64))
    source = tmp_path / "in.f8"
    source.write_bytes(matrix.tobytes())
    reference = Reference(f"file://{source}", TensorSpec("<f8", (64, 64)))
    with Client(server.endpoint, credential, node="elsewhere") as client:
        client.call(Call("first", "echo", {}, (reference,), output_uri=f"file://{tmp_path}/first.npz"))
        is_on_its_way.set()
        client.call(Call("second", "lu", {}, (reference,), output_uri=f"file://{tmp_path}/second.npz"))
        is_on_its_way.clear()
    names = {str(Path(name).relative_to(PACKAGE)) for name in passed if name.startswith(str(PACKAGE))}
    mine = sorted(name for name in names if name.startswith(OURS))
    print(f"\n{len(mine)} files: {' '.join(mine)}", file=sys.stderr)
    assert "core/requests/machine.py" in mine
    assert "pipeline/storage.py" in mine
    assert len(mine) <= MOST_FILES, mine
