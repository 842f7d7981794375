"""Files of MIT Kerberos, and the one message that asks a KDC for its clock.

``krb5.conf``, keytabs (version 2) and ticket caches of type FILE (version 4) are read without their keys.  A
KDC answers `clock_request`, a request for a ticket that names no client, with an error that has its time
(RFC 4120, section 5.9.1).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from datetime import datetime

from yarn_accel.core.site_checks import CachedTicket, KeytabKey, Krb5Conf
from yarn_accel.errors import RemoteProtocolError

MAX_FILE_BYTES = 1 << 20
KEYTAB_MAGIC, CACHE_MAGIC = b"\x05\x02", b"\x05\x04"
#: Not a ticket: a setting that the library keeps in the cache.
_CACHE_SETTING_REALM = "X-CACHECONF:"


class _Fields:
    """Big-endian numbers and counted bytes, one after the other."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data, self.at = data, at

    @property
    def n_left(self) -> int:
        return len(self._data) - self.at

    def take(self, n_bytes: int) -> bytes:
        if not 0 <= n_bytes <= self.n_left:
            raise RemoteProtocolError(
                f"{n_bytes} bytes are announced at offset {self.at}, {self.n_left} left"
            )
        self.at += n_bytes
        return self._data[self.at - n_bytes : self.at]

    def number(self, form: str) -> int:
        return int(struct.unpack(f">{form}", self.take(struct.calcsize(form)))[0])

    def counted(self, form: str = "I") -> bytes:
        return self.take(self.number(form))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# ---- keytabs


def read_keytab(data: bytes) -> tuple[KeytabKey, ...]:
    """The keys of a keytab, without the keys themselves.

    Raises:
        RemoteProtocolError: it is none, or damaged.
    """
    if data[:2] != KEYTAB_MAGIC:
        raise RemoteProtocolError("no keytab: it does not begin with 05 02")
    cursor, found = _Fields(data, 2), []
    while cursor.n_left >= 4:
        n_bytes = cursor.number("i")
        entry = cursor.take(abs(n_bytes))
        if n_bytes > 0:  # otherwise a hole where an entry was
            found.append(_keytab_entry(_Fields(entry)))
        elif n_bytes == 0:
            break
    return tuple(found)


def _keytab_entry(cursor: _Fields) -> KeytabKey:
    n_parts = cursor.number("H")
    realm = _text(cursor.counted("H"))
    parts = [_text(cursor.counted("H")) for _ in range(n_parts)]
    cursor.take(8)  # type of the name, time
    number = cursor.number("B")
    encryption_type = cursor.number("H")
    cursor.counted("H")
    if cursor.n_left >= 4:
        number = cursor.number("I") or number
    return KeytabKey(f"{'/'.join(parts)}@{realm}", number, encryption_type)


# ---- ticket caches


def read_cache(data: bytes) -> tuple[CachedTicket, ...]:
    """The tickets of a cache of type FILE, without their keys.

    Raises:
        RemoteProtocolError: it is none, of another version, or damaged.
    """
    if data[:2] != CACHE_MAGIC:
        raise RemoteProtocolError("no ticket cache of version 4: it does not begin with 05 04")
    cursor, found = _Fields(data, 2), []
    cursor.counted("H")
    _principal(cursor)
    while cursor.n_left:
        client, server = _principal(cursor), _principal(cursor)
        encryption_type = cursor.number("H")
        cursor.counted()
        _issued, starts_s, ends_s, renewable_until_s = (cursor.number("I") for _ in range(4))
        cursor.take(5)  # whether it is for a user, flags
        for _ in range(2):  # addresses, rights
            for _ in range(cursor.number("I")):
                cursor.take(2)
                cursor.counted()
        cursor.counted()
        cursor.counted()
        if not server.endswith(f"@{_CACHE_SETTING_REALM}"):
            ticket = CachedTicket(client, server, starts_s, ends_s, renewable_until_s, encryption_type)
            found.append(ticket)
    return tuple(found)


def _principal(cursor: _Fields) -> str:
    cursor.take(4)
    n_parts = cursor.number("I")
    realm = _text(cursor.counted())
    return "/".join(_text(cursor.counted()) for _ in range(n_parts)) + f"@{realm}"


# ---- krb5.conf


def read_krb5_conf(text: str, path: str) -> Krb5Conf:
    """Read the realm and the options of ``krb5.conf``; files that it includes are not read.

    >>> read_krb5_conf("[libdefaults]\\n default_realm = R\\n[realms]\\n R = {\\n  kdc = a:88\\n }", "f").kdcs
    {'R': ('a:88',)}
    """
    section = realm = ""
    options: dict[str, str] = {}
    kdcs: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        head = re.fullmatch(r"\[([^]]+)\]\*?", line)
        key, _, value = (part.strip() for part in line.partition("="))
        if head:
            section, realm = head[1].strip(), ""
        elif section == "libdefaults" and value:
            options.setdefault(key.lower(), value)
        elif section == "realms" and value == "{":
            realm = key
        elif section == "realms" and line == "}":
            realm = ""
        elif section == "realms" and realm and key.lower() == "kdc":
            kdcs[realm] = (*kdcs.get(realm, ()), value)
    return Krb5Conf(path, options.get("default_realm", ""), kdcs, options)


# ---- the clock of a KDC


def clock_request(realm: str, nonce: int) -> bytes:
    """A request for a ticket (AS-REQ) that names no client, so each KDC refuses it with its time.

    Args:
        realm: the KDC's.
        nonce: another one each time, below 2**31: a KDC answers a repeated request as it did before.
    """
    name = _der(0xA0, _der(2, b"\2")) + _der(0xA1, _der(0x30, _string("krbtgt") + _string(realm)))
    body = (
        _der(0xA0, _der(3, bytes(5)))  # no options
        + _der(0xA2, _string(realm))
        + _der(0xA3, _der(0x30, name))
        + _der(0xA5, _der(0x18, b"20370101000000Z"))
        + _der(0xA7, _der(2, nonce.to_bytes(4, "big")))
        + _der(0xA8, _der(0x30, _der(2, b"\x12")))
    )
    request = _der(0xA1, _der(2, b"\5")) + _der(0xA2, _der(2, b"\x0a")) + _der(0xA4, _der(0x30, body))
    return _der(0x6A, _der(0x30, request))


def clock_of(answer: bytes) -> float:
    """The KDC's time in such an error (KRB-ERROR), in Unix seconds.

    Raises:
        RemoteProtocolError: it is something else.
    """
    for tag, content in _elements(dict(_elements(dict(_elements(answer)).get(0x7E, b""))).get(0x30, b"")):
        if tag == 0xA4:
            text = dict(_elements(content)).get(0x18, b"").decode("ascii", "replace")
            try:
                return datetime.strptime(f"{text}+0000", "%Y%m%d%H%M%SZ%z").timestamp()
            except ValueError:
                break
    raise RemoteProtocolError("no error of a KDC with its time")


def _der(tag: int, content: bytes) -> bytes:
    n_bytes = len(content)
    size = bytes((n_bytes,)) if n_bytes < 128 else b"\x82" + n_bytes.to_bytes(2, "big")
    return bytes((tag,)) + size + content


def _string(text: str) -> bytes:
    return _der(0x1B, text.encode())


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    cursor = _Fields(data)
    while cursor.n_left >= 2:
        tag, n_bytes = cursor.number("B"), cursor.number("B")
        if n_bytes > 127:
            n_bytes = int.from_bytes(cursor.take(n_bytes - 128), "big")
        yield tag, cursor.take(n_bytes)
