"""The start probe passes on the emulated CUDA, and finds a GPU that computes wrongly."""

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.operations import get
from yarn_accel.pipeline.workers.cuda import probe


def test_the_probe_passes(cupy):
    with cupy.cuda.Stream(non_blocking=True):
        probe()


@pytest.mark.parametrize("name", ["lu", "qr", "cholesky", "gemm", "solve", "features", "knn", "kmeans_step"])
def test_a_gpu_that_computes_wrongly_is_found(cupy, monkeypatch, name):
    form = get(name).form("cuda")

    def wrong(arrays, params, *rest):
        outcome = form(arrays, params, *rest)
        next(iter(outcome.arrays.values())).flat[0] += 1
        return outcome

    honest = type(get(name)).form
    monkeypatch.setattr(
        type(get(name)),
        "form",
        lambda self, kind: wrong if (self.name, kind) == (name, "cuda") else honest(self, kind),
    )
    with cupy.cuda.Stream(non_blocking=True), pytest.raises(StartupError, match=f"{name} of .* on the GPU"):
        probe()
