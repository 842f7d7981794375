"""URIs of files: the one rule by which client, fallback, server, tasks and jobs read a name.

A URI is taken literally, as Hadoop's ``Path`` takes it and ``hdfs dfs -ls -C`` prints it: ``%20``, ``#``,
``?``, blanks, TAB and backslash are characters of the name, so every file has one URI and every URI means one
file. Percent-encoding is not decoded. `file_uri` makes the URI of a path. The one mark with a meaning is
``.npz#NAME`` in the input of a request: one array of an ``.npz`` (`split_member`).

Refused are names that two readers could take differently: ``..``, NUL, what is not UTF-8, a user name before
the host, and the name of a host in ``file://``.  Standard library only, Python 3.8; nothing is read or
written, except that `file_uri` resolves ``..``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import List, NamedTuple, Optional

from yarn_accel.errors import RejectedError, StorageError

#: Every name service, as a prefix of rights.
ANY_HDFS = "hdfs://*"
_SCHEMES = ("hdfs", "file")
_URI = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<authority>[^/]*))?(?P<path>(?:/.*)?)", re.DOTALL
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:(?P<port>[0-9]{1,5}))?")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: The port that ``hdfs://host`` means.
NAMENODE_PORT = 8020
_MAX_PORT = 65535
_MAX_SHOWN = 500
_WAYS = "write hdfs://HOST:PORT/PATH or file:///PATH, or pass a pathlib.Path"


class FileUri(NamedTuple):
    """The parts of a URI; the path is absolute and has nothing in it that could be written otherwise."""

    scheme: str
    authority: str
    path: str


def split_uri(uri: str) -> FileUri:
    """A URI as (scheme, authority, absolute path).

    >>> split_uri("hdfs://nn:8020/in/a%20b.npy").path, split_uri("FILE:/a//b/").path
    ('/in/a%20b.npy', '/a/b')

    Raises:
        StorageError: it is none that could be read or written; says why.
    """
    match = _URI.fullmatch(uri)
    scheme = match["scheme"].lower() if match else ""
    if match is None or scheme not in _SCHEMES:
        raise StorageError(f"{shown(uri)}: only hdfs:// and file:// can be read and written", cure=_WAYS)
    authority, path = match["authority"] or "", match["path"]
    _check_path(uri, path)
    if authority and scheme == "file":
        raise StorageError(f"{shown(uri)}: a file on this machine is written file:///path")
    if authority:
        _check_authority(uri, authority)
    # Two leading slashes are one here, while POSIX leaves them to the system.
    return FileUri(scheme, authority, posixpath.normpath("/" + path.lstrip("/")))


def file_uri(path: Path) -> str:
    """The URI of a path of this machine; relative ones begin at the working folder."""
    path = path.absolute()
    if ".." in path.parts:
        # The meaning of `..` depends on links, so text cannot resolve it; the name itself may be a link.
        path = path.resolve() if path.name == ".." else path.parent.resolve() / path.name
    return f"file://{path}"


def is_uri(place: str) -> bool:
    """Whether a place in a file of settings is a URI and no path.

    >>> is_uri("hdfs:///a"), is_uri("file:/a"), is_uri("a:b"), is_uri("s3a://a")
    (True, True, False, True)
    """
    return _SCHEME.match(place) is not None


def split_member(uri: str) -> tuple[str, str]:
    """The URI of the file, and the name of the one array that is meant; empty: all of them.

    >>> split_member("hdfs://nn/data/x.npz#a")
    ('hdfs://nn/data/x.npz', 'a')
    >>> split_member("hdfs://nn/data/x.npz")
    ('hdfs://nn/data/x.npz', '')
    """
    name, mark, member = uri.partition(".npz#")
    return (name + ".npz", member) if mark and member else (uri, "")


def normalised(uri: str, default_fs: str = "", names: Optional[Mapping[str, str]] = None) -> str:
    """The URI of one file as ``scheme://authority/path``, in the one way in which rights are compared.

    Args:
        default_fs: what ``hdfs:///`` means, such as ``hdfs://nn:8020``; empty: not known.
        names: other authority of a file system -> the one that rights are written with, each as
            `authority_of` writes it.

    Raises:
        RejectedError: ``forbidden-uri``: this is none that could be allowed.
    """
    text = _normalised(uri, default_fs, names)
    if uri.endswith(("/", "/.")):
        raise RejectedError("forbidden-uri", f"{shown(uri)}: names a folder", cure="name one file")
    return text


def normalised_prefix(prefix: str, default_fs: str = "", names: Optional[Mapping[str, str]] = None) -> str:
    """A prefix of the settings as `normalised` URIs begin; one without a host means `default_fs`.

    ``hdfs://*`` stands for every name service.

    Raises:
        RejectedError: it is none, see `normalised`.
    """
    if prefix.rstrip("/") == ANY_HDFS:
        return "hdfs://"
    uri = f"hdfs://{prefix}" if prefix.startswith("/") else prefix
    return _normalised(uri if "/" in uri.partition("://")[2] else uri + "/", default_fs, names)


def shown(uri: str) -> str:
    r"""A URI for a message: on one line, and not longer than one.

    >>> shown("file:///a\tb")
    'file:///a\\tb'
    """
    text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], uri)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def literal_hint(uri: str) -> str:
    """The cure for a name that is not there and looks percent-encoded; empty: it does not."""
    return "URIs are taken literally: do not percent-encode" if _ENCODED.search(uri) else ""


def authority_of(default_fs: str) -> str:
    """The authority of a file system in the form that `normalised` gives it.

    >>> authority_of("hdfs://Master:8020/"), authority_of("hdfs://ns1"), authority_of("nn:9000")
    ('master', 'ns1', 'nn:9000')
    """
    text = default_fs[len("hdfs://") :] if default_fs.startswith("hdfs://") else default_fs
    text = text.rstrip("/").lower()
    port = f":{NAMENODE_PORT}"
    return text[: -len(port)] if text.endswith(port) else text


def hdfs_roots(values: object) -> List[str]:
    """Each HDFS that the texts of a document name as the beginning of a URI, once, as ``hdfs://AUTHORITY``.

    >>> hdfs_roots({"a": ["hdfs://ns/in", "hdfs:///x", "hdfs://*"], "b": "hdfs://nn:9000"})
    ['hdfs://nn:9000', 'hdfs://ns']
    """
    found, left = set(), [values]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            left += value
        elif isinstance(value, str) and value.startswith("hdfs://"):
            authority = value[len("hdfs://") :].partition("/")[0]
            if _AUTHORITY.fullmatch(authority):
                found.add("hdfs://" + authority)
    return sorted(found)


def split_authority(authority: str) -> tuple[str, int]:
    """Host or name service, and port; 0: none is given.

    >>> split_authority("nn:8020"), split_authority("[::1]:8020"), split_authority("ns1")
    (('nn', 8020), ('[::1]', 8020), ('ns1', 0))
    """
    match = _AUTHORITY.fullmatch(authority)
    return (match[1], int(match["port"] or 0)) if match else (authority, 0)


def _normalised(uri: str, default_fs: str, names: Optional[Mapping[str, str]]) -> str:
    try:
        scheme, authority, path = split_uri(uri)
    except StorageError as error:
        raise RejectedError("forbidden-uri", error.message, cure=error.cure) from None
    if scheme == "hdfs":
        authority = authority_of(authority or default_fs)
        if names:
            authority = names.get(authority, authority)
    return f"{scheme}://{authority}{path}"


def _check_path(uri: str, path: str) -> None:
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise StorageError(f"{shown(uri)}: the path must be absolute and without '..' and NUL", cure=_WAYS)
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        raise StorageError(f"{shown(uri)}: the name is not UTF-8", cure="rename the file") from None


def _check_authority(uri: str, authority: str) -> None:
    if "@" in authority:
        raise StorageError(
            f"{shown(uri)}: a user name is not part of a URI", cure="set HADOOP_USER_NAME instead"
        )
    match = _AUTHORITY.fullmatch(authority)
    if match is None or not 0 < int(match["port"] or 1) <= _MAX_PORT:
        raise StorageError(
            f"{shown(uri)}: {shown(authority)!r} is neither HOST:PORT nor a name service", cure=_WAYS
        )
