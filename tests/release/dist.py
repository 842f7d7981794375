"""Build wheel and source archive twice and compare them: ``python -m tests.release.dist [FOLDER]``.

The two builds start from two checkouts of the current commit, in folders of different names and a minute
apart on the clocks of their files. Exit status 0: both builds are equal byte for byte, and FOLDER (by
default ``dist``) holds one of them with ``SHA256SUMS``.

The standard tools leave the time of the build in a source archive, so its members are written once more:
sorted, with the commit's time, and without the builder's names. The wheel is built out of that archive.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main(folder: str = "dist") -> int:
    commit_s = int(_git("log", "-1", "--format=%ct"))
    if _git("status", "--porcelain", "--untracked-files=no").strip():
        print("tracked files differ from the commit: the build has what is committed", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        builds = [
            _build(Path(scratch, name), commit_s, age_s) for name, age_s in (("first", 0), ("the-second", 60))
        ]
        sums = [
            {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in build} for build in builds
        ]
        if sums[0] != sums[1]:
            print(f"the two builds differ:\n{sums[0]}\n{sums[1]}", file=sys.stderr)
            return 1
        target = ROOT / folder
        target.mkdir(exist_ok=True)
        for file in builds[0]:
            shutil.copyfile(file, target / file.name)
        lines = [f"{digest}  {name}\n" for name, digest in sorted(sums[0].items())]
        (target / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
        print("".join(lines), end="")
        print(f"two builds are equal; they are in {folder}/")
    return 0


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _build(folder: Path, commit_s: int, age_s: int) -> list[Path]:
    """One source archive and one wheel of the commit, built in ``folder``."""
    checkout, built = folder / "checkout", folder / "built"
    checkout.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive, check=True)
    for path in checkout.rglob("*"):
        os.utime(path, (commit_s - age_s, commit_s - age_s))
    build = [sys.executable, "-m", "build", "--outdir", str(built)]
    _run([*build, "--sdist", str(checkout)], commit_s)
    (sdist,) = built.glob("*.tar.gz")
    _write_again(sdist, commit_s)
    (folder / "sources").mkdir()
    _run(["tar", "-xf", str(sdist), "-C", str(folder / "sources")], commit_s)
    (sources,) = (folder / "sources").iterdir()
    _run([*build, "--wheel", str(sources)], commit_s)
    (wheel,) = built.glob("*.whl")
    return [sdist, wheel]


def _run(words: list[str], commit_s: int) -> None:
    """A step of a build, as of the commit's time. A wheel holds the modes of files, so the umask is fixed."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(commit_s)}
    ended = subprocess.run(words, capture_output=True, text=True, umask=0o022, env=environment)
    if ended.returncode:
        sys.exit(f"{' '.join(words)}: status {ended.returncode}\n{ended.stdout}\n{ended.stderr}")


def _write_again(sdist: Path, commit_s: int) -> None:
    """The archive's members sorted, with one time, one owner, and modes that no umask changed."""
    with tarfile.open(sdist) as tar:
        members = [
            (member, tar.extractfile(member)) for member in sorted(tar.getmembers(), key=lambda m: m.name)
        ]
        contents = [(member, b"" if file is None else file.read()) for member, file in members]
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for member, content in contents:
            member.mtime, member.uid, member.gid, member.uname, member.gname = commit_s, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            tar.addfile(member, io.BytesIO(content))
    sdist.write_bytes(gzip.compress(plain.getvalue(), 9, mtime=commit_s))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
