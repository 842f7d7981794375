"""Read and write HDFS over WebHDFS with nothing but the standard library.

This is the mapper's spare wheel: when no pipeline server answers and the mapper computes on its own node, it
has no native HDFS client there. The NameNode's web address comes from the job itself: Hadoop Streaming
exports every job property, so ``dfs.namenode.http-address`` is in the environment as
``dfs_namenode_http_address``.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, Mapping, Optional, Set, Tuple, Union

from yarn_accel.errors import UNKNOWN_STORAGE, StorageError
from yarn_accel.local_filesystem import file_error, temporary_name
from yarn_accel.uris import authority_of, file_uri, shown, split_authority, split_uri

DEFAULT_MAX_BYTES = 4 << 30
DEFAULT_HTTP_PORT = 9870
_CHUNK_BYTES = 4 << 20
_MAX_REPLY_BYTES = 1 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect to the caller: a file's content must go to the DataNode, never to the NameNode."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class WebHdfs:
    """A client of one NameNode's WebHDFS service.

    Args:
        http_address: ``host:port`` of the NameNode's web server; from ``environ`` when empty.
        user: the name to act under (simple authentication); from ``environ`` when empty.
        timeout_s: limit for connecting and for each read.
        environ: the task's environment.
    """

    def __init__(
        self,
        http_address: str = "",
        user: str = "",
        timeout_s: float = 60.0,
        environ: Optional[Mapping[str, str]] = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._address = http_address or environ.get("dfs_namenode_http_address", "")
        self._user = user or environ.get("HADOOP_USER_NAME", "") or environ.get("mapreduce_job_user_name", "")
        self._default_fs = environ.get("fs_defaultFS", "")
        self._timeout_s = timeout_s
        # No proxy: a proxy from the environment knows nothing of the cluster's own addresses.
        direct = urllib.request.ProxyHandler({})
        self._following = urllib.request.build_opener(direct)
        self._stopping = urllib.request.build_opener(direct, _NoRedirect)

    def open(self, uri: str, max_bytes: int = DEFAULT_MAX_BYTES) -> bytes:
        """The content of a file.

        Raises:
            StorageError: no such file, more than ``max_bytes``, or the store did not answer (then transient).
        """
        with self._answer(self._following, "GET", uri, "OPEN") as response:
            return _read_bounded(response, uri, max_bytes)

    def create(self, uri: str, content: bytes) -> None:
        """Write a file so that readers see all of it or nothing: to a temporary name beside it, then rename.

        Two attempts of one task may do this at once; the later rename wins, and both wrote the same content.

        Raises:
            StorageError: the store refused or did not answer (then transient).
        """
        scheme, authority, path = split_uri(uri)
        temporary = "{}://{}{}".format(scheme, authority, temporary_name(path))
        self._put(temporary, content, len(content))
        try:
            self._command("PUT", temporary, "RENAME", destination=path, renameoptions="OVERWRITE")
        except StorageError:
            with contextlib.suppress(StorageError):
                self._command("DELETE", temporary, "DELETE")
            raise

    def upload(self, uri: str, path: Path) -> None:
        """Write a file straight to its name, for a folder that nobody else reads or writes yet.

        Raises:
            StorageError: the store refused or did not answer (then transient), or `path` cannot be read.
        """
        try:
            stream = path.open("rb")
        except OSError as error:
            raise file_error(file_uri(path), error) from None
        with stream:
            self._put(uri, stream, path.stat().st_size)

    def _put(self, uri: str, content: Union[bytes, BinaryIO], n_bytes: int) -> None:
        location = self._location(uri)
        if location is None:
            raise StorageError(
                "{}: the NameNode named no DataNode to write to".format(shown(uri)), transient=True
            )
        with self._answer(self._stopping, "PUT", uri, "", url=location, content=content, n_bytes=n_bytes):
            pass

    def _location(self, uri: str) -> Optional[str]:
        try:
            with self._request(self._stopping, "PUT", self._url(uri, "CREATE", {"overwrite": "true"}), None):
                return None
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 307:
                    return error.headers.get("Location")
                raise _storage_error(uri, error) from None
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(uri, error) from error

    def _command(self, method: str, uri: str, operation: str, **query: str) -> None:
        with self._answer(self._following, method, uri, operation, query=query) as response:
            response.read(_MAX_REPLY_BYTES)

    @contextlib.contextmanager
    def _answer(
        self,
        opener: urllib.request.OpenerDirector,
        method: str,
        uri: str,
        operation: str,
        *,
        query: Optional[Mapping[str, str]] = None,
        url: str = "",
        content: Union[bytes, BinaryIO, None] = None,
        n_bytes: int = 0,
    ) -> Iterator[Any]:
        try:
            url = url or self._url(uri, operation, query or {})
            with self._request(opener, method, url, content, n_bytes) as response:
                yield response
        except urllib.error.HTTPError as error:
            with error:
                raise _storage_error(uri, error) from None
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(uri, error) from error

    def _request(
        self,
        opener: urllib.request.OpenerDirector,
        method: str,
        url: str,
        content: Union[bytes, BinaryIO, None],
        n_bytes: int = 0,
    ) -> Any:
        headers = {}
        if content is not None:
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(n_bytes)}
        request = urllib.request.Request(url, data=content, method=method, headers=headers)
        return opener.open(request, timeout=self._timeout_s)

    def _url(self, uri: str, operation: str, query: Mapping[str, str]) -> str:
        parameters: Dict[str, str] = {"op": operation, **query}
        if self._user:
            parameters["user.name"] = self._user
        host, port = self._namenode(uri)
        path = urllib.parse.quote(split_uri(uri).path)
        return "http://{}:{}/webhdfs/v1{}?{}".format(host, port, path, urllib.parse.urlencode(parameters))

    def _namenode(self, uri: str) -> Tuple[str, str]:
        """Host and port of the NameNode's web server; a wildcard address takes its host from the URI."""
        host, _, port = self._address.rpartition(":")
        authority = split_uri(uri).authority
        if host in ("", "0.0.0.0", "[::]"):
            host = split_authority(authority)[0]
        elif self._default_fs and authority and not self._is_ours(authority, host):
            raise StorageError(
                "{}: its authority differs from {}, and no web address of another NameNode is known".format(
                    shown(uri), self._default_fs
                ),
                cure="let a pipeline server read it",
                code=UNKNOWN_STORAGE,
            )
        if not host:
            raise StorageError(
                "{}: the NameNode's web address is not known".format(shown(uri)),
                cure="run inside a Hadoop task, or set dfs_namenode_http_address=HOST:PORT",
                code=UNKNOWN_STORAGE,
            )
        return host, port or str(DEFAULT_HTTP_PORT)

    def _is_ours(self, authority: str, web_host: str) -> bool:
        """Whether a URI means the NameNode whose web address we know: the job's, under any of its names."""
        ours, named = authority_of(self._default_fs), authority_of(authority)
        our_host, port = split_authority(ours)
        named_host, named_port = split_authority(named)
        if named == ours or named_port != port:
            return named == ours
        return bool(_addresses(named_host) & (_addresses(our_host) | _addresses(web_host)))


def _addresses(host: str) -> Set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()


def _read_bounded(response: Any, uri: str, max_bytes: int) -> bytes:
    parts, n_bytes = [], 0
    while True:
        chunk = response.read(_CHUNK_BYTES)
        if not chunk:
            break
        n_bytes += len(chunk)
        if n_bytes > max_bytes:
            text = "larger than the limit of {} bytes".format(max_bytes)
            raise StorageError("{}: {}".format(shown(uri), text)) from OSError(errno.EFBIG, text)
        parts.append(chunk)
    if getattr(response, "length", None):
        raise StorageError("{}: cut short after {} bytes".format(shown(uri), n_bytes), transient=True)
    return b"".join(parts)


def _storage_error(uri: str, error: urllib.error.HTTPError) -> StorageError:
    """The NameNode's error without its stack trace; 5xx, standby and safe mode may pass by themselves."""
    kind, message = "", ""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
        remote = json.loads(error.read(_MAX_REPLY_BYTES)).get("RemoteException", {})
        kind, message = str(remote.get("exception", "")), str(remote.get("message", ""))
    first_line = message.strip().split("\n")[0] or str(error.reason)
    transient = error.code >= 500 or kind in ("StandbyException", "SafeModeException", "RetriableException")
    name = " ({})".format(kind) if kind else ""
    return StorageError(
        "{}: HTTP {}{}: {}".format(shown(uri), error.code, name, first_line), transient=transient
    )


def _unreachable(uri: str, error: BaseException) -> StorageError:
    reason = getattr(error, "reason", None) or error
    return StorageError("{}: WebHDFS did not answer: {}".format(shown(uri), reason), transient=True)
