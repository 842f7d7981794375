"""Install the wheel in fresh environments and use it there: ``python -m tests.release.wheel WHEEL``.

An environment is made for each Python from 3.10 on that this machine has (on PATH, and those of pyenv) and
for each extra of the wheel. In each: ``pip check``, both commands by name and by ``python -m``,
``--version``, shell completion, and the import of every module of the two packages whose third-party
imports are installed. Where nothing is installed beside the wheel, and where the extra is ``yarn`` or
``torque``, the help of every command is printed, too: its command has to end with 0 or to name the missing
extra, and the slowest is shown in seconds.

One line per environment is printed as it ends, and JSON of all at the end; exit status 1: something failed.
``--python`` and ``--extra`` choose (each may stand several times); the whole takes about an hour and
downloads some 4 GB, as the extras for GPUs are large.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

COMMANDS = {"yarn-accel": "yarn_accel", "torque-sched": "torque_sched"}
WITH_EVERY_HELP = ("", "yarn", "torque")
HELP_GOAL_S = 0.5
N_HELP_RUNS = 3

_LIST_COMMANDS = """
import importlib, json, sys
import click
def walk(path, command):
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            try:
                found = command.get_command(context, name)
            except ImportError:
                found = None
            yield from walk([*path, name], found)
module = importlib.import_module(sys.argv[1] + ".cli")
print(json.dumps(list(walk([], getattr(module, "root", None) or module.main))))
"""

_IMPORT_ALL = """
import importlib, json, pkgutil, sys
done, lacking, failed = 0, [], []
for top in ("yarn_accel", "torque_sched"):
    path = importlib.import_module(top).__path__
    for found in pkgutil.walk_packages(path, top + ".", onerror=lambda name: None):
        if found.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(found.name)
            done += 1
        except ModuleNotFoundError as error:
            ours = (error.name or "").split(".")[0] in ("yarn_accel", "torque_sched")
            (failed if ours else lacking).append(found.name + ": " + str(error))
        except Exception as error:
            failed.append(found.name + ": " + repr(error))
print(json.dumps({"imported": done, "lacking": lacking, "failed": failed}))
"""


class Environment:
    """A virtual environment with the wheel and one extra; what does not hold is noted in ``faults``."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.bin = folder / "bin"
        self.folder = folder
        self.faults: list[str] = []
        # Nothing of this checkout, of the caller's settings or of his home is seen.
        self._variables = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
        subprocess.run([str(python), "-m", "venv", str(folder)], check=True)

    def install(self, wheel: Path, extra: str) -> None:
        """Install the wheel by pip, which keeps the caller's settings and cache."""
        requirement = f"{wheel}[{extra}]" if extra else str(wheel)
        self._run(
            "install", [str(self.bin / "python"), "-m", "pip", "install", "-q", requirement], dict(os.environ)
        )
        self._run("pip check", [str(self.bin / "python"), "-m", "pip", "check"])

    def check_commands(self, version: str) -> None:
        """Both commands start both ways, know their version, and complete in three shells."""
        for command, module in COMMANDS.items():
            for words in ([str(self.bin / command)], [str(self.bin / "python"), "-m", module]):
                said = self._run(command, [*words, "--version"])
                if not said.strip().endswith(version):
                    self.faults.append(f"{command} --version said {said!r}, not {version}")
                self._run(command, [*words, "--help"])
            variable = f"_{command.upper().replace('-', '_')}_COMPLETE"
            for shell in ("bash", "zsh", "fish"):
                script = self._run(
                    command, [str(self.bin / command)], {**self._variables, variable: f"{shell}_source"}
                )
                if command not in script:
                    self.faults.append(f"{command}: no completion for {shell}")
            asked = {
                **self._variables,
                variable: "bash_complete",
                "COMP_WORDS": f"{command} do",
                "COMP_CWORD": "1",
            }
            if "doctor" not in self._run(command, [str(self.bin / command)], asked):
                self.faults.append(f"{command}: `do` does not complete to doctor")

    def import_all(self) -> tuple[int, int]:
        """How many modules are imported, and how many need a package of another extra."""
        found = json.loads(
            self._run("imports", [str(self.bin / "python"), "-W", "error", "-c", _IMPORT_ALL]) or "{}"
        )
        self.faults += found.get("failed", ["the imports did not end"])
        return found.get("imported", 0), len(found.get("lacking", []))

    def slowest_help(self) -> tuple[float, str, int, int]:
        """The slowest help (median, s), its command, how many commands there are and name an extra."""
        slowest, whose, n_commands, n_lacking = 0.0, "", 0, 0
        for command, module in COMMANDS.items():
            listed = self._run(command, [str(self.bin / "python"), "-c", _LIST_COMMANDS, module])
            for path in json.loads(listed or "[]"):
                n_commands += 1
                words = [str(self.bin / command), *path, "--help"]
                seconds = []
                for _ in range(N_HELP_RUNS):
                    began_s = time.monotonic()
                    ended = subprocess.run(
                        words, capture_output=True, text=True, env=self._variables, cwd=self.folder
                    )
                    seconds.append(time.monotonic() - began_s)
                if ended.returncode and "pip install" in ended.stderr and "Traceback" not in ended.stderr:
                    n_lacking += 1
                elif ended.returncode or "Usage:" not in ended.stdout:
                    self.faults.append(
                        f"{' '.join(words[1:])}: status {ended.returncode}: {ended.stderr[-300:]}"
                    )
                slowest, whose = max(
                    (slowest, whose), (sorted(seconds)[N_HELP_RUNS // 2], " ".join([command, *path]))
                )
        return slowest, whose, n_commands, n_lacking

    def _run(self, what: str, words: list[str], variables: dict[str, str] | None = None) -> str:
        ended = subprocess.run(
            words, capture_output=True, text=True, env=variables or self._variables, cwd=self.folder
        )
        if ended.returncode:
            self.faults.append(f"{what}: status {ended.returncode}: {(ended.stderr or ended.stdout)[-600:]}")
        return ended.stdout


def pythons() -> list[Path]:
    """Each Python from 3.10 on that is on PATH or that pyenv has, one of each minor version."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    on_path = [shutil.which(f"python3.{minor}") for minor in range(10, 30)]
    found: dict[tuple[int, int], Path] = {}
    for path in [
        *root.glob("3.*/bin/python3"),
        *(Path(each) for each in on_path if each),
        Path(sys.executable),
    ]:
        asked = [str(path), "-c", "import ensurepip, sys; print(*sys.version_info[:2])"]
        ended = subprocess.run(asked, capture_output=True, text=True)
        if ended.returncode == 0:
            major, minor = map(int, ended.stdout.split())
            if (major, minor) >= (3, 10):
                found.setdefault((major, minor), path.resolve())
    return [found[version] for version in sorted(found)]


def _facts(wheel: Path) -> tuple[str, list[str]]:
    """The wheel's version and its extras, from its metadata."""
    version = wheel.name.split("-")[1]
    shown = subprocess.run(
        ["unzip", "-p", str(wheel), f"*{version}.dist-info/METADATA"],
        check=True,
        capture_output=True,
        text=True,
    )
    return version, re.findall(r"^Provides-Extra: (\S+)$", shown.stdout, re.MULTILINE)


@click.command()
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--python", "chosen", multiple=True, type=click.Path(exists=True, path_type=Path))
@click.option("--extra", "extras", multiple=True, help="An extra of the wheel; '' for none.")
def main(wheel: Path, chosen: tuple[Path, ...], extras: tuple[str, ...]) -> None:
    """Install WHEEL in fresh environments and use it there."""
    version, all_extras = _facts(wheel.resolve())
    rows = []
    for python in chosen or pythons():
        for extra in extras or ("", *all_extras):
            with tempfile.TemporaryDirectory() as scratch:
                began_s = time.monotonic()
                environment = Environment(Path(scratch, "venv"), python)
                environment.install(wheel.resolve(), extra)
                row: dict[str, object] = {"python": str(python), "extra": extra}
                if not environment.faults:
                    row["install_s"] = round(time.monotonic() - began_s, 1)
                    environment.check_commands(version)
                    row["imported"], row["modules_of_other_extras"] = environment.import_all()
                if not environment.faults and extra in WITH_EVERY_HELP:
                    slowest_s, whose, row["commands"], row["commands_that_name_an_extra"] = (
                        environment.slowest_help()
                    )
                    row["slowest_help_s"], row["slowest_help"] = round(slowest_s, 3), whose
                row["faults"] = environment.faults
            rows.append(row)
            print(*(f"{name}={value}" for name, value in row.items()), flush=True)
    print(json.dumps({"wheel": wheel.name, "help_goal_s": HELP_GOAL_S, "environments": rows}, indent=1))
    sys.exit(any(row["faults"] for row in rows))


if __name__ == "__main__":
    main()
