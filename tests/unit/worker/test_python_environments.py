"""Packed Python environments: unpacked with any Python, and never outside their folder."""

import io
import sys
import tarfile

import pytest

from yarn_accel.worker.python_environments import unpack


def member(name, kind=tarfile.REGTYPE, target=""):
    found = tarfile.TarInfo(name)
    found.type, found.linkname, found.mode = kind, target, 0o755
    return found


def packed(folder, *members):
    with tarfile.open(folder / "packed.tar.gz", "w:gz") as archive:
        for each in members:
            archive.addfile(each, io.BytesIO())
    return folder / "packed.tar.gz"


@pytest.fixture(params=["with filters", "without filters"])
def any_python(request, monkeypatch):
    """Python before 3.11.4, such as Debian 12's, has no filters."""
    if request.param == "with filters" and not hasattr(tarfile, "tar_filter"):
        pytest.skip("this Python has no filters")
    if request.param == "without filters":
        if sys.version_info >= (3, 14):
            pytest.skip("this Python never goes without a filter")
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_environment_with_links_is_unpacked(tmp_path, any_python):
    archive = packed(
        tmp_path,
        member("env", tarfile.DIRTYPE),
        member("env/bin", tarfile.DIRTYPE),
        member("env/bin/python3", tarfile.SYMTYPE, "/usr/bin/python3"),
        member("env/bin/python", tarfile.SYMTYPE, "python3"),
        member("env/lib64", tarfile.SYMTYPE, "lib"),
        member("env/bin/tool"),
        member("env/bin/same", tarfile.LNKTYPE, "env/bin/tool"),
    )
    unpack(archive, tmp_path / "here")
    assert sorted(each.name for each in (tmp_path / "here" / "env" / "bin").iterdir()) == [
        "python",
        "python3",
        "same",
        "tool",
    ]


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("/outside")],
        [member("a", tarfile.SYMTYPE, ".."), member("a/outside")],
        [member("a", tarfile.LNKTYPE, "../outside")],
        [member("a", tarfile.LNKTYPE, "/etc/passwd")],
        [member("device", tarfile.CHRTYPE)],
        [member("pipe", tarfile.FIFOTYPE)],
    ],
    ids=["parent", "root", "through a link", "hard link", "hard link to root", "device", "pipe"],
)
def test_what_leads_elsewhere_is_refused_before_anything_is_written(tmp_path, any_python, members):
    with pytest.raises(tarfile.TarError, match="below its folder"):
        unpack(packed(tmp_path, member("good"), *members), tmp_path / "here")
    assert not (tmp_path / "here").exists()
    assert not (tmp_path / "outside").exists()
