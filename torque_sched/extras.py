"""The package of an extra that is not installed: one line with the command that installs it.

The distribution's metadata says which extra brings which package, so nothing is listed here twice.
"""

from __future__ import annotations

import re
from importlib import metadata

from torque_sched.errors import StartupError

DISTRIBUTION = "cluster-accel"
#: Of several extras that bring a package, this one is named.
PREFERRED = "torque"
_REQUIREMENT = re.compile(r"""([\w.-]+).*\bextra == ["']([\w-]+)["']""", re.DOTALL)


def install_command(module: str) -> str:
    """The command that installs what brings a module: one of our extras, else the package itself."""
    package = _normal(module.partition(".")[0])
    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        required = ()
    matches = filter(None, map(_REQUIREMENT.match, required))
    found = [match[2] for match in matches if _normal(match[1]) == package]
    extra = PREFERRED if PREFERRED in found else next(iter(found), "")
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {package}"


def missing_package(error: ModuleNotFoundError) -> StartupError | None:
    """The error that names a missing package and its cure; None: no extra of ours brings it."""
    name = error.name or ""
    cure = install_command(name)
    if DISTRIBUTION not in cure:
        return None
    return StartupError(f"this needs the package {name}, which is not installed", cure=cure)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
