"""What the start probe asks of a GPU; that it finds wrong ones is tested on the emulated CUDA."""

from yarn_accel.operations import get
from yarn_accel.operations.registry import OPERATIONS
from yarn_accel.pipeline.workers.gpu_probe import cases


def test_every_operation_with_a_form_for_gpus_is_probed():
    with_form = {name for name, operation in OPERATIONS.items() if operation.form("cuda") is not None}
    assert with_form - {name for name, _, _ in cases()} == {"lbp", "colour"}, "features computes both"


def test_the_cpu_computes_every_case():
    for name, arrays, params in cases():
        assert get(name).run([array.copy(order="K") for array in arrays], params).arrays, name
