"""Looks at the files and programs that an application names, before it is submitted."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from yarn_accel.errors import ConfigError, StorageError
from yarn_accel.storage import Store
from yarn_accel.uris import split_uri


def check_program(key: str, program: str, shipped: Iterable[str]) -> None:
    """Refuse a program that is certain not to be on the nodes, or likely not to.

    Args:
        key: where it stands in the file.
        shipped: names of the files in the working folder.
    """
    shipped = set(shipped)
    if program.startswith("/"):
        path = Path(program)
        if path.is_dir() or (path.exists() and not os.access(path, os.X_OK)):
            raise ConfigError(f"{key}: {program} cannot be executed here", cure="name the program itself")
    elif "/" in program:
        if not program.startswith("./") or program[2:] not in shipped:
            raise ConfigError(
                f"{key}: {program} is not among `files`", cure=f"add it, and write ./{Path(program).name}"
            )
    elif program in shipped:
        raise ConfigError(f"{key}: {program} is one of `files`", cure=f"write ./{program}")
    elif shutil.which(program) is None:
        raise ConfigError(
            f"{key}: there is no program {program} on this machine",
            cure="add it to `files` and write ./" + program + ", or give its absolute path on the nodes",
        )


def check_shipped(
    key: str, files: Iterable[tuple[str, str]], programs: Sequence[str], storage: Store
) -> None:
    """Refuse files that are not there, and programs among them that may not be executed.

    Args:
        files: name in the working folder -> URI.
        programs: the first words of commands.
    """
    for name, uri in files:
        if n_bytes_of(key, uri, storage) is None:
            raise ConfigError(f"{key}: {uri} is a folder", cure="name its files, or an archive of it")
        scheme, _, path = split_uri(uri)
        if scheme == "file" and f"./{name}" in programs and not Path(path).stat().st_mode & stat.S_IXUSR:
            raise ConfigError(f"{key}: {path} may not be executed", cure=f"chmod +x {path}")


def check_output_place(
    output: str, inputs: Iterable[str], storage: Store, *, may_exist: bool = False
) -> None:
    """Refuse an output folder that is there already, or lies in an input."""
    for each in inputs:
        if each and _is_within(output, each):
            raise ConfigError(
                f"output: {output} lies in the input {each}", cure="give a folder outside the input"
            )
    if not may_exist and storage.exists(output):
        raise ConfigError(
            f"output: {output} is there already", cure="give another folder, or delete this one"
        )


def n_bytes_of(key: str, uri: str, storage: Store) -> int | None:
    """Length of a file; None for a folder.

    Raises:
        ConfigError: there is none.
        StorageError: the storage did not answer.
    """
    try:
        return storage.stamp(uri).n_bytes
    except StorageError as error:
        if isinstance(error.__cause__, IsADirectoryError):
            return None
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            hint = "patterns are not expanded: name the folder" if "*" in uri else "correct the name"
            raise ConfigError(f"{key}: {uri}: there is no such file or folder", cure=hint) from None
        raise


def _is_within(inner: str, outer: str) -> bool:
    (scheme, authority, path), (of_scheme, of_authority, of_path) = split_uri(inner), split_uri(outer)
    is_same = scheme == of_scheme and (authority == of_authority or not authority or not of_authority)
    return is_same and (path == of_path or path.startswith(of_path.rstrip("/") + "/"))
