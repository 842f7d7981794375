"""Without an extra every command works, or ends with the one line that names the command that installs it."""

from __future__ import annotations

import configparser
import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torque_sched import extras as torque_extras
from yarn_accel import extras as yarn_extras
from yarn_accel.errors import StartupError
from yarn_accel.testbed.backends import check_machine
from yarn_accel.testbed.plan import NetworkMode, UpOptions
from yarn_accel.testbed.state import ClusterPaths

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"compile", "dev", "docs"}
"""Extras that no command of ours imports from."""
LINE = re.compile(r"(yarn-accel|torque-sched|jobs|benchmarks): .*\bpip install 'cluster-accel\[[\w-]+\]'.*\n")


def declared() -> dict[str, list[str]]:
    """Extra -> the packages it brings, as setup.cfg has them."""
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return {
        extra: [re.match(r"[\w.-]+", line)[0] for line in text.split("\n") if line and line[0] != "#"]
        for extra, text in parser["options.extras_require"].items()
    }


def imported(package: str) -> list[str]:
    """The modules that a package brings, by its own files; none where it is not installed."""
    try:
        files = importlib.metadata.files(package) or ()
    except importlib.metadata.PackageNotFoundError:
        return []
    tops = {path.parts[0] for path in files if path.suffix in {".py", ".so"} and ".." not in path.parts}
    return sorted({top.partition(".")[0] for top in tops} - {"_distutils_hack"})


def wrong(left_out: dict[str, list[str]], folder: Path) -> list[str]:
    """Which commands end in something else than the line, where what `left_out` names cannot be imported."""
    trace = folder / "trace.swf"
    trace.write_text("; MaxProcs: 4\n" + "1 0 0 60 2 -1 -1 2 60 -1 1 1 1 1 1 1 -1 -1\n")
    secret = folder / "secret"
    secret.touch(mode=0o600)
    secret.write_text("00" * 32)
    served = folder / "pipeline.yaml"
    served.write_text(f"name: a\nlisten_host: ''\nunix_path: {folder}/socket\nmaster_secret_file: {secret}\n")
    serve = ["yarn-accel", "pipeline", "serve", "--config", str(served)]
    argv = [
        ["torque-sched", "simulate", "--trace", str(trace), "--policy", "easy"],
        ["torque-sched", "simulate-grid", "--trace", str(trace), "--sites", "2x4"],
    ]
    rounds = [
        {"left_out": modules, "argv": argv + [serve] * bool({"numpy", "scipy"} & set(modules))}
        for modules in left_out.values()
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fixtures.without_extras"],
        input=json.dumps(rounds),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcomes = dict(zip(left_out, json.loads(done.stdout), strict=True))
    ended = {package: [each["argv"] for each in found if each["code"]] for package, found in outcomes.items()}
    for package in {"all", "numpy", "simpy"} & set(left_out):
        assert ["yarn-accel", "tasks", "simulate", "--help"] in ended[package]
        assert argv[0] in ended[package]
    return [
        f"without {package}: {' '.join(each['argv'])} ended with {each['code']}: {each['written'][-500:]}"
        for package, found in outcomes.items()
        for each in found
        if each["code"] and not LINE.fullmatch(each["written"])
    ]


def packages() -> dict[str, list[str]]:
    """Each package of an extra that is installed here, with its modules."""
    names = {name for extra, names in declared().items() if extra not in TOOLS for name in names}
    return {name: modules for name in sorted(names) if (modules := imported(name))}


def test_each_command_without_the_extras_works_or_says_how_to_install_them(tmp_path) -> None:
    found = packages()
    everything = sorted({module for modules in found.values() for module in modules})
    left_out = {"all": everything, **{name: found[name] for name in ("aiohttp", "numpy", "simpy")}}
    assert wrong(left_out, tmp_path) == []


@pytest.mark.slow  # 25 s of CPU
def test_each_command_without_one_package_works_or_says_how_to_install_it(tmp_path) -> None:
    assert wrong(packages(), tmp_path) == []


def test_a_cluster_without_what_its_servers_need_is_refused_before_anything_starts(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "scipy", None)
    paths = ClusterPaths.of("none")
    reported: list[str] = []
    with pytest.raises(StartupError, match=r"the package scipy, .* pip install 'cluster-accel\[yarn\]'"):
        check_machine(NetworkMode.LOOPBACK, UpOptions("none"), paths, reported.append)
    check_machine(NetworkMode.LOOPBACK, UpOptions("none", accel_nodes=0), paths, reported.append)
    assert len(reported) == 1


@pytest.mark.parametrize("extras", [yarn_extras, torque_extras], ids=["yarn_accel", "torque_sched"])
def test_the_command_names_an_extra_that_brings_the_module(extras) -> None:
    for extra, packages in declared().items():
        for package in packages:
            for module in imported(package):
                named = re.search(r"\[(.+)\]", extras.install_command(module))
                assert named is None or package in declared()[named[1]], (extra, module)
    assert "[docker]" in extras.install_command("docker.errors")
    assert extras.missing_package(ModuleNotFoundError(name="no_such_module")) is None
    assert extras.missing_package(ModuleNotFoundError(name="yarn_accel.gone")) is None


def test_each_package_of_an_extra_is_found_by_the_name_it_is_imported_by() -> None:
    for package, modules in packages().items():
        assert any("cluster-accel[" in yarn_extras.install_command(module) for module in modules), package


def test_without_our_own_metadata_the_package_itself_is_named(monkeypatch) -> None:
    def absent(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", absent)
    assert yarn_extras.install_command("PIL.Image") == "pip install pillow"
    assert torque_extras.install_command("numpy.typing") == "pip install numpy"
