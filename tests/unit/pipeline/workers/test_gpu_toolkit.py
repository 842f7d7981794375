"""Which CUDA libraries a worker finds, and what it says where they are missing or of another CUDA."""

import sys
import types

import pytest

from yarn_accel.errors import StartupError
from yarn_accel.pipeline.workers.gpu_toolkit import (
    ToolkitFacts,
    cuda_major,
    describe_toolkit,
    find_toolkit,
)

NAMES = {"nvrtc": 12, "cublas": 12, "cusolver": 11, "cusparse": 12}


def facts(root="/usr/local/cuda-12.4/lib64", headers="/usr/local/cuda-12.4/include", **more):
    paths = {name: f"{root}/lib{name}.so.{number}" for name, number in NAMES.items()}
    return ToolkitFacts(**{"paths": paths, "headers": headers, "version": "12.4", **more})


def test_the_nodes_own_toolkit_is_named_by_path_and_version():
    assert describe_toolkit(facts(), 12) == "CUDA 12.4: the node's toolkit in /usr/local/cuda-12.4"
    assert describe_toolkit(facts(version=""), 12) == "CUDA 12: the node's toolkit in /usr/local/cuda-12.4"


def test_libraries_that_travelled_are_named_so():
    found = facts("/cache/abc/nvidia/cublas/lib", packages="/cache/abc")
    assert describe_toolkit(found, 12) == "CUDA 12.4: packages in /cache/abc"


def test_libraries_of_both_kinds_are_named():
    found = facts("/cache/abc/nvidia/cublas/lib", packages="/cache/abc")
    mixed = ToolkitFacts(
        {**found.paths, "nvrtc": "/usr/lib64/libnvrtc.so.12"}, {}, "/usr/include", "12.9", "/cache/abc"
    )
    assert describe_toolkit(mixed, 12) == "CUDA 12.9: packages in /cache/abc and the node's toolkit in /usr"


@pytest.mark.parametrize(("number", "major"), [(11, 12), (13, 12), (12, 13)])
def test_a_toolkit_of_another_cuda_than_cupys_is_refused_by_name(number, major):
    other = facts(f"/usr/local/cuda-{number}.0/lib64")
    where = f"/usr/local/cuda-{number}.0/lib64/libcublas.so.{number}"
    paths = {**other.paths, "nvrtc": f"/usr/lib/libnvrtc.so.{major}", "cublas": where}
    with pytest.raises(StartupError) as caught:
        describe_toolkit(ToolkitFacts(paths, {}, other.headers), major)
    assert f"{where} is of CUDA {number}, but CuPy here is of CUDA {major}" in caught.value.message
    assert f"a CUDA {major} toolkit" in caught.value.cure
    assert "gpu: bundled" in caught.value.cure


def test_what_is_missing_is_named_with_the_cure():
    with pytest.raises(StartupError, match=r"cusolver: Failure finding libnvJitLink\.so\.12") as caught:
        describe_toolkit(facts(missing={"cusolver": "Failure finding libnvJitLink.so.12"}), 12)
    assert "CUDA_PATH" in caught.value.cure
    with pytest.raises(StartupError, match="headers of the CUDA toolkit"):
        describe_toolkit(facts(headers=""), 12)


def test_cupy_of_another_cuda_is_refused_by_name():
    assert (cuda_major("14.2.0", 12090), cuda_major("14.2.0", 13020)) == (12, 13)
    with pytest.raises(StartupError, match=r"CuPy 14\.2\.0 \(cupy-cuda14x\) is of CUDA 14") as caught:
        cuda_major("14.2.0", 14000)
    assert "cupy-cuda12x" in caught.value.cure


class NotFoundError(RuntimeError):
    pass


def test_libraries_are_looked_for_as_cupy_does(monkeypatch):
    def load(name):
        if name == "cusolver":
            raise NotFoundError('Failure finding "libcusolver.so.11": No such file: x, No such file: y\n')
        return types.SimpleNamespace(abs_path=f"/usr/local/cuda/lib64/lib{name}.so.12")

    module = types.ModuleType("cuda.pathfinder")
    module.load_nvidia_dynamic_lib = load
    module.find_nvidia_header_directory = lambda name: None
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", module)
    found = find_toolkit("/cache/abc")
    assert found.paths["cublas"] == "/usr/local/cuda/lib64/libcublas.so.12"
    assert found.missing == {"cusolver": 'Failure finding "libcusolver.so.11"'}
    assert (found.headers, found.version, found.packages) == ("", "", "/cache/abc")


def test_a_cupy_that_does_not_look_for_libraries_itself_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    assert find_toolkit("/x") is None
