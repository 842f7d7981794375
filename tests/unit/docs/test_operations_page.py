"""docs/operations*.md say of every operation what the registry says."""

import re
from pathlib import Path

import pytest

from yarn_accel.errors import RejectedError
from yarn_accel.operations import OPERATIONS, get, registry
from yarn_accel.operations.checks import COMPLEX, NEAREST, REAL
from yarn_accel.wire import ITEM_BYTES, TensorSpec

PAGES = sorted((Path(__file__).parents[3] / "docs").glob("operations*.md"))
PAGE = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
OWN = [name for name, entry in registry.OPERATIONS.items() if entry.run.__module__.startswith("yarn_accel.")]
COMMON = {"compute", "reply"}
OF_IMAGES = {"max_pixels", "root"}
PARAMS = {
    "chain": {"steps": [{"operation": "echo"}]},
    "infer": {"model": "a.onnx"},
    "residual": {"operation": "lu"},
    "kmeans": {"k": 1},
    "kmeans_seed": {"k": 1},
    "knn": {"k": 1},
}


def section(title):
    found = re.search(rf"^### {title}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section {title}"
    return found[1]


def parameters(text):
    return set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))


def specs(name, dtype):
    """Inputs that the operation takes if it takes these elements."""
    if name in ("lbp", "colour", "features"):
        return [TensorSpec(dtype, (9,)), TensorSpec("<i8", (1,))]
    square = TensorSpec(dtype, (3, 3))
    pivots = TensorSpec("<i4", (3,))
    inputs = {"solve": [square, pivots, square], "residual": [square, square, pivots], "knn": [square] * 2}
    return inputs.get(name, [square] * (get(name).n_inputs or 1))


def elements(name):
    taken, operation = set(), get(name)
    for dtype in ITEM_BYTES:
        try:
            params = PARAMS.get(name, {})
            operation.check(operation.computed_specs(specs(name, dtype), params), params)
        except RejectedError as error:
            assert error.code == "wrong-dtype"
        else:
            taken.add(dtype)
    if operation.computed is None and len(taken) == len(ITEM_BYTES):
        return "any"
    words = {
        frozenset([*REAL, *COMPLEX, *NEAREST]): "real, complex",
        frozenset([*REAL, *NEAREST]): "real",
        frozenset(["|u1"]): "bytes",
    }
    return words[frozenset(taken)]


@pytest.mark.parametrize("name", OWN)
def test_the_table_has_what_the_registry_has(name):
    operation = get(name)
    inputs = {None: "any" if name == "echo" else "as named"}.get(operation.n_inputs, operation.n_inputs)
    devices = ", ".join({"cpu": "CPU", "cuda": "GPU"}[kind] for kind in operation.forms)
    packed = "yes" if operation.takes_stacks else "no"
    row = f"| `{name}` | {operation.summary} | {inputs} | {elements(name)} | {devices} | {packed} |"
    assert row in PAGE.splitlines()


def test_no_other_operation_is_described():
    assert set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE)) == set(OWN)
    assert set(OWN) <= set(OPERATIONS)


@pytest.mark.parametrize("name", [name for name in OWN if name not in ("echo", "residual")])
def test_every_parameter_is_described(name):
    operation = get(name)
    with pytest.raises(RejectedError) as caught:
        operation.check(specs(name, "|u1" if elements(name) == "bytes" else "<f8"), {"no-such": 1})
    known = caught.value.message.partition("known: ")[2].split(", ")
    described = parameters(section(name))
    if "compute" in known:
        described |= COMMON
    if "max_pixels" in known:
        described |= OF_IMAGES & set(known)
    assert described == set(known) - {"none"}


def test_the_parameters_of_all_are_described():
    assert parameters(PAGE.partition("## Linear algebra")[2].partition("### lu")[0]) == COMMON
    assert parameters(PAGE.partition("## Images")[2].partition("### lbp")[0]) == OF_IMAGES
    assert parameters(section("residual")) == {"operation"}
