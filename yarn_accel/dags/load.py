"""Reads workflows in any known form, and the machines of a simulation."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from yarn_accel.adapters.settings_file import complaints, read_settings
from yarn_accel.core.dags.model import Dag, Machine, PriorityClass
from yarn_accel.core.tasks.values import ResourceId
from yarn_accel.core.units import MAX_SECONDS
from yarn_accel.dags.dax import read_dax
from yarn_accel.dags.own_file import read_own_file
from yarn_accel.dags.wfformat import read_wfformat
from yarn_accel.errors import ConfigError

#: Larger files are refused before they are read. YAML is read some hundred times slower than JSON.
MOST_BYTES = 256 << 20
MOST_YAML_BYTES = 16 << 20
_MOST_MACHINES = 10_000
_ARGUMENT = re.compile(r"(?P<file>.+)@(?P<arrival>[^@:/]*)(?::(?P<word>[^@:/]*))?")
_FORBID = ConfigDict(frozen=True, extra="forbid")


class MachineEntry(BaseModel):
    """A machine: it runs one task at a time."""

    model_config = _FORBID

    name: str = Field(min_length=1, max_length=256, description="its name")
    speed: float = Field(1.0, ge=1e-6, le=1e9, description="a task of runtime_s takes runtime_s / speed")
    joins_s: float = Field(0.0, ge=0, le=MAX_SECONDS, description="when it joins")
    leaves_s: float | None = Field(
        None,
        gt=0,
        le=MAX_SECONDS,
        description="when it leaves: its queue and its unfinished task go back; default: never",
    )


class MachinesFile(BaseModel):
    """The machines of a simulation."""

    model_config = _FORBID

    bandwidth_bytes_per_s: float = Field(
        ge=1e-3, le=1e15, description="between any two machines; on one it takes no time"
    )
    transfers: Literal["when_made", "when_placed"] = Field(
        "when_made", description="when_made: from the end of the task that made the files, as in the paper"
    )
    machines: tuple[MachineEntry, ...] = Field(
        min_length=1, max_length=_MOST_MACHINES, description="at least one"
    )


def load_machines(path: Path) -> MachinesFile:
    """Read M.yaml.

    Raises:
        ConfigError: names the file, the key, and what is wrong there.
    """
    _check_size(path, MOST_YAML_BYTES)
    values = read_settings(path)
    try:
        found = MachinesFile.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {complaints(error, MachinesFile, values)}") from None
    names = [each.name for each in found.machines]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ConfigError(f"{path}: machine {name} is given twice; names tell them apart")
    return found


def machine_of(entry: MachineEntry) -> Machine:
    """A machine as a policy knows it."""
    return Machine(ResourceId(entry.name), entry.speed)


def load_dag(path: Path) -> Dag:
    """Read a workflow: by the ending of its name, or else by its first character.

    Raises:
        ConfigError: it cannot be read, is too large, or is wrong; names the file and the place.
    """
    ending = path.suffix.lower()
    if ending in (".yaml", ".yml"):
        _check_size(path, MOST_YAML_BYTES)
        return read_own_file(path)
    _check_size(path, MOST_BYTES)
    if ending in (".dax", ".xml"):
        return read_dax(path)
    if ending == ".json":
        return read_wfformat(path)
    try:
        with path.open("rb") as stream:
            first = stream.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if first == b"<":
        return read_dax(path)
    if first == b"{":
        return read_wfformat(path)
    _check_size(path, MOST_YAML_BYTES)
    return read_own_file(path)


def parse_argument(text: str) -> tuple[Path, float, PriorityClass]:
    """FILE, FILE@ARRIVAL_S or FILE@ARRIVAL_S:CLASS; 0 s and basic by default.

    Raises:
        ConfigError: an arrival that is no number from 0, or an unknown class.
    """
    match = _ARGUMENT.fullmatch(text)
    if match is None or Path(text).exists():
        return Path(text), 0.0, PriorityClass.BASIC
    try:
        arrival_s = float(match["arrival"] or 0)
    except ValueError:
        arrival_s = math.nan
    if not 0 <= arrival_s <= MAX_SECONDS:
        raise ConfigError(
            f"{text}: the arrival is {match['arrival']!r}, not a number of seconds from 0 to {MAX_SECONDS:g}"
        )
    word = match["word"] or "basic"
    classes = {each.word: each for each in PriorityClass}
    if word not in classes:
        raise ConfigError(f"{text}: no class is called {word!r}; known: {', '.join(classes)}")
    return Path(match["file"]), arrival_s, classes[word]


def _check_size(path: Path, most: int) -> None:
    try:
        n_bytes = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    if not path.is_file():
        raise ConfigError(f"{path}: is no file")
    if n_bytes > most:
        raise ConfigError(f"{path}: has {n_bytes} bytes, more than {most}")
