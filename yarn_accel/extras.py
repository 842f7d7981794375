"""A command ends with one line where an error is expected, or a package of an extra is not installed.

The distribution's metadata says which extra brings which package, so nothing is listed here twice. Standard
library only, so that no command needs a package to name the missing one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from yarn_accel.errors import AccelError, StartupError

DISTRIBUTION = "cluster-accel"
#: Of several extras that bring a package, these are named first.
PREFERRED = ("yarn", "bench")
#: Packages that are imported by another name than they are installed by.
INSTALLED_AS = {
    "PIL": "pillow",
    "cupy": "cupy-cuda12x",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "grpc": "grpcio",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "zmq": "pyzmq",
}
_REQUIREMENT = re.compile(r"""([\w.-]+).*\bextra == ["']([\w-]+)["']""", re.DOTALL)


def install_command(module: str) -> str:
    """The command that installs what brings a module: one of our extras, else the package itself."""
    top = module.partition(".")[0]
    package = _normal(INSTALLED_AS.get(top, top))
    found = [extra for name, extra in _requirements() if name == package]
    for extra in (*PREFERRED, *found):
        if extra in found:
            return f"pip install '{DISTRIBUTION}[{extra}]'"
    return f"pip install {package}"


def missing_package(error: ModuleNotFoundError) -> StartupError | None:
    """The error that names a missing package and its cure; None: no extra of ours brings it."""
    name = error.name or ""
    cure = install_command(name)
    if DISTRIBUTION not in cure:
        return None
    return StartupError(f"this needs the package {name}, which is not installed", cure=cure)


def require(*modules: str) -> None:
    """Look for modules without loading them, for a program whose other processes or threads will.

    Raises:
        StartupError: one is not installed.
    """
    for name in modules:
        if find_spec(name) is None:
            cure = install_command(name)
            raise StartupError(f"this needs the package {name}, which is not installed", cure=cure)


@contextmanager
def errors_as_lines(program: str, *more: type[Exception]) -> Iterator[None]:
    """An expected error becomes one line on standard error and the exit code it names.

    Args:
        program: begins the line.
        more: further bases of expected errors, with an attribute ``exit_code``.

    Raises:
        SystemExit: with the exit code.
    """
    expected: Exception | None
    try:
        yield
        return
    except ModuleNotFoundError as error:
        expected = missing_package(error)
        if expected is None:
            raise
    except Exception as error:
        if not isinstance(error, (AccelError, *more)):
            raise
        expected = error
    sys.stderr.write(f"{program}: {expected}\n")
    sys.exit(int(getattr(expected, "exit_code", 1)))


def _requirements() -> Iterator[tuple[str, str]]:
    """Each package that an extra brings, with the extra; none where our own metadata is not installed."""
    from importlib import metadata

    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return
    for text in required:
        if match := _REQUIREMENT.match(text):
            yield _normal(match[1]), match[2]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
