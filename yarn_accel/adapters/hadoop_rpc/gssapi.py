"""The machine's own Kerberos library, ``libgssapi_krb5.so.2``, by ctypes: tickets, logins, protection.

The library is loaded when it is first needed, so a process that logs in with tokens alone runs without it.
Every function here may wait for a KDC (18 s for one that is dead) except `SecurityContext.wrap`, `unwrap` and
`plain_limit`; run it in a thread of an asyncio program.  A failure is a `GssError` with the text of the
mechanism, where there is one: the general text alone says "unspecified".
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass

from yarn_accel.errors import AuthenticationError

LIBRARY = "libgssapi_krb5.so.2"
#: A message of a login, or a protected message: nothing longer is handed to the library.
MAX_TOKEN_BYTES = 128 << 20
_MAX_NAME_BYTES = 4096
_MAX_STATUS_TEXTS = 8

#: Object identifiers (RFC 1964, RFC 2743), as DER.
_KRB5 = bytes.fromhex("2a864886f712010202")
_SERVICE_NAME = bytes.fromhex("2a864886f71201020104")
_PRINCIPAL_NAME = bytes.fromhex("2a864886f71201020201")

_INITIATE = 1
_GSS_TEXT, _MECHANISM_TEXT = 1, 2
#: What the mechanism says where it has nothing to add.
_NO_TEXTS = ("", "Success", "Unknown error")
_CONTINUE_NEEDED = 1
#: The two upper bytes of a major status are errors, the lower two say what is odd about a good answer.
_ERROR_MASK = 0xFFFF0000
_MUTUAL, _REPLAY, _SEQUENCE, _PRIVACY, _INTEGRITY = 2, 4, 8, 16, 32
_FLAGS = _MUTUAL | _REPLAY | _SEQUENCE | _PRIVACY | _INTEGRITY
_FOREVER = 0xFFFFFFFF
_LIBRARY_CURE = "install it: libgssapi-krb5-2 on Debian and Ubuntu, krb5-libs on Red Hat and its relatives"


class GssError(AuthenticationError):
    """The Kerberos library refused; the message has its texts and nothing else.

    Args:
        doing: the step, such as ``initiate``.
    """

    def __init__(self, doing: str, text: str, *, cure: str = "") -> None:
        super().__init__(text, cure=cure)
        self.doing = doing


class GssBuffer(ctypes.Structure):
    """Bytes and their length."""

    _fields_ = (("length", c_size_t), ("value", c_void_p))

    def taken(self) -> bytes:
        """The bytes, copied; what the library allocated is given back."""
        data = ctypes.string_at(self.value, self.length) if self.length else b""
        library().gss_release_buffer(byref(c_uint32()), byref(self))
        return data


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_void_p))


class _OidSet(ctypes.Structure):
    _fields_ = (("count", c_size_t), ("elements", POINTER(_Oid)))


class _StoreElement(ctypes.Structure):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


class _Store(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("elements", POINTER(_StoreElement)))


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library.

    Raises:
        GssError: this machine has none.
    """
    try:
        loaded = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise GssError("load", f"no Kerberos library on this machine: {error}", cure=_LIBRARY_CURE) from None
    pointers = {
        "gss_import_name": [c_void_p] * 4,
        "gss_display_name": [c_void_p] * 4,
        "gss_release_name": [c_void_p] * 2,
        "gss_release_buffer": [c_void_p] * 2,
        "gss_display_status": [c_void_p, c_uint32, c_int, c_void_p, c_void_p, c_void_p],
        "gss_acquire_cred_from": [c_void_p] * 2 + [c_uint32, c_void_p, c_int] + [c_void_p] * 4,
        "gss_inquire_cred": [c_void_p] * 6,
        "gss_release_cred": [c_void_p] * 2,
        "gss_init_sec_context": [c_void_p] * 5 + [c_uint32, c_uint32] + [c_void_p] * 6,
        "gss_inquire_context": [c_void_p] * 9,
        "gss_delete_sec_context": [c_void_p] * 3,
        "gss_wrap": [c_void_p, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_void_p],
        "gss_unwrap": [c_void_p] * 6,
        "gss_wrap_size_limit": [c_void_p, c_void_p, c_int, c_uint32, c_uint32, c_void_p],
    }
    for name, arguments in pointers.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, c_uint32
    return loaded


def buffer_of(data: bytes) -> tuple[GssBuffer, ctypes.Array[ctypes.c_char]]:
    """A buffer over a copy of the bytes; the second value must live as long as the buffer is used."""
    kept = ctypes.create_string_buffer(data, len(data) or 1)
    return GssBuffer(len(data), ctypes.cast(kept, c_void_p)), kept


def oid_of(der: bytes) -> tuple[_Oid, ctypes.Array[ctypes.c_char]]:
    """An object identifier; the second value must live as long as it is used."""
    kept = ctypes.create_string_buffer(der, len(der))
    return _Oid(len(der), ctypes.cast(kept, c_void_p)), kept


def check(doing: str, major: int, minor: c_uint32) -> None:
    """Raise the library's texts for a status that is an error.

    Raises:
        GssError: it is one.
    """
    if not major & _ERROR_MASK:
        return
    texts = [text for text in _texts(minor.value, _MECHANISM_TEXT) if minor.value and text not in _NO_TEXTS]
    raise GssError(doing, "; ".join(texts or _texts(major, _GSS_TEXT)) or f"status {major:#x}")


def _texts(status: int, kind: int) -> list[str]:
    mechanism, _kept = oid_of(_KRB5)
    position, found = c_uint32(0), []
    for _ in range(_MAX_STATUS_TEXTS):
        text = GssBuffer()
        major = library().gss_display_status(
            byref(c_uint32()), status, kind, byref(mechanism), byref(position), byref(text)
        )
        if major & _ERROR_MASK:
            break
        found.append(text.taken().decode("utf-8", "replace"))
        if not position.value:
            break
    return found


class _Name:
    """A principal's name inside the library."""

    def __init__(self, handle: c_void_p | None = None) -> None:
        self.handle = c_void_p() if handle is None else handle

    @staticmethod
    def of(text: str, kind: bytes) -> _Name:
        name, minor = _Name(), c_uint32()
        given, _kept = buffer_of(text.encode("utf-8"))
        oid, _kept_oid = oid_of(kind)
        major = library().gss_import_name(byref(minor), byref(given), byref(oid), byref(name.handle))
        check("name", major, minor)
        return name

    def __str__(self) -> str:
        if not self.handle.value:
            return ""
        text, minor = GssBuffer(), c_uint32()
        check("name", library().gss_display_name(byref(minor), self.handle, byref(text), None), minor)
        return text.taken()[:_MAX_NAME_BYTES].decode("utf-8", "replace")

    def __del__(self) -> None:
        if self.handle.value:
            library().gss_release_name(byref(c_uint32()), byref(self.handle))


@dataclass(frozen=True, slots=True)
class Ticket:
    """The ticket that credentials hold at the moment.

    Attributes:
        principal: whose it is.
        left_s: until it ends; 0: it has ended; None: the library does not say.
    """

    principal: str
    left_s: int | None


class Credentials:
    """The right to log in as one principal: from a ticket cache, or from a keytab.

    With a keytab the library fetches and refreshes the tickets, in memory alone; all credentials of one
    principal and keytab share them.

    Args:
        principal: whose; empty: the cache's own.
        keytab: a file; empty: tickets come from a cache.
        cache: of any type that the library knows; empty: the default one, see KRB5CCNAME.

    Raises:
        GssError: there is no usable ticket or key.
    """

    def __init__(self, principal: str = "", keytab: str = "", cache: str = "") -> None:
        self.handle = c_void_p()
        name = _Name.of(principal, _PRINCIPAL_NAME) if principal else None
        store: dict[bytes, str] = {}
        if keytab:
            store[b"client_keytab"] = keytab if ":" in keytab else f"FILE:{keytab}"
            cache = cache or f"MEMORY:yarn-accel {principal} {keytab}"
        if cache:
            store[b"ccache"] = cache
        elements = (_StoreElement * max(1, len(store)))(
            *(_StoreElement(key, value.encode("utf-8", "surrogateescape")) for key, value in store.items())
        )
        described = _Store(len(store), elements)
        oid, _kept = oid_of(_KRB5)
        mechanisms = _OidSet(1, ctypes.pointer(oid))
        minor = c_uint32()
        major = library().gss_acquire_cred_from(
            byref(minor),
            None if name is None else name.handle,
            0,
            byref(mechanisms),
            _INITIATE,
            byref(described) if store else None,
            byref(self.handle),
            None,
            None,
        )
        check("acquire", major, minor)

    def ticket(self) -> Ticket:
        """Whose ticket it is, and for how long it is good.

        Raises:
            GssError: there is none (any more).
        """
        name, left_s, minor = _Name(), c_uint32(), c_uint32()
        major = library().gss_inquire_cred(
            byref(minor), self.handle, byref(name.handle), byref(left_s), None, None
        )
        check("acquire", major, minor)
        return Ticket(str(name), None if left_s.value == _FOREVER else left_s.value)

    def __del__(self) -> None:
        if self.handle.value:
            library().gss_release_cred(byref(c_uint32()), byref(self.handle))


class SecurityContext:
    """The client's end of one Kerberos login, and afterwards its protection of messages.

    Args:
        credentials: of the client.
        service: whom to talk to: ``nn/host@REALM``, or ``nn@host``, whose realm the library finds.
    """

    def __init__(self, credentials: Credentials, service: str) -> None:
        self._handle = c_void_p()
        self._credentials = credentials
        self._target = _Name.of(service, _PRINCIPAL_NAME if "/" in service else _SERVICE_NAME)
        self.is_complete = False

    def step(self, received: bytes = b"") -> bytes:
        """Take the server's token (none at first) and return the next one to send; it may be empty.

        Raises:
            GssError: no ticket for this server, or the server could not prove that it is the one.
        """
        given, _kept = buffer_of(_bounded("initiate", received))
        sent, minor, flags = GssBuffer(), c_uint32(), c_uint32()
        oid, _kept_oid = oid_of(_KRB5)
        major = library().gss_init_sec_context(
            byref(minor),
            self._credentials.handle,
            byref(self._handle),
            self._target.handle,
            byref(oid),
            _FLAGS,
            0,
            None,
            byref(given) if received else None,
            None,
            byref(sent),
            byref(flags),
            None,
        )
        token = sent.taken()
        check("initiate", major, minor)
        self.is_complete = not major & _CONTINUE_NEEDED
        if self.is_complete and flags.value & (_MUTUAL | _INTEGRITY) != _MUTUAL | _INTEGRITY:
            raise GssError("initiate", "the server's login does not prove who it is, or protects nothing")
        return token

    def server(self) -> str:
        """The principal that the server has proved to be, with its realm; the login is complete.

        Raises:
            GssError: the library does not know.
        """
        name, minor = _Name(), c_uint32()
        major = library().gss_inquire_context(
            byref(minor), self._handle, None, byref(name.handle), None, None, None, None, None
        )
        check("initiate", major, minor)
        return str(name)

    def wrap(self, data: bytes, *, is_private: bool) -> bytes:
        """One message, protected against changes, and where `is_private` also against readers.

        Raises:
            GssError: the login has ended, or its ticket's key cannot be used.
        """
        given, _kept = buffer_of(data)
        sent, minor, was_private = GssBuffer(), c_uint32(), c_int()
        major = library().gss_wrap(
            byref(minor), self._handle, is_private, 0, byref(given), byref(was_private), byref(sent)
        )
        check("wrap", major, minor)
        token = sent.taken()
        if is_private and not was_private.value:
            raise GssError("wrap", "the library cannot encrypt with this ticket's key")
        return token

    def unwrap(self, token: bytes, *, is_private: bool) -> bytes:
        """The content of the server's next message.

        Raises:
            GssError: it was changed, repeated or left out on its way, or is not encrypted.
        """
        given, _kept = buffer_of(_bounded("unwrap", token))
        received, minor, was_private = GssBuffer(), c_uint32(), c_int()
        major = library().gss_unwrap(
            byref(minor), self._handle, byref(given), byref(received), byref(was_private), None
        )
        data = received.taken()
        check("unwrap", major, minor)
        if major:
            raise GssError("unwrap", f"a message was repeated, or one is missing (status {major:#x})")
        if is_private and not was_private.value:
            raise GssError("unwrap", "a message is not encrypted")
        return data

    def plain_limit(self, protected_bytes: int, *, is_private: bool) -> int:
        """How much a message may hold so that it is no longer than `protected_bytes` when it is protected.

        Raises:
            GssError: the login has ended.
        """
        limit, minor = c_uint32(), c_uint32()
        major = library().gss_wrap_size_limit(
            byref(minor), self._handle, is_private, 0, min(protected_bytes, 1 << 30), byref(limit)
        )
        check("wrap", major, minor)
        return limit.value

    def __del__(self) -> None:
        if self._handle.value:
            library().gss_delete_sec_context(byref(c_uint32()), byref(self._handle), None)


def _bounded(doing: str, token: bytes) -> bytes:
    if len(token) > MAX_TOKEN_BYTES:
        raise GssError(doing, f"a token of {len(token)} bytes")
    return token
