"""A call passes few files of this package on its way from the caller to the socket and back."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import yarn_accel
from yarn_accel.client import Binding, connect
from yarn_accel.wire import NamedTensor, Placement, Result, TensorSpec
from yarn_accel.wire.credential import issue

CREDENTIAL = issue(bytes(range(32)), "alice", 2**40, "k1")
ROOT = Path(yarn_accel.__file__).parent
MOST_FILES = 12


def factors(peer):
    """Answers two calls of ``lu``: in the segment of the inputs where there is one, else as payload."""
    for _ in range(2):
        request = peer.next_request()
        n = request.inputs[0].shape[0]
        tensors = (NamedTensor("lu", request.inputs[0]), NamedTensor("piv", TensorSpec("<i8", (n,))))
        n_bytes = 8 * n * n + 8 * n
        if request.placement is None:
            peer.answer(request, bytes(n_bytes), tensors=tensors, info={"singular_at": 0})
        else:
            placement = Placement(request.placement.segment, (0, 8 * n * n))
            peer.send(Result(request.id, {"singular_at": 0}, tensors, "w1", "cpu", {}, 0, n_bytes, placement))


def files_entered(action):
    """The files of yarn_accel of which a function runs, in this thread, during an action."""
    found = set()

    def note(frame, event, _):
        if event == "call":
            found.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return {Path(name).relative_to(ROOT).as_posix() for name in found if name.startswith(f"{ROOT}/")}


@pytest.mark.parametrize(("is_unix", "n"), [(False, 4), (True, 4), (True, 128)], ids=["tcp", "unix", "memfd"])
def test_a_call_passes_at_most_twelve_files(serve, is_unix, n):
    endpoint = replace(serve(factors, unix=is_unix, max_lent_bytes=(1 << 20) * is_unix), node="n1")
    with connect(
        environ={"NM_HOST": "n1"}, binding=Binding((endpoint,)), credential=CREDENTIAL, fallback=False
    ) as accel:
        accel.lu(np.eye(n + 8))
        passed = files_entered(lambda: accel.lu(np.eye(n)))
    assert ("client/shared_memory.py" in passed) == is_unix
    assert {"client/accelerator.py", "client/transport.py", "wire/connection.py"} <= passed
    assert len(passed) <= MOST_FILES, sorted(passed)
