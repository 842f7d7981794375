"""The Python environments that a service names: an interpreter of the node, or what is unpacked here once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import threading
from pathlib import Path

from yarn_accel.core.tasks.attempt_orders import AttemptOrder
from yarn_accel.errors import AccelError
from yarn_accel.worker.file_cache import FileCache

_PYTHON = "bin/python"


class PythonEnvironments:
    """One per worker; safe between threads.

    Args:
        files: fetches archives.
        folder: its own, with a folder for each archive; what an earlier worker left there is deleted.
    """

    def __init__(self, files: FileCache, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._files = files
        self._folder = folder
        self._lock = threading.Lock()
        #: By the archive's URI.
        self._interpreters: dict[str, str] = {}

    def interpreter(self, order: AttemptOrder) -> str:
        """The interpreter that an attempt asks for; empty: the worker's own.

        Raises:
            AccelError: it is not there, or the archive is none.
            StorageError: the archive cannot be read.
        """
        place = order.python
        if not place:
            return ""
        if place.startswith("/"):
            return _checked(Path(place), place)
        with self._lock:
            if place not in self._interpreters:
                self._interpreters[place] = self._unpacked(place)
            return self._interpreters[place]

    def variables(self, order: AttemptOrder, inherited: str) -> dict[str, str]:
        """What of an attempt's environment makes `python` and the like those of its Python environment.

        Args:
            inherited: PATH without it.
        """
        interpreter = self.interpreter(order)
        if not interpreter:
            return {}
        programs = Path(interpreter).parent
        path = f"{programs}{os.pathsep}{inherited}" if inherited else str(programs)
        return {"PATH": path, "VIRTUAL_ENV": str(programs.parent)}

    def _unpacked(self, uri: str) -> str:
        name = hashlib.sha256(uri.encode()).hexdigest()[:16]
        folder, packed = self._folder / name, self._folder / f"{name}.packed"
        shutil.rmtree(folder, ignore_errors=True)
        packed.unlink(missing_ok=True)
        folder.mkdir(parents=True)
        self._files.link(uri, packed)
        try:
            unpack(packed, folder)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise AccelError(f"the Python environment {uri} cannot be unpacked: {error}") from None
        finally:
            packed.unlink(missing_ok=True)
        found = [folder / _PYTHON, *(each / _PYTHON for each in sorted(folder.iterdir()))]
        return _checked(next((each for each in found if each.exists()), folder / _PYTHON), uri)


def unpack(packed: Path, folder: Path) -> None:
    """Unpack an archive; symbolic links may lead to the interpreter of the node, names stay below the folder.

    Raises:
        TarError: it is no archive, or a name leads elsewhere.
        OSError: it cannot be read, or the folder not be written.
    """
    with tarfile.open(packed) as archive:
        members = archive.getmembers()
        links = {Path(member.name) for member in members if member.issym()}
        for member in members:
            path = Path(member.name)
            names = [*path.parts, *(Path(member.linkname).parts if member.islnk() else ())]
            is_known = member.isreg() or member.isdir() or member.issym() or member.islnk()
            if not is_known or {"..", "/"}.intersection(names) or links.intersection(path.parents):
                raise tarfile.ExtractError(f"{member.name!r} is no file, folder or link below its folder")
        # Python before 3.11.4, such as Debian 12's, has no filters.
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder, members)


def _checked(interpreter: Path, place: str) -> str:
    if not os.access(interpreter, os.X_OK) or interpreter.is_dir():
        raise AccelError(f"the Python environment {place}: {interpreter} cannot be executed on this node")
    return str(interpreter)
