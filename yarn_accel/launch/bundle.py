"""``yarn-accel bundle``: one archive from which a site without internet installs and starts.

It holds this distribution and all that it requires as wheels, made from what is installed here. So a site
gets what this machine runs, and nothing is fetched. With ``--hadoop`` it holds the jars of the test bed, too.
``SHA256SUMS`` lists every file with its hash; ``install.sh`` checks them all before it changes anything.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import click

from yarn_accel.errors import StartupError
from yarn_accel.hadoop.java import fetched, fetched_dir, find_java
from yarn_accel.launch.bootstrap import node_facts
from yarn_accel.launch.packing import DISTRIBUTION, MACHINE_METADATA, REINSTALL_CURE, distributions

_EPOCH = (1980, 1, 1, 0, 0, 0)
_LEVEL = 3
_INSTALL = """#!/bin/sh
# Installs cluster-accel from this folder alone:  sh install.sh [FOLDER OF THE NEW ENVIRONMENT]
set -eu
cd "$(dirname "$0")"
target=${{1:-$HOME/cluster-accel}}
python=${{PYTHON:-python3}}
found=$("$python" -c 'import os, sys; print("%d.%d" % sys.version_info[:2], os.uname().machine)') || exit 3
if [ "$found" != "{python} {machine}" ]; then
    echo "this bundle is for Python {python} on {machine}, here is $found:" \\
        "set PYTHON=/path/to/python{python}, or make the bundle with the site's Python" >&2
    exit 3
fi
case $target in /*) ;; *) target=$OLDPWD/$target ;; esac
sha256sum --check --quiet SHA256SUMS || {{ echo "the bundle is damaged: copy it again" >&2; exit 3; }}
if [ -d hadoop ]; then
    cache=${{XDG_CACHE_HOME:-$HOME/.cache}}/cluster-accel
    mkdir -p "$cache"
    if [ ! -e "$cache/{hadoop}" ]; then
        rm -rf "$cache/.{hadoop}.$$"
        cp -R hadoop "$cache/.{hadoop}.$$" && mv "$cache/.{hadoop}.$$" "$cache/{hadoop}"
    fi
fi
"$python" -m venv "$target"
"$target/bin/python" -m pip --disable-pip-version-check install --quiet --no-compile --no-index \\
    --find-links wheels '{requirement}'
echo "installed: $target/bin/yarn-accel and $target/bin/torque-sched"
"""


@click.command("bundle")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), required=False)
@click.option("--extra", "extras", multiple=True, help="Of this distribution, several times. [yarn]")
@click.option("--hadoop", "with_hadoop", is_flag=True, help="Take the jars of `cluster up` along (100 MB).")
def bundle(file: Path | None, extras: tuple[str, ...], with_hadoop: bool) -> None:
    """Make one archive from which a site without internet installs and starts.

    FILE is a tar archive, by default named by version and platform. There: tar -xf FILE, then sh install.sh.
    """
    extras = extras or ("yarn",)
    facts = node_facts()
    version = importlib.metadata.version(DISTRIBUTION)
    stem = f"{DISTRIBUTION}-{version}-python{facts['python']}-{facts['machine']}"
    file = file or Path(f"{stem}.tar")
    try:
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=file.absolute().parent) as name:
            folder = Path(name) / stem
            n_wheels = _fill(folder, extras, with_hadoop)
            temporary = Path(name) / "archive"
            with tarfile.open(temporary, "w") as archive:
                archive.add(folder, stem)
            n_bytes = temporary.stat().st_size
            temporary.rename(file)
    except OSError as error:
        raise StartupError(
            f"{error.filename or file}: {error.strerror}", cure="name a FILE in a folder with space"
        ) from None
    click.echo(f"{file}: {n_wheels} wheels{', Hadoop' if with_hadoop else ''}, {n_bytes / 1e6:.0f} MB")


def _fill(folder: Path, extras: tuple[str, ...], with_hadoop: bool) -> int:
    """Write all files of a bundle; the number of its wheels."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True)
    found = [_own(), *distributions(extras).values()]
    with click.progressbar(found, label="wheels", file=sys.stderr) as shown:
        for each in shown:
            write_wheel(each, wheels)
    if with_hadoop:
        if fetched(find_java(os.environ)) is None:
            raise StartupError(f"{fetched_dir()} has no jars of Hadoop", cure="yarn-accel hadoop fetch")
        shutil.copytree(fetched_dir(), folder / "hadoop")
    requirement = f"{DISTRIBUTION}[{','.join(extras)}]=={found[0].version}"
    text = _INSTALL.format(**node_facts(), requirement=requirement, hadoop=fetched_dir().name)
    (folder / "install.sh").write_text(text)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{_sha256(path).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / "SHA256SUMS").write_text("".join(lines))
    return len(found)


def _own() -> importlib.metadata.Distribution:
    """Ours as pip installed it: in a clone the folder that setuptools leaves comes first."""
    found = list(importlib.metadata.distributions(name=DISTRIBUTION))
    return next((each for each in found if each.read_text("WHEEL")), found[0])


def write_wheel(distribution: importlib.metadata.Distribution, folder: Path) -> Path:
    """Make a wheel of an installed distribution.

    Raises:
        StartupError: it does not list its files, or one of them is gone.
    """
    name, version = distribution.metadata["Name"], distribution.version
    tags = _tags(distribution)
    stem = f"{name.replace('-', '_').replace('.', '_')}-{version}"
    path = folder / f"{stem}-{tags}.whl"
    rows = []
    with zipfile.ZipFile(path, "w") as archive:

        def add(at: str, content: bytes, is_executable: bool = False) -> None:
            entry = zipfile.ZipInfo(at, _EPOCH)
            entry.external_attr = (0o100755 if is_executable else 0o100644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, _LEVEL)
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            rows.append((at, f"sha256={digest}", len(content)))

        info = ""
        for at, source in _members(distribution, f"{stem}.data"):
            try:
                content = source.read_bytes()
            except OSError as error:
                raise StartupError(
                    f"{name}: {source}: {error.strerror}", cure=f"install {name} again"
                ) from None
            if at.startswith(f"{stem}.data/scripts/") and content.startswith(b"#!"):
                content = b"#!python\n" + content.partition(b"\n")[2]
            if PurePosixPath(at).name == "METADATA" and PurePosixPath(at).parent.suffix == ".dist-info":
                info = str(PurePosixPath(at).parent)
            add(at, content, os.access(source, os.X_OK) and source.suffix != ".py")
        record = io.StringIO()
        csv.writer(record, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", _EPOCH), record.getvalue(), zipfile.ZIP_DEFLATED)
    return path


def _tags(distribution: importlib.metadata.Distribution) -> str:
    """Those of the wheel that was installed, joined as in its file's name."""
    tags = [
        line.partition(":")[2].strip().split("-")
        for line in (distribution.read_text("WHEEL") or "").splitlines()
        if line.startswith("Tag:")
    ]
    if not tags or any(len(tag) != 3 for tag in tags):
        raise StartupError(
            f"{distribution.metadata['Name']} was not installed from a wheel",
            cure=REINSTALL_CURE.format(sys.executable),
        )
    return "-".join(".".join(dict.fromkeys(parts)) for parts in zip(*tags, strict=True))


def _members(distribution: importlib.metadata.Distribution, data: str) -> Iterator[tuple[str, Path]]:
    """The files of a distribution: name in the wheel, and place here."""
    name = distribution.metadata["Name"]
    made = {each.name for each in distribution.entry_points if each.group.endswith("_scripts")}
    listed = sorted(distribution.files or (), key=str)
    if not any(each.name == "METADATA" for each in listed):
        raise StartupError(
            f"{name} does not say which files it consists of (an editable or a system package?)",
            cure=REINSTALL_CURE.format(sys.executable),
        )
    prefix = Path(sys.prefix).resolve()
    for each in listed:
        source = Path(str(each.locate()))
        if each.suffix == ".pyc" or (each.parent.suffix == ".dist-info" and each.name in MACHINE_METADATA):
            continue
        if ".." not in each.parts:
            yield each.as_posix(), source
            continue
        below = source.resolve().relative_to(prefix)
        if below.parts[0] != "bin":
            yield f"{data}/data/{below.as_posix()}", source
        elif below.name not in made:
            yield f"{data}/scripts/{below.name}", source


def _sha256(path: Path) -> hashlib._Hash:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest
