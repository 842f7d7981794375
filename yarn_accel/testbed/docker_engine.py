"""The connection to a Docker engine of this machine, and its failures as one line each with the cure."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yarn_accel.errors import ClusterError, StartupError
from yarn_accel.extras import install_command
from yarn_accel.testbed.docker_specs import VERSION_LABEL

DEFAULT_HOST = "unix:///var/run/docker.sock"
#: Longer than any one command on a node takes.
REQUEST_TIMEOUT_S = 180
_ANSWER_TIMEOUT_S = 5.0
_TCP_PORT = 2375
_OTHER_MODES = "use --mode netns (as root) or loopback"


def engine_address(environ: Mapping[str, str] | None = None) -> str:
    """Return the address of the engine: DOCKER_HOST, else the usual socket."""
    return (os.environ if environ is None else environ).get("DOCKER_HOST") or DEFAULT_HOST


def connect() -> Any:
    """Return a client of the engine that answers.

    Raises:
        StartupError: the SDK is missing, or the engine is elsewhere, does not answer, or may not be used.
    """
    try:
        # A folder called docker, such as this project's own, may pass for the package.
        from docker import APIClient
    except ImportError as error:
        raise StartupError(
            "docker mode needs the Docker SDK for Python", cure=install_command("docker")
        ) from error
    address = engine_address()
    check_address(address)
    _check_answer(address)
    with engine_errors("say what it is"):
        client = APIClient(base_url=address, version="auto", timeout=REQUEST_TIMEOUT_S)
        info = client.info()
    try:
        check_info(info)
    except StartupError:
        client.close()
        raise
    return client


def _check_answer(address: str) -> None:
    parts = urllib.parse.urlsplit(address)
    is_unix = "unix" in parts.scheme
    family = socket.AF_UNIX if is_unix else socket.AF_INET
    target = parts.path if is_unix else (parts.hostname, parts.port or _TCP_PORT)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(_ANSWER_TIMEOUT_S)
        try:
            probe.connect(target)
        except PermissionError as error:
            raise StartupError(
                f"you may not use the Docker engine at {address}",
                cure="add yourself to group docker, or use sudo",
            ) from error
        except OSError as error:
            raise StartupError(
                f"no Docker engine answers at {address} ({error.strerror or error})",
                cure=f"start it (systemctl start docker), or {_OTHER_MODES}",
            ) from error


def check_address(address: str) -> None:
    """Refuse an engine that is on another machine.

    Raises:
        StartupError: with the address.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme in ("tcp", "http", "https") and parts.hostname in ("localhost", "127.0.0.1", "::1"):
        return
    if parts.scheme not in ("unix", "http+unix"):
        raise StartupError(
            f"DOCKER_HOST is {address}, an engine on another machine, and nodes share this machine's files",
            cure="run yarn-accel on that machine, or unset DOCKER_HOST",
        )


def check_info(info: Mapping[str, Any], host_name: str | None = None) -> None:
    """Refuse an engine that cannot give this machine's files, network and users to containers.

    Args:
        info: the engine's answer to ``docker info``.
        host_name: of this machine (default: asked for).

    Raises:
        StartupError: the engine runs in a virtual machine, another container, or in a user namespace.
    """
    host_name = socket.gethostname() if host_name is None else host_name
    if info.get("Name") != host_name:
        raise StartupError(
            f"the Docker engine runs on {info.get('Name')}, not on this machine ({host_name})",
            cure="use an engine that runs here, not in a virtual machine or outside of this container",
        )
    options = {option.partition(",")[0] for option in info.get("SecurityOptions") or ()}
    for name, meaning in (("name=rootless", "rootless"), ("name=userns", "set up with userns-remap")):
        if name in options:
            raise StartupError(
                f"the Docker engine is {meaning}, so its nodes cannot use this machine's files and addresses",
                cure=f"use the engine of the system, or {_OTHER_MODES}",
            )


def check_image(client: Any, image: str, version: str, cure: str) -> None:
    """Make sure that an image is there, and that it is no other version's.

    Args:
        client: of the engine.
        image: its name.
        version: of this product; an image without the label `VERSION_LABEL` is anybody's own.
        cure: how to get the right one.

    Raises:
        StartupError: it is missing or of another version.
    """
    from docker.errors import ImageNotFound

    try:
        found = client.inspect_image(image)
    except ImageNotFound as error:
        raise StartupError(f"the Docker engine has no image {image}", cure=cure) from error
    other = ((found.get("Config") or {}).get("Labels") or {}).get(VERSION_LABEL, version)
    if other != version:
        raise StartupError(f"image {image} is of version {other}, this is {version}", cure=cure)


@contextlib.contextmanager
def engine_errors(doing: str) -> Iterator[None]:
    """Turn failures of the SDK into ours.

    Args:
        doing: what was being done, such as ``create container x``.

    Raises:
        ClusterError: with the engine's own explanation, and the cure where it is known.
    """
    try:
        import requests
        from docker.errors import DockerException
    except ImportError:  # without the extra nobody has a client, so there is nothing to turn
        yield
        return
    try:
        yield
    except (DockerException, requests.exceptions.RequestException) as error:
        text = " ".join(str(getattr(error, "explanation", None) or error).split())
        cure = next((cure for words, cure in _CURES if any(word in text for word in words)), "")
        raise ClusterError(f"the Docker engine could not {doing}: {text[:400]}", cure=cure) from error


#: Words of the engine's explanations, and what to do.
_CURES: Sequence[tuple[tuple[str, ...], str]] = (
    (("no space left",), "free some space on the engine's disk (docker info names it), or remove old images"),
    (
        ("port is already allocated", "address already in use"),
        "stop what listens there, or leave --publish out",
    ),
    (("Pool overlaps",), "take the cluster down and up again for another network"),
    (("bind source path does not exist",), "make the folder, or leave that --mount out"),
    (("Connection refused", "Connection aborted", "No such file"), "see whether the engine still runs"),
)
