"""Every name, argument and constant of CuPy and nvImageCodec that we use is theirs; so are the stand-ins'.

What the real ones have stands in files, which ``make test-cuda-emulated`` holds to the wheels.
"""

import importlib.util
import inspect
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from tests.unit.operations import emulation
from tests.unit.operations.conftest import _forget
from tests.unit.operations.cupy_contract import (
    BLAS,
    CODEC,
    CODECS,
    FORMATTED,
    GOLDEN,
    SOLVER,
    Use,
    bindings,
    golden,
    misfit,
    modules,
    parameters,
    uses,
    wanted,
)
from tests.unit.operations.linear import general, lower_triangle, positive_definite
from yarn_accel.operations import get, systems

FAKE_GPU = Path(__file__).parent.parent / "pipeline/workers/fake_gpu"
PROTOCOL = ("__enter__", "__exit__")


def test_what_modules_use_is_cupys():
    assert {"operations/cuda_linalg.py", "pipeline/workers/cuda.py"} <= modules().keys()
    known = golden()
    assert [problem for problem in (misfit(use, known) for use in uses()) if problem] == []
    assert sorted(wanted() - known.keys()) == [], "make test-cuda-emulated says how to renew the file"


@pytest.mark.parametrize("file", CODECS, ids=lambda file: file.stem)
def test_what_modules_use_of_nvimagecodec_is_in_the_oldest_and_the_newest(file):
    known, mine = golden(GOLDEN, file), [use for use in uses() if use.path.startswith(CODEC)]
    called = {use.path.removeprefix(f"{CODEC}.") for use in mine if use.n_given >= 0}
    assert called == {"CodeStream", "Decoder", "Decoder.decode", "DecodeParams"}
    assert [problem for problem in (misfit(use, known) for use in mine) if problem] == []


@pytest.mark.parametrize(
    ("use", "problem"),
    [
        (Use("x:1", f"{CODEC}.Decoder.decode", 1, ("stream",)), "unexpected keyword argument 'stream'"),
        (Use("x:1", f"{CODEC}.CodeStream.length", -1), "is not in"),
        (Use("x:1", "cupy.cuda.Streem", 0), "cupy.cuda.Streem is not in"),
        (Use("x:1", "cupy.tril", 3), "too many positional arguments"),
        (Use("x:1", "cupy.empty", 0), "missing a required argument"),
        (Use("x:1", "cupy.ndarray.get", 0, ("target",)), "unexpected keyword argument 'target'"),
        (Use("x:1", f"{BLAS}.CUBLAS_OP_C", 1), "is not called"),
    ],
)
def test_what_is_not_cupys_is_found(use, problem):
    assert problem in misfit(use, golden())


@pytest.fixture
def recorded(monkeypatch):
    """Lines of ours that ask for a binding, and each that is called, with how many arguments."""
    asked, called = set(), set()

    class Binding(emulation.Solver):
        def __init__(self, path):
            self.path = path

        def __getattr__(self, name):
            function = super().__getattr__(name)
            frame = sys._getframe(1)
            asked.add((Path(frame.f_code.co_filename).name, frame.f_lineno, name[0]))

            def call(*arguments):
                called.add(Use("recorded", f"{self.path}.{name}", len(arguments)))
                return function(*arguments)

            return call

    _forget()
    for name, module in emulation.modules().items():
        monkeypatch.setitem(sys.modules, name, Binding(name) if name in (BLAS, SOLVER) else module)
    yield asked, called
    _forget()


@pytest.mark.skipif(emulation.COMPILER is None, reason="no C++ compiler to emulate CUDA with")
def test_bindings_are_called_with_as_many_arguments_as_they_have(recorded, monkeypatch):
    """Every line that asks for one is run, in all types of numbers that it is for."""
    asked, called = recorded
    monkeypatch.setattr(systems, "REFINED_ORDER", 520)
    for dtype in ("<f4", "<f8", "<c8", "<c16"):
        for n in (6, 520):
            compute_all(dtype, n)
    known = golden()
    assert [problem for problem in (misfit(use, known) for use in called) if problem] == []
    assert {use.path for use in called} == set(bindings())
    for module in ("cuda_linalg.py", "cuda_qr.py", "cuda_systems.py"):
        lines = modules()[f"operations/{module}"].splitlines()
        parts, some = {
            "cuda_linalg.py": (("tpttr", "trttp"), "sd"),
            "cuda_qr.py": ((), ""),
            "cuda_systems.py": (("(solver, routine",), "dz"),
        }[module]
        asking = {
            (i, some if any(part in line for part in parts) else "sdcz")
            for i, line in enumerate(lines, 1)
            if "getattr(blas," in line or "getattr(solver," in line
        }
        assert {(module, i, letter) for i, letters in asking for letter in letters} <= asked


def compute_all(dtype, n):
    """Factorizations and solutions of order n, each in the ways that call bindings of their own."""
    definite = positive_definite((n, n), dtype)
    right = general((n, 2), dtype)
    for name, form in (("lu", "packed"), ("qr", "packed"), ("qr", "separate"), ("cholesky", "separate")):
        params = {"form": form}
        factors = get(name).form("cuda")([definite.copy(order="K")], params).arrays.values()
        for stack in ((), (2,)):
            arrays = [np.broadcast_to(array, (*stack, *array.shape)).copy() for array in (*factors, right)]
            get("solve").form("cuda")(arrays, {"factors": name, **params})
    get("qr").form("cuda")([general((n, n), dtype)], {"form": "separate"})
    get("cholesky").form("cuda")([lower_triangle(definite)], {"triangle": "lower"})
    for stack in ((), (2,)):
        whole = [np.broadcast_to(array, (*stack, *array.shape)).copy() for array in (definite, right)]
        get("linsolve").form("cuda")(whole, {})


def stand_ins(monkeypatch):
    """Path -> parameters of what the stand-ins have under CuPy's names; None: it is no function."""
    found = {}

    def look(path, thing):
        names = getattr(thing, "__all__", None) if isinstance(thing, types.ModuleType) else None
        for name, value in vars(thing).items():
            if (name.startswith("_") and name not in PROTOCOL) or (names is not None and name not in names):
                continue
            is_error = isinstance(value, type) and issubclass(value, BaseException)
            if isinstance(value, (type, types.ModuleType, types.SimpleNamespace)) and not is_error:
                look(f"{path}.{name}", value)
            function = getattr(value, "__func__", value)
            is_method = isinstance(thing, type) and function is value
            if path == CODEC and isinstance(value, type):  # Its classes are called.
                function, is_method = value.__init__, True
            if inspect.isfunction(function):
                given = list(inspect.signature(function).parameters.values())[int(is_method) :]
                kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
                found[f"{path}.{name}"] = [each.name for each in given if each.kind in kinds]
            else:
                found[f"{path}.{name}"] = None

    emulated = {name: module for name, module in emulation.modules().items() if name.startswith("cupy")}
    del emulated[SOLVER]  # The same object, which has cuBLAS's constants.
    for name, module in emulated.items():
        look(name, type(module) if isinstance(module, emulation.Solver) else module)
    look("cupy.ndarray", emulation.DeviceArray)
    look(CODEC, emulation.Codec)
    look(f"{CODEC}.Decoder", type("Decoder", (), {"decode": emulation.Codec._decode}))
    spec = importlib.util.spec_from_file_location(
        "cupy", FAKE_GPU / "cupy/__init__.py", submodule_search_locations=[str(FAKE_GPU / "cupy")]
    )
    fake = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.delitem(sys.modules, "cupy.cuda", raising=False)
    spec.loader.exec_module(fake)
    look("cupy", fake)
    look("cupy.cuda.MemoryPool", fake._Pool)
    monkeypatch.delitem(sys.modules, "cupy.cuda")
    return {path: names for path, names in found.items() if path.removeprefix("cupy.") not in ("cuda",)}


def test_stand_ins_have_nothing_that_cupy_has_not(monkeypatch):
    known, found = golden(), stand_ins(monkeypatch)
    assert {"cupy.cuda.runtime.hostRegister", "cupy.empty", "cupy.ndarray.set"} <= found.keys()
    assert sorted(found.keys() - known.keys()) == []
    for path, names in found.items():
        if names and known[path].startswith("("):
            forms = [parameters(form).parameters for form in known[path].split(" | ")]
            real = [[name for name in form if name in names] for form in forms]
            assert names in real, f"{path}{known[path]}: the stand-in has {names}"


def test_stand_ins_of_bindings_take_what_these_take():
    known = golden()
    for path in bindings():
        routine = path.rpartition(".")[2][1:].replace("unm", "orm").replace("ung", "org")
        if not routine.endswith("_bufferSize"):
            given = len(inspect.signature(getattr(emulation.Solver, f"_{routine}")).parameters)
            assert given == len(parameters(known[path]).parameters) + len(("self", "dtype", "letter")), path
    for name, number in vars(emulation.Solver).items():
        if name.startswith("CUBLAS"):
            assert known[f"{BLAS}.{name}"] == f" = {number}"


def test_handles_are_asked_for_by_their_names():
    text = modules()["operations/cuda_streams.py"]
    assert 'getattr(device, "get_{}_handle".format(name))' in text
    assert set(FORMATTED) <= golden().keys()
