"""JSON over HTTP to Hadoop's web services: ResourceManager, NodeManager, history server, NameNode.

A proxy named in the environment is not used: these addresses are inside the cluster.  With Kerberos these
services want a ticket from everybody; `WebAccess` shows one.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yarn_accel.errors import (
    AuthenticationError,
    ConfigError,
    RejectedError,
    RemoteProtocolError,
    UnavailableError,
)

if TYPE_CHECKING:
    from yarn_accel.adapters.hadoop_rpc import Kerberos

MAX_BYTES = 64 * 1024 * 1024
_TIMEOUT_S = 10.0
_NEGOTIATE = "Negotiate"
_COOKIE = "hadoop.auth="
_MAX_HEADER_BYTES = 65536
#: Of one request: a redirect may lead to another service, which asks again.
_MAX_LOGINS = 4


class WebAccess:
    """A way to the web services of one cluster: whom TLS believes, and a login where they ask for one.

    A service that answers 401 with ``Negotiate`` is shown a Kerberos ticket (RFC 4559).  It must prove who it
    is, and its cookie stands for the login in later requests; cookies are kept in memory alone.

    Args:
        kerberos: whose ticket; None: nobody logs in.
        hosts: host name -> address; a service that is called by its address has the ticket of its name.
        ca_file: who signed the services' certificates (PEM); None: whom this machine trusts.

    Raises:
        ConfigError: `ca_file` cannot be read.
    """

    def __init__(
        self,
        kerberos: Kerberos | None = None,
        hosts: Mapping[str, str] | None = None,
        ca_file: Path | None = None,
    ) -> None:
        self._kerberos = kerberos
        # Of several names of one address the first is the host's own.
        self._names = {address: name for name, address in reversed(list((hosts or {}).items()))}
        self._cookies: dict[str, str] = {}
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if ca_file is not None:
            try:
                context = ssl.create_default_context(cafile=str(ca_file))
            except OSError as error:  # ssl.SSLError, too
                raise ConfigError(f"{ca_file}: no certificates: {error.strerror or error}") from None
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def fetch(self, request: urllib.request.Request, timeout_s: float, max_bytes: int) -> bytes:
        """The answer, of which at most one byte more than `max_bytes` is read.

        Raises:
            OSError, HTTPException: as `urllib.request` does.
            AuthenticationError: there is no ticket, or the service did not prove who it is.
        """
        logins: list[_Login] = []
        if cookie := self._cookies.get(_origin(request.full_url)):
            request.add_unredirected_header("Cookie", cookie)
        while True:
            try:
                with self._opener.open(request, timeout=timeout_s) as response:
                    if logins:
                        logins[-1].check(response.geturl(), response.headers)
                    self._keep_cookie(response.geturl(), response.headers)
                    return bytes(response.read(max_bytes + 1))
            except urllib.error.HTTPError as error:
                url = error.geturl()
                is_repeated = any(_origin(each.url) == _origin(url) for each in logins)
                if self._kerberos is None or not _asks(error) or is_repeated or len(logins) == _MAX_LOGINS:
                    raise
                error.close()
            logins.append(_Login(self._kerberos, url, self._host(url)))
            request = urllib.request.Request(url, request.data, request.headers, method=request.get_method())
            # Neither this nor a cookie goes to where a redirect leads.
            request.add_unredirected_header("Authorization", logins[-1].header())

    def _host(self, url: str) -> str:
        """The name in the principal of the service at an address."""
        host = urllib.parse.urlsplit(url).hostname or ""
        name = self._names.get(host) or (socket.getfqdn(host) if _is_address(host) else host)
        return name.lower()

    def _keep_cookie(self, url: str, headers: Message) -> None:
        for each in headers.get_all("Set-Cookie") or ():
            cookie = str(each).partition(";")[0].strip()
            if cookie.startswith(_COOKIE) and len(cookie) <= _MAX_HEADER_BYTES:
                self._cookies[_origin(url)] = cookie if cookie.strip('"') != _COOKIE else ""


class _Login:
    """One login to the service at a URL.

    Args:
        host: in the service's principal.
    """

    def __init__(self, kerberos: Kerberos, url: str, host: str) -> None:
        # Imported here: a site without Kerberos may lack the library.
        from yarn_accel.adapters.hadoop_rpc.gssapi import Credentials, GssError, SecurityContext
        from yarn_accel.adapters.hadoop_rpc.kerberos import kerberos_error

        self.url = url
        self._service = f"HTTP@{host}"
        try:
            credentials = Credentials(kerberos.principal, kerberos.keytab, kerberos.cache)
            self._context = SecurityContext(credentials, self._service)
            self._token = self._context.step()
        except GssError as error:
            raise kerberos_error(error, kerberos, self._service, host) from None

    def header(self) -> str:
        return f"{_NEGOTIATE} {base64.b64encode(self._token).decode()}"

    def check(self, url: str, headers: Message) -> None:
        """The service proves with its answer that the ticket was for it; one that redirects does not."""
        if url != self.url:
            return
        offers = [str(each).split(" ") for each in headers.get_all("WWW-Authenticate") or ()]
        proofs = [each[1] for each in offers if each[0] == _NEGOTIATE and len(each) == 2]
        try:
            if proofs and len(proofs[0]) <= _MAX_HEADER_BYTES:
                self._context.step(base64.b64decode(proofs[0], validate=True))
        except (AuthenticationError, binascii.Error) as error:
            raise AuthenticationError(f"{url} is not {self._service}: {error}") from None
        if not self._context.is_complete:
            raise AuthenticationError(f"{url} did not prove to be {self._service}")


def _asks(error: urllib.error.HTTPError) -> bool:
    offers = error.headers.get_all("WWW-Authenticate") or ()
    return error.code == 401 and any(str(each).split(" ")[0] == _NEGOTIATE for each in offers)


def _origin(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _is_address(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdigit()


_NO_LOGIN = WebAccess()


def get_json(url: str, *, timeout_s: float = _TIMEOUT_S, access: WebAccess = _NO_LOGIN) -> Any:
    """The JSON document at ``url``; see :func:`request_json` for the errors."""
    return request_json("GET", url, timeout_s=timeout_s, access=access)


def request_json(
    method: str,
    url: str,
    body: object = None,
    *,
    timeout_s: float = _TIMEOUT_S,
    access: WebAccess = _NO_LOGIN,
) -> Any:
    """Send a request, with ``body`` as JSON when given, and decode the answer (None when it is empty).

    Raises:
        AuthenticationError: the service asks for a login, and `access` has none, or it failed.
        UnavailableError: no answer, or the service fails for now (status 5xx).
        RejectedError: the service refuses (status 4xx); the code is ``http-404`` and the like, the message
            is Hadoop's own when it sends one.
        RemoteProtocolError: the answer is not HTTP or not JSON, or larger than :data:`MAX_BYTES`.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json"}
    if data is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, data, headers, method=method)
    raw = _send(request, timeout_s, MAX_BYTES, access)
    if len(raw) > MAX_BYTES:
        raise RemoteProtocolError(f"{url} sent more than {MAX_BYTES} bytes")
    if not raw.strip():
        return None
    try:
        return json.loads(raw)
    except ValueError as error:
        raise RemoteProtocolError(f"{url} did not send JSON: {error}") from error


def get_text(
    url: str,
    *,
    max_bytes: int = 1 << 20,
    timeout_s: float = _TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
    access: WebAccess = _NO_LOGIN,
) -> str:
    """At most the first ``max_bytes`` of the text at ``url``; errors as in :func:`request_json`."""
    request = urllib.request.Request(url, headers=dict(headers or {}))
    raw = _send(request, timeout_s, max_bytes, access)
    return raw[:max_bytes].decode("utf-8", "replace")


def as_list(value: Any) -> list[Any]:
    """A list from what Hadoop's REST sends for one: a list, a single object instead of it, or null."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def running_path(application_type: str) -> str:
    """Where a ResourceManager lists the running applications of a type."""
    wanted = urllib.parse.quote(application_type, safe="")
    return f"/ws/v1/cluster/apps?states=RUNNING&applicationTypes={wanted}"


def listed_applications(document: Any) -> list[Any]:
    """The entries of a ResourceManager's list of applications; none where it is no such list."""
    apps = document.get("apps") if isinstance(document, dict) else None
    return [each for each in as_list(apps.get("app") if isinstance(apps, dict) else None) if each]


def newest_first(reports: list[Any]) -> list[dict[str, Any]]:
    """Those of the entries that are reports, by when the application was started."""
    found = [report for report in reports if isinstance(report, dict)]
    return sorted(found, key=_started, reverse=True)


def _started(report: dict[str, Any]) -> int:
    started = report.get("startedTime", 0)
    return started if isinstance(started, int) else 0


def _send(request: urllib.request.Request, timeout_s: float, max_bytes: int, access: WebAccess) -> bytes:
    url = request.full_url
    try:
        return access.fetch(request, timeout_s, max_bytes)
    except urllib.error.HTTPError as error:
        with error:
            reason = _reason(error)
        message = f"{url} answers {error.code}: {reason}"
        if error.code >= 500:
            raise UnavailableError(message) from None
        raise RejectedError(f"http-{error.code}", message) from None
    except http.client.HTTPException as error:
        raise RemoteProtocolError(
            f"{url} does not answer in HTTP: {type(error).__name__}: {error}"
        ) from error
    except (urllib.error.URLError, OSError) as error:
        reason = str(getattr(error, "reason", error))
        raise UnavailableError(f"no answer from {url}: {reason}") from error


def _reason(error: urllib.error.HTTPError) -> str:
    raw = error.read(1 << 16).decode("utf-8", "replace")
    try:
        remote = json.loads(raw)["RemoteException"]
        return str(remote.get("message") or remote.get("exception"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return str(error.reason)
