"""The server's end of a Kerberos login, by the same library; only what `fake_hadoop` needs."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_uint32, c_void_p
from pathlib import Path

from yarn_accel.adapters.hadoop_rpc.gssapi import GssBuffer, buffer_of, check, library

_ACCEPT = 2


class _Store(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("elements", c_void_p))


class Acceptor:
    """One login that a server takes with its keytab."""

    def __init__(self, keytab: Path) -> None:
        library().gss_accept_sec_context.argtypes = [c_void_p] * 11
        library().gss_accept_sec_context.restype = c_uint32
        pair = (c_char_p * 2)(b"keytab", f"FILE:{keytab}".encode())
        store = _Store(1, ctypes.cast(pair, c_void_p))
        self._credentials, self._context, minor = c_void_p(), c_void_p(), c_uint32()
        major = library().gss_acquire_cred_from(
            byref(minor), None, 0, None, _ACCEPT, byref(store), byref(self._credentials), None, None
        )
        check("acquire", major, minor)

    def step(self, token: bytes) -> tuple[bytes, str]:
        """The answer, and who has logged in."""
        given, _kept = buffer_of(token)
        answer, name, minor = GssBuffer(), c_void_p(), c_uint32()
        major = library().gss_accept_sec_context(
            byref(minor),
            byref(self._context),
            self._credentials,
            byref(given),
            None,
            byref(name),
            None,
            byref(answer),
            None,
            None,
            None,
        )
        check("accept", major, minor)
        shown = GssBuffer()
        check("name", library().gss_display_name(byref(minor), name, byref(shown), None), minor)
        library().gss_release_name(byref(minor), byref(name))
        return answer.taken(), shown.taken().decode()

    def wrap(self, data: bytes, is_private: bool) -> bytes:
        given, _kept = buffer_of(data)
        sent, minor = GssBuffer(), c_uint32()
        major = library().gss_wrap(
            byref(minor), self._context, is_private, 0, byref(given), byref(c_int()), byref(sent)
        )
        check("wrap", major, minor)
        return sent.taken()

    def unwrap(self, token: bytes, is_private: bool) -> bytes:
        given, _kept = buffer_of(token)
        received, was_private, minor = GssBuffer(), c_int(), c_uint32()
        major = library().gss_unwrap(
            byref(minor), self._context, byref(given), byref(received), byref(was_private), None
        )
        check("unwrap", major, minor)
        assert major == 0
        assert bool(was_private.value) is is_private
        return received.taken()

    def __del__(self) -> None:
        if self._context:
            library().gss_delete_sec_context(byref(c_uint32()), byref(self._context), None)
        if self._credentials:
            library().gss_release_cred(byref(c_uint32()), byref(self._credentials))
