"""BLAS and LAPACK as scipy wraps them, without the rest of scipy.

``import scipy.linalg`` loads half of numpy and scipy, test frameworks and ``numpy.f2py`` included: 150 ms of
processor time and 20 MiB, while the two modules that are needed take 5 ms. Every worker, and every mapper
that computes by itself, would pay that before its first matrix. So modules are loaded from where they lie,
without the packages around them; where scipy keeps them elsewhere, its public modules are loaded as usual.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
from pathlib import Path
from typing import Any, Optional, Sequence


def _part(public: str, private: str) -> Any:
    """A module of scipy.

    Args:
        public: its documented name.
        private: the module behind it, which needs no other one of scipy.

    Raises:
        ImportError: scipy is not installed, or cannot be loaded.
    """
    spec = _found(private)
    if spec is None or spec.loader is None:
        return importlib.import_module(public)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _found(name: str) -> Optional[importlib.machinery.ModuleSpec]:
    # Looking for a package at the top runs nothing of it.
    package = importlib.util.find_spec("scipy")
    if package is None or package.submodule_search_locations is None:
        return None
    inner = name.split(".")[1:-1]
    folders: Sequence[str] = [str(Path(each, *inner)) for each in package.submodule_search_locations]
    return importlib.machinery.PathFinder.find_spec(name, folders)


#: The routines, by their names in Fortran.
blas: Any = _part("scipy.linalg.blas", "scipy.linalg._fblas")
lapack: Any = _part("scipy.linalg.lapack", "scipy.linalg._flapack")
scipy_version: str = _part("scipy.version", "scipy.version").version
