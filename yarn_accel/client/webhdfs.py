"""Read and write HDFS over WebHDFS with nothing but the standard library.

This is the mapper's spare wheel: when no pipeline server answers and the mapper computes on its own node, it
has no native HDFS client there. The NameNode's web address comes from the job itself: Hadoop Streaming
exports every job property, so ``dfs.namenode.http-address`` is in the environment as
``dfs_namenode_http_address``.

On a cluster with Kerberos it shows the HDFS token that Hadoop gave the job, and over TLS alone: who reads the
token on its way can act as the job's user.  The token stands in the address of each request, so no address is
part of an error's text.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO, Dict, Iterator, List, Mapping, Optional, Set, Tuple, Union

from yarn_accel.client.token_file import (
    HDFS_DELEGATION_KIND,
    MAX_FILE_BYTES,
    TOKEN_FILE_VARIABLE,
    StoredToken,
    read_tokens,
)
from yarn_accel.errors import UNKNOWN_STORAGE, RemoteProtocolError, StorageError
from yarn_accel.local_filesystem import file_error, temporary_name
from yarn_accel.uris import authority_of, file_uri, shown, split_authority, split_uri

DEFAULT_MAX_BYTES = 4 << 30
DEFAULT_HTTP_PORT = 9870
DEFAULT_HTTPS_PORT = 9871
#: Variable of a task: the file with the authorities (PEM) that signed the certificates of the cluster's web
#: services, on the task's node or in its folder.  Without it those count that this machine trusts.
CA_VARIABLE = "ACCEL_CA_FILE"
_CHUNK_BYTES = 4 << 20
_STANDBY = "StandbyException"
_MAX_REPLY_BYTES = 1 << 20


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect to the caller: a file's content must go to the DataNode, never to the NameNode."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class _SameScheme(urllib.request.HTTPRedirectHandler):
    """Follows no redirect that leads out of TLS: the address of the DataNode has the token, too."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Optional[urllib.request.Request]:
        _check_scheme(req.full_url, newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str, location: str) -> None:
    if url.startswith("https:") and not location.startswith("https:"):
        raise StorageError(
            "the NameNode sends us to a DataNode without TLS",
            cure="set dfs.http.policy to HTTPS_ONLY, or let a pipeline server read and write",
        )


class WebHdfs:
    """A client of the WebHDFS service of one NameNode, or of all NameNodes of a name service.

    Each request looks for the active one of these: a standby refuses, and one that is gone does not answer.

    Args:
        http_address: ``host:port`` of the NameNode's web server; from ``environ`` when empty.
        user: the name to act under (simple authentication); from ``environ`` when empty.
        timeout_s: limit for connecting and for each read.
        environ: the task's environment; it says whether there is Kerberos, and where the token is.
    """

    def __init__(
        self,
        http_address: str = "",
        user: str = "",
        timeout_s: float = 60.0,
        environ: Optional[Mapping[str, str]] = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._has_kerberos = environ.get("hadoop_security_authentication", "").lower() == "kerberos"
        policy = environ.get("dfs_http_policy", "").upper()
        self._is_tls = policy == "HTTPS_ONLY" or (self._has_kerberos and policy == "HTTP_AND_HTTPS")
        self._address = http_address or environ.get(
            "dfs_namenode_https_address" if self._is_tls else "dfs_namenode_http_address", ""
        )
        self._token_path = environ.get(TOKEN_FILE_VARIABLE, "")
        self._ca_path = environ.get(CA_VARIABLE, "")
        self._user = user or environ.get("HADOOP_USER_NAME", "") or environ.get("mapreduce_job_user_name", "")
        self._default_fs = environ.get("fs_defaultFS", "")
        self._environ = environ
        self._timeout_s = timeout_s
        # No proxy: a proxy from the environment knows nothing of the cluster's own addresses.
        handlers: List[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._is_tls:
            handlers.append(urllib.request.HTTPSHandler(context=_context(self._ca_path)))
        self._following = urllib.request.build_opener(*handlers, _SameScheme)
        self._stopping = urllib.request.build_opener(*handlers, _NoRedirect)

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
            with self._opened(self._stopping, "PUT", uri, "CREATE", {"overwrite": "true"}):
                return None
        except urllib.error.HTTPError as error:
            with error:
                location = error.headers.get("Location")
                _check_scheme(error.url or "", location or "https:")
                return location

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
            if url:
                opened = self._request(opener, method, url, content, n_bytes)
            else:
                opened = self._opened(opener, method, uri, operation, query or {})
            with opened as response:
                yield response
        except urllib.error.HTTPError as error:
            with error:
                raise _storage_error(uri, error) from None
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(uri, error) from None

    def _opened(
        self,
        opener: urllib.request.OpenerDirector,
        method: str,
        uri: str,
        operation: str,
        query: Mapping[str, str],
    ) -> Any:
        """The answer of the NameNode that is active; a redirect that `opener` does not follow is raised."""
        failures = []
        for host, port in self._namenodes(uri):
            url = self._url(uri, operation, query, host, port)
            try:
                return self._request(opener, method, url, None)
            except urllib.error.HTTPError as error:
                if error.code == 307:
                    raise
                with error:
                    failures.append(_storage_error(uri, error))
                if not failures[-1].transient:
                    break
            except (OSError, http.client.HTTPException) as error:
                failures.append(_unreachable(uri, error))
        # A standby says less of the cause than one that is gone.
        raise min(failures, key=lambda each: (each.transient, _STANDBY in each.message)) from None

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
        try:
            request = urllib.request.Request(url, data=content, method=method, headers=headers)
            return opener.open(request, timeout=self._timeout_s)
        except (ValueError, http.client.InvalidURL):  # Its text may have the address.
            raise http.client.InvalidURL("it has an address that cannot be read") from None

    def _url(self, uri: str, operation: str, query: Mapping[str, str], host: str, port: str) -> str:
        parameters: Dict[str, str] = {"op": operation, **query}
        if self._has_kerberos:
            # With a user's name beside it the NameNode would compare the two.
            parameters["delegation"] = self._token(uri).url_form()
        elif self._user:
            parameters["user.name"] = self._user
        path = urllib.parse.quote(split_uri(uri).path)
        scheme = "https" if self._is_tls else "http"
        return "{}://{}:{}/webhdfs/v1{}?{}".format(
            scheme, host, port, path, urllib.parse.urlencode(parameters)
        )

    def _token(self, uri: str) -> StoredToken:
        """The job's token for the NameNode; read each time, for the file may get a newer one."""
        if not self._is_tls:
            raise StorageError(
                "{}: the NameNode serves WebHDFS without TLS, and the job's token does not travel in clear "
                "text".format(shown(uri)),
                cure="set dfs.http.policy to HTTPS_ONLY, or let a pipeline server read and write",
            )
        try:
            with Path(self._token_path).open("rb") as file:
                tokens = read_tokens(file.read(MAX_FILE_BYTES + 1))
        except (OSError, RemoteProtocolError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise StorageError(
                "{}: no token: {} ({}): {}".format(shown(uri), TOKEN_FILE_VARIABLE, self._token_path, why),
                cure="run it as a task of Hadoop, which hands a job's tokens to its tasks",
            ) from None
        found = [each for each in tokens if each.kind == HDFS_DELEGATION_KIND]
        named = authority_of(split_uri(uri).authority or self._default_fs)
        for each in found:
            if _is_for(each, named):
                return each
        listed = ", ".join(sorted(each.service for each in found)) or "none"
        raise StorageError(
            "{}: the job has no HDFS token for {} (tokens: {})".format(shown(uri), named, shown(listed)),
            cure="name the file system in mapreduce.job.hdfs-servers when the job is submitted",
        )

    def _namenodes(self, uri: str) -> List[Tuple[str, str]]:
        """Host and port of the web servers of all NameNodes that may be the active one."""
        named = split_uri(uri).authority or re.sub("^hdfs://", "", self._default_fs).rstrip("/")
        service = _variable(named)
        ids = self._environ.get("dfs_ha_namenodes_" + service, "").split(",")
        kind = "https" if self._is_tls else "http"
        keys = [
            "dfs_namenode_{}_address_{}_{}".format(kind, service, _variable(each.strip())) for each in ids
        ]
        found = [self._environ[key].rpartition(":") for key in keys if self._environ.get(key)]
        return [(host, port) for host, _, port in found if host] or [self._namenode(uri)]

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
                cure="run inside a Hadoop task, or set dfs_namenode_http{}_address=HOST:PORT".format(
                    "s" if self._is_tls else ""
                ),
                code=UNKNOWN_STORAGE,
            )
        return host, port or str(DEFAULT_HTTPS_PORT if self._is_tls else DEFAULT_HTTP_PORT)

    def _is_ours(self, authority: str, web_host: str) -> bool:
        """Whether a URI means the NameNode whose web address we know: the job's, under any of its names."""
        ours, named = authority_of(self._default_fs), authority_of(authority)
        our_host, port = split_authority(ours)
        named_host, named_port = split_authority(named)
        if named == ours or named_port != port:
            return named == ours
        return bool(_addresses(named_host) & (_addresses(our_host) | _addresses(web_host)))


def _variable(name: str) -> str:
    """A part of a property's name, as Hadoop Streaming has it in the name of a variable."""
    return re.sub("[^A-Za-z0-9]", "_", name)


def _is_for(token: StoredToken, authority: str) -> bool:
    """Whether a token is for a NameNode or a name service; Hadoop writes the NameNode's address into it."""
    service = authority_of(token.service)
    if service in (authority, "ha-hdfs:" + authority):
        return True
    (host, port), (token_host, token_port) = split_authority(authority), split_authority(service)
    return port == token_port and token_host in _addresses(host)


def _context(ca_path: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_path or None)
    except OSError as error:  # ssl.SSLError, too
        raise StorageError(
            "{} ({}) cannot be read: {}".format(CA_VARIABLE, ca_path, error.strerror or error),
            cure="name the file (PEM) with the authority of the cluster's certificates",
        ) from None


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
    for token in urllib.parse.parse_qs(urllib.parse.urlsplit(error.url or "").query).get("delegation", ()):
        first_line = first_line.replace(token, "...")
    transient = error.code >= 500 or kind in (_STANDBY, "SafeModeException", "RetriableException")
    name = " ({})".format(kind) if kind else ""
    return StorageError(
        "{}: HTTP {}{}: {}".format(shown(uri), error.code, name, first_line), transient=transient
    )


def _unreachable(uri: str, error: BaseException) -> StorageError:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return StorageError(
            "{}: the certificate of WebHDFS is not accepted: {}".format(shown(uri), reason.verify_message),
            cure="let {} name the authority that signed it".format(CA_VARIABLE),
        )
    return StorageError("{}: WebHDFS did not answer: {}".format(shown(uri), reason), transient=True)
