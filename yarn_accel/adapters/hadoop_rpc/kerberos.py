"""Kerberos logins to Hadoop's services: whose, to which server, and what a failure means.

`Security` reads from Hadoop's own properties whether a site has Kerberos, and which principals its services
have.  `KerberosLogin` is the login of one connection (RFC 4752): the client's token, the server's proof, and
the choice of a protection.  A server must prove to be the configured principal; otherwise each service of the
realm could pose as the NameNode.  No weaker login is ever taken.
"""

from __future__ import annotations

import fnmatch
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from yarn_accel.adapters.hadoop_rpc.gssapi import Credentials, GssError, SecurityContext, Ticket
from yarn_accel.adapters.hadoop_rpc.methods import SERVER_PRINCIPALS
from yarn_accel.adapters.hadoop_rpc.rpc_errors import KdcUnavailableError, KerberosError
from yarn_accel.adapters.hadoop_rpc.sasl import (
    MAX_STEPS,
    PROTECTION_KEY,
    Layer,
    Protection,
    SaslAuth,
    SaslMessage,
    SaslState,
    choose_login,
    choose_protection,
    read_protections,
)
from yarn_accel.errors import AccelError, AuthenticationError, ConfigError, RemoteProtocolError

GSSAPI = "GSSAPI"
AUTHENTICATION_KEY = "hadoop.security.authentication"
_PATTERN = ".pattern"
_HOST = "_HOST"
#: The protocol and host of a server's offer: parts of a principal and nothing that changes its meaning.
_PART = re.compile(r"[A-Za-z0-9._-]{1,255}")
#: The longest message that we announce to take, as Java does; the server may send longer ones all the same.
_OWN_MAX_BYTES = 1 << 16
_LEAST_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class Kerberos:
    """The caller's identity on a cluster with Kerberos.

    Attributes:
        principal: whose; empty: the ticket cache's own.
        keytab: the file with its keys; empty: tickets come from a cache.
        cache: of any type that the Kerberos library knows; empty: the default one (KRB5CCNAME).
    """

    principal: str = ""
    keytab: str = ""
    cache: str = ""

    def __str__(self) -> str:
        return self.principal or f"the ticket in {self.place}"

    @property
    def place(self) -> str:
        """Where tickets or keys come from, for messages."""
        default = os.environ.get("KRB5CCNAME") or f"FILE:/tmp/krb5cc_{os.getuid()}"
        return self.keytab or self.cache or default

    def ticket(self) -> Ticket:
        """Whose ticket it is at the moment and how long it lives; may wait for a KDC.

        Raises:
            KerberosError: there is none; names the trouble and its cure.
            KdcUnavailableError: no KDC answers.
        """
        try:
            return Credentials(self.principal, self.keytab, self.cache).ticket()
        except GssError as error:
            raise kerberos_error(error, self) from None


@dataclass(frozen=True, slots=True)
class Security:
    """The security settings of one site, as far as its clients need them.

    Attributes:
        is_kerberos: ``hadoop.security.authentication`` is kerberos: nobody is believed without a proof.
        protections: of ``hadoop.rpc.protection``; empty: whatever the server asks for.
        principals: the properties that name the principals of services, and their patterns.
        hosts: names that this machine cannot resolve itself -> address.
    """

    is_kerberos: bool = False
    protections: tuple[Protection, ...] = ()
    principals: Mapping[str, str] = field(default_factory=dict)
    hosts: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_properties(properties: Mapping[str, str], hosts: Mapping[str, str] | None = None) -> Security:
        """Read them from the ``*-site.xml`` files of a configuration.

        Raises:
            ConfigError: a value that Hadoop does not know.
        """
        login = properties.get(AUTHENTICATION_KEY, "simple").strip().lower() or "simple"
        if login not in ("simple", "kerberos"):
            raise ConfigError(f"{AUTHENTICATION_KEY}: {login!r}; known: simple, kerberos")
        keys = {key + suffix for key in SERVER_PRINCIPALS.values() for suffix in ("", _PATTERN)}
        return Security(
            login == "kerberos",
            read_protections(properties.get(PROTECTION_KEY, "")),
            {key: value for key in keys if (value := properties.get(key, "").strip())},
            hosts or {},
        )

    def server_of(self, protocol: str, offered: SaslAuth, host: str) -> ExpectedServer:
        """The server that a login must reach.

        Args:
            protocol: full Java name.
            offered: the server's own name for itself.
            host: the host that was dialled.

        Raises:
            KerberosError: the configuration expects another one, or does not say which.
            RemoteProtocolError: the offered name is no principal's.
        """
        name = f"{offered.protocol}/{offered.server_id}"
        if not (_PART.fullmatch(offered.protocol or "") and _PART.fullmatch(offered.server_id or "")):
            raise RemoteProtocolError(f"login: the server calls itself {name[:100]!r}, which is no principal")
        key = SERVER_PRINCIPALS.get(protocol, "")
        pattern, configured = self.principals.get(key + _PATTERN, ""), self.principals.get(key, "")
        if pattern:
            return ExpectedServer(f"{offered.protocol}@{offered.server_id}", pattern, key)
        if not configured:
            raise KerberosError(
                "kerberos-server-unknown",
                f"{key or protocol} is not set, so no server is trusted; one that says it is {name} answers",
                cure=f"let HADOOP_CONF_DIR name the cluster's own configuration, which sets {key}",
            )
        wanted, slash, rest = configured.partition("/")
        if not slash:
            raise KerberosError(
                "kerberos-server-unknown",
                f"{key}: {configured} has no host part",
                cure="write it as service/_HOST@REALM",
            )
        instance, at, realm = rest.partition("@")
        expected = ""
        for instance_host in [instance] if instance != _HOST else self._names(host):
            expected = f"{wanted}/{instance_host}"
            if expected == name:
                return ExpectedServer(expected + at + realm, expected + (at + realm if realm else "@*"), key)
        raise _other_server(name, expected + at + realm, key, host)

    def _names(self, host: str) -> Iterator[str]:
        """The names that ``_HOST`` may stand for, those that need no resolver first."""
        yield host.lower()
        address = self.hosts.get(host, host)
        yield from (name.lower() for name, known in self.hosts.items() if known == address)
        yield socket.getfqdn(address).lower()


@dataclass(frozen=True, slots=True)
class ExpectedServer:
    """The principal that a server must prove to be.

    Attributes:
        service: whom the Kerberos library asks a ticket for.
        pattern: which principals, realm included, are right.
        key: of the configuration that says so.
    """

    service: str
    pattern: str
    key: str

    def check(self, proved: str, host: str) -> None:
        """Compare with whom the server has proved to be.

        Raises:
            KerberosError: another one.
        """
        if not fnmatch.fnmatchcase(proved, self.pattern):
            raise _other_server(proved, self.pattern, self.key, host)


def _other_server(found: str, expected: str, key: str, host: str) -> KerberosError:
    return KerberosError(
        "kerberos-other-server",
        f"the server at {host} has the principal {found}, expected is {expected}",
        cure=f"set {key}, or a pattern with * in {key}{_PATTERN}, if that server is the right one",
    )


class KerberosLogin:
    """The login with a ticket; each `receive` may wait for a KDC or a resolver: run it in a thread.

    Args:
        protocol: full Java name.
        address: ``host:port`` that was dialled.
        open_context: tests give recorded ones.
    """

    layer: Layer | None = None
    is_blocking: bool = True

    def __init__(
        self,
        identity: Kerberos,
        security: Security,
        protocol: str,
        address: str,
        open_context: Callable[[Kerberos, str], SecurityContext] | None = None,
    ) -> None:
        self._identity, self._security, self._protocol = identity, security, protocol
        self._host = address.rpartition(":")[0].strip("[]") or address
        self._open_context = open_context or _opened
        self._server: ExpectedServer | None = None
        self._context: SecurityContext | None = None
        self._has_chosen = False
        self._n_steps = 0

    def begin(self) -> SaslMessage:
        """The first message: ask for an offer."""
        return SaslMessage(state=SaslState.NEGOTIATE)

    def receive(self, message: SaslMessage) -> SaslMessage | None:
        """Take the server's message; the answer to it, or None when the login is complete.

        Raises:
            KerberosError: the ticket, the key or the server is not the right one.
            KdcUnavailableError: no KDC answers.
            UnsupportedLoginError: the server takes no Kerberos, or no protection that is wanted.
            RemoteProtocolError: a message out of turn.
        """
        self._n_steps += 1
        if self._n_steps > MAX_STEPS:
            raise RemoteProtocolError(f"login: more than {MAX_STEPS} messages")
        try:
            return self._receive(message)
        except GssError as error:
            service = self._server.service if self._server is not None else ""
            raise kerberos_error(error, self._identity, service, self._host) from None

    def _receive(self, message: SaslMessage) -> SaslMessage | None:
        if message.state is SaslState.NEGOTIATE and self._context is None:
            return self._initiate(message)
        if message.state is SaslState.CHALLENGE and self._context is not None and not self._has_chosen:
            return SaslMessage(state=SaslState.RESPONSE, token=self._answer(message.token or b""))
        if message.state is SaslState.SUCCESS:
            if not self._has_chosen:
                raise AuthenticationError(
                    "the server asks for no proof, and gives none",
                    cure="a cluster with Kerberos is not used without it",
                )
            return None
        raise RemoteProtocolError(f"login: {message.state.name} is out of turn")

    def _initiate(self, message: SaslMessage) -> SaslMessage:
        auth = choose_login(message.auths, "KERBEROS", GSSAPI)
        self._server = self._security.server_of(self._protocol, auth, self._host)
        self._context = self._open_context(self._identity, self._server.service)
        chosen = SaslAuth(auth.method, auth.mechanism, auth.protocol, auth.server_id)
        return SaslMessage(state=SaslState.INITIATE, token=self._context.step(), auths=(chosen,))

    def _answer(self, token: bytes) -> bytes:
        context, server = self._context, self._server
        assert context is not None
        assert server is not None
        if not context.is_complete:
            answer = context.step(token)
            if context.is_complete:
                server.check(context.server(), self._host)
            return answer
        offer = context.unwrap(token, is_private=False)
        if len(offer) != 4:
            raise RemoteProtocolError(f"login: an offer of protections of {len(offer)} bytes")
        protection = choose_protection(
            self._security.protections, [each for each in Protection if each & offer[0]]
        )
        has_layer = protection is not Protection.AUTHENTICATION
        if has_layer:
            max_bytes = int.from_bytes(offer[1:], "big")
            self.layer = KerberosLayer(context, max_bytes, is_private=protection is Protection.PRIVACY)
        self._has_chosen = True
        own_max_bytes = (_OWN_MAX_BYTES if has_layer else 0).to_bytes(3, "big")
        return context.wrap(bytes((protection,)) + own_max_bytes, is_private=False)


def _opened(identity: Kerberos, service: str) -> SecurityContext:
    return SecurityContext(Credentials(identity.principal, identity.keytab, identity.cache), service)


class KerberosLayer:
    """RFC 4752's protection: each message is wrapped by the Kerberos library.

    Args:
        server_max_bytes: the longest protected message that the server takes.
        is_private: encrypt, too.
    """

    plain_bytes: int

    def __init__(self, context: SecurityContext, server_max_bytes: int, *, is_private: bool) -> None:
        if server_max_bytes < _LEAST_MAX_BYTES:
            raise RemoteProtocolError(f"login: messages of at most {server_max_bytes} bytes")
        self._context, self._is_private = context, is_private
        self.plain_bytes = context.plain_limit(server_max_bytes, is_private=is_private)

    def wrap(self, data: bytes) -> bytes:
        """One message, protected."""
        return self._context.wrap(data, is_private=self._is_private)

    def unwrap(self, token: bytes) -> bytes:
        """The content of the server's next message.

        Raises:
            RemoteProtocolError: it was changed, repeated or left out on its way, or is not encrypted.
        """
        try:
            return self._context.unwrap(token, is_private=self._is_private)
        except GssError as error:
            raise RemoteProtocolError(f"a protected message: {error.message}") from None


# ---- troubles


@dataclass(frozen=True, slots=True)
class _Trouble:
    """A failure of the Kerberos library, found by its text.

    Attributes:
        code: of the error.
        text: a part of the library's text.
        message: what it means; ``{}`` names of the error's place.
        cure: what to do.
    """

    code: str
    text: str
    message: str
    cure: str


_NO_KEY = _Trouble(
    "kerberos-keytab",
    r"no suitable keys|Key table|[Kk]eytab|client_keytab",
    "the keytab {place} cannot be read, or has no key of {principal}",
    "compare with `klist -kt {place}`",
)
#: In this order: the first one whose text is found.
_TROUBLES = (
    _Trouble(
        "kerberos-cache-unreadable",
        r"permissions incorrect|Permission denied|No KCM server|keyring",
        "the ticket cache {place} cannot be read by uid {uid}",
        "kinit -c FILE:... into a cache of this user, and let KRB5CCNAME name it",
    ),
    _Trouble(
        "kerberos-cache-damaged",
        r"Bad format in credentials cache|Improper format of Kerberos",
        "{place} is no ticket cache",
        "let KRB5CCNAME name a cache (klist), and KRB5_CLIENT_KTNAME a keytab",
    ),
    _NO_KEY,
    _Trouble(
        "kerberos-no-ticket",
        r"No Kerberos credentials available|No credentials cache|Matching credential not found|No such file",
        "no Kerberos ticket in {place} (KRB5CCNAME)",
        "run kinit, or let KRB5_CLIENT_KTNAME name a keytab",
    ),
    _Trouble(
        "kerberos-ticket-expired",
        r"[Tt]icket expired|credentials? ha(s|ve) expired",
        "the ticket of {principal} has expired",
        "kinit; without a person: let KRB5_CLIENT_KTNAME name a keytab",
    ),
    _Trouble(
        "kerberos-stale-key",
        r"Decrypt integrity check failed|Preauthentication failed|[Pp]assword incorrect|version of key",
        "the key of {principal} was changed after {place} was written",
        "export the keytab again (ktadd raises the key's number)",
    ),
    _Trouble(
        "kerberos-server-not-found",
        r"Server .*not found in Kerberos database|Server not found",
        "the realm knows no {service}, the server that answers at {host}",
        "compare the configured principal; in krb5.conf: rdns = false, dns_canonicalize_hostname = false",
    ),
    _Trouble(
        "kerberos-principal-not-found",
        r"Client .*not found in Kerberos database|Client not found",
        "the realm knows no {principal}",
        "compare with `klist`, or `klist -kt {place}`",
    ),
    _Trouble(
        "kerberos-clock",
        r"Clock skew|Ticket not yet valid",
        "the clocks of this machine and of the realm differ by more than 5 minutes (here it is {now})",
        "set this machine's clock (chronyc tracking, timedatectl)",
    ),
    _Trouble(
        "kerberos-not-renewable",
        r"can't fulfill requested option",
        "the ticket of {principal} cannot be renewed, or not be used for this",
        "kinit -r 7d",
    ),
    _Trouble(
        "kerberos-encryption",
        r"no support for encryption type|[Ee]ncryption type|etype",
        "{principal} or {service} has no key of an encryption type that both sides take",
        "compare `klist -e` and `klist -kte` with permitted_enctypes in krb5.conf",
    ),
    _Trouble(
        "kerberos-realm-unknown",
        r"Cannot find KDC|default realm|[Rr]ealm .*unknown|Cannot determine realm",
        "{config} does not say where the realm of {principal} is",
        "let KRB5_CONFIG name the site's krb5.conf",
    ),
)
_NO_KDC = re.compile(r"Cannot contact any KDC|Cannot resolve network address")


def kerberos_error(error: GssError, identity: Kerberos, service: str = "", host: str = "") -> AccelError:
    """The error that a failure of the Kerberos library stands for, with trouble and cure.

    Args:
        service: whom a ticket was asked for.
        host: the host that was dialled.
    """
    config = os.environ.get("KRB5_CONFIG") or "/etc/krb5.conf"
    if error.doing == "load":
        return KerberosError("kerberos-no-library", error.message, cure=error.cure)
    if _NO_KDC.search(error.message):
        return KdcUnavailableError(
            f"no KDC answers: {error.message}", cure=f"look at the realm's `kdc` lines in {config}"
        )
    names = {
        "place": identity.place,
        "principal": identity.principal or "the cache's owner",
        "service": service or "the server",
        "host": host or "that address",
        "uid": str(os.getuid()),
        "now": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "config": config,
    }
    for trouble in _TROUBLES:
        if re.search(trouble.text, error.message):
            if identity.keytab and trouble.code == "kerberos-no-ticket":
                trouble = _NO_KEY  # the library says the same of a keytab that lacks the principal
            message = f"{trouble.message.format(**names)}: {error.message}"
            return KerberosError(trouble.code, message, cure=trouble.cure.format(**names))
    return KerberosError("kerberos", f"the Kerberos login as {identity} failed: {error.message}")
