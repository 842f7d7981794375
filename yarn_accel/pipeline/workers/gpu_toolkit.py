"""Which CUDA libraries a worker computes with: found as CuPy finds them, and named, or what is missing.

They come with the environment (`gpu: bundled`) or are the node's own (`gpu: site`).
"""

from __future__ import annotations

import ctypes
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from yarn_accel.errors import StartupError

CUDA_MAJOR = 12
"""Of the CuPy that the extras `gpu` and `gpu-site` bring."""
_SUPPORTED = (CUDA_MAJOR, 13)
"""Of the CuPys that are used where they are installed."""
_LIBRARIES = ("nvrtc", "cublas", "cusolver", "cusparse")
_NUMBERED = ("nvrtc", "cublas")
"""Those whose file has CUDA's number."""
_SONAME = re.compile(r"\.so\.(\d+)")
_CURE = (
    "install the libraries of a CUDA {} toolkit on the node and name its folder by `server: {{environment: "
    "{{CUDA_PATH: FOLDER}}}}`, or have those of CUDA 12 travel: `environment: {{gpu: bundled}}`"
)


@dataclass(frozen=True)
class ToolkitFacts:
    """What was found on this node.

    Attributes:
        paths: by name of the library, its file.
        missing: by name of the library, why it could not be loaded.
        headers: the folder of CUDA's headers; empty: there is none.
        version: such as 12.4; empty: unknown.
        packages: the folder that CuPy lies in.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    headers: str = ""
    version: str = ""
    packages: str = ""


def describe_toolkit(facts: ToolkitFacts, major: int) -> str:
    """One line: CUDA's version, and where it is.

    Args:
        facts: what was found.
        major: of the CUDA that CuPy here was built with.

    Raises:
        StartupError: a library or the headers are missing, or of another CUDA; with the cure.
    """
    cure = _CURE.format(major)
    roots = dict.fromkeys(str(Path(path).parents[1]) for path in facts.paths.values())
    for name in _NUMBERED:
        found = _SONAME.search(facts.paths.get(name, ""))
        if found and int(found[1]) != major:
            text = f"{facts.paths[name]} is of CUDA {found[1]}, but CuPy here is of CUDA {major}"
            raise StartupError(text, cure=cure)
    if facts.missing:
        reasons = "; ".join(f"{name}: {why}" for name, why in facts.missing.items())
        raise StartupError(f"libraries of CUDA {major} are missing: {reasons}", cure=cure)
    if not facts.headers:
        raise StartupError("the headers of the CUDA toolkit (cuda_runtime.h) are missing", cure=cure)
    own = [root for root in roots if not (facts.packages and Path(root).is_relative_to(facts.packages))]
    places = [f"packages in {facts.packages}"] if len(own) < len(roots) else []
    places += [f"the node's toolkit in {', '.join(own)}"] if own else []
    return f"CUDA {facts.version or major}: {' and '.join(places)}"


def cuda_major(cupy_version: str, runtime_version: int) -> int:
    """Of the CUDA that CuPy was built with: 12 or 13.

    Args:
        cupy_version: such as 14.2.0.
        runtime_version: of the CUDA it was built with, such as 12090.

    Raises:
        StartupError: it is of another.
    """
    major = runtime_version // 1000
    if major not in _SUPPORTED:
        raise StartupError(
            f"CuPy {cupy_version} (cupy-cuda{major}x) is of CUDA {major}, which is not supported",
            cure=f"uninstall it and pip install 'cluster-accel[gpu]', which brings cupy-cuda{CUDA_MAJOR}x",
        )
    return major


def find_toolkit(packages: str) -> ToolkitFacts | None:
    """Load the libraries as CuPy does; None where that does not look for them itself."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return None
    paths: dict[str, str] = {}
    missing: dict[str, str] = {}
    for name in _LIBRARIES:
        try:
            paths[name] = str(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
        except (RuntimeError, OSError) as error:
            missing[name] = str(error).partition(": No such")[0]
    headers = pathfinder.find_nvidia_header_directory("cudart") or ""
    version = _nvrtc_version(paths["nvrtc"]) if "nvrtc" in paths else ""
    return ToolkitFacts(paths, missing, headers, version, packages)


def _nvrtc_version(path: str) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        status = ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except (OSError, AttributeError):
        return ""
    return "" if status else f"{major.value}.{minor.value}"
