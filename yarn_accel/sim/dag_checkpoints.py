"""Keeps how far a simulation of DAGs is in a file, so that a run that was stopped goes on from there."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from yarn_accel.core.dags.policies.base import DagPolicy
from yarn_accel.core.tasks.outcome import RunOutcome
from yarn_accel.errors import ConfigError
from yarn_accel.sim.dag_simulator import DagSimulation
from yarn_accel.sim.dag_world import DagWorld

_EVERY_S = 60.0
_SHOWN_EVERY = 50


def run_with_checkpoints(
    world: DagWorld,
    policy: DagPolicy,
    file: Path | None = None,
    show: Callable[[int], None] = lambda n_ended: None,
    every_s: float = _EVERY_S,
) -> RunOutcome:
    """Run a world to its end.

    Args:
        world: what is there.
        policy: a new one.
        file: lines of JSON: what the run is of, then a checkpoint every `every_s`; removed at the end. A last
            line that is torn is forgotten.
        show: called now and then with the number of tasks that have ended.
        every_s: seconds between checkpoints.

    Raises:
        ConfigError: the file is of another run.
    """
    simulation = resumed(world, policy, file)
    run_on(simulation, file, show, every_s)
    outcome = simulation.outcome()
    if file is not None:
        file.unlink()
    return outcome


def resumed(world: DagWorld, policy: DagPolicy, file: Path | None) -> DagSimulation:
    """A simulation that goes on from the last checkpoint of a file; see `run_with_checkpoints`."""
    simulation = DagSimulation(world, policy)
    if file is not None:
        _restore(simulation, world, policy, file)
    return simulation


def run_on(
    simulation: DagSimulation,
    file: Path | None,
    show: Callable[[int], None],
    every_s: float = _EVERY_S,
    most_decisions: float = math.inf,
) -> None:
    """Go to the end, or to so many decisions since the beginning; how far that is, is in the file."""
    saved_s = time.monotonic()
    n_steps = 0
    while simulation.n_decisions < most_decisions and simulation.step():
        n_steps += 1
        if n_steps % _SHOWN_EVERY == 0:
            show(simulation.n_ended)
        if file is not None and time.monotonic() - saved_s >= every_s:
            _append(file, simulation.checkpoint())
            saved_s = time.monotonic()
    show(simulation.n_ended)
    if file is not None:
        _append(file, simulation.checkpoint())


def _restore(simulation: DagSimulation, world: DagWorld, policy: DagPolicy, file: Path) -> None:
    digest = hashlib.sha256(repr((policy.name, policy.options, world)).encode()).hexdigest()
    header = json.dumps({"simulation": digest})
    try:
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        _append(file, header)
        return
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: no checkpoint file: {error}") from None
    if not lines or lines[0] != header + "\n":
        raise ConfigError(f"{file}: is of another simulation", cure="give another file, or remove this one")
    whole = [line for line in lines if line.endswith("\n")]
    if len(whole) < len(lines):
        with file.open("r+b") as stream:
            stream.truncate(sum(len(line.encode()) for line in whole))
    simulation.restore(whole[1:])


def _append(file: Path, line: str) -> None:
    with file.open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")
        stream.flush()
        os.fsync(stream.fileno())
