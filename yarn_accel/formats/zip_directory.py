"""The directory of a zip archive, read strictly: every byte of the file must be where a plain writer puts it.

`zipfile` searches for an archive within a file, and forgives differently from version to version of Python.
This reader takes only what ``numpy.savez`` and ``numpy.savez_compressed`` write, so a file is judged alike on
every node: stored or deflated members, one behind the other, the directory, and nothing behind its end.
"""

from __future__ import annotations

import struct
from typing import Callable, List, NamedTuple, Tuple

MAX_MEMBERS = 64
NOT_AN_ARCHIVE = "not a zip archive"
"""Errors about files that may be something else begin so."""
STORED, DEFLATED = 0, 8

_END = struct.Struct("<4s4H2LH")
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_END64_MARK = b"PK\6\7"
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_UTF_8 = 0x800
_MAX_DIRECTORY_BYTES = 1 << 18
ReadRange = Callable[[int, int], bytes]
"""``read(start, n_bytes)``: at most so many bytes of the file from there."""


class BadZipError(ValueError):
    """It is not such an archive; the text says what is wrong, and with which member."""


class ZipMember(NamedTuple):
    """One member as the directory describes it.

    Attributes:
        offset: where its local header begins in the file.
        n_stored: bytes it takes in the file, without the header.
        n_bytes: bytes of its content.
        crc: CRC-32 of its content.
    """

    name: str
    offset: int
    n_stored: int
    n_bytes: int
    crc: int
    is_deflated: bool


def read_directory(read: ReadRange, n_bytes: int) -> Tuple[ZipMember, ...]:
    """The members of an archive in the order of its directory.

    Args:
        read: reads the file.
        n_bytes: the file's length.

    Raises:
        BadZipError: it is not an archive, is damaged, or has members that are doubled, overlap, are encrypted
            or compressed in another way.
    """
    n_members, start, length = _find_directory(read, n_bytes)
    if n_members > MAX_MEMBERS:
        raise BadZipError("{} arrays, at most {}".format(n_members, MAX_MEMBERS))
    if length > _MAX_DIRECTORY_BYTES:
        raise BadZipError("its directory has {} bytes".format(length))
    content = read(start, length)
    members: List[ZipMember] = []
    at = 0
    for _ in range(n_members):
        member, at = _entry(content, at)
        members.append(member)
    if at != len(content):
        raise BadZipError("its directory is damaged")
    _check_together(members, start)
    return tuple(members)


def data_start(head: bytes, member: ZipMember) -> int:
    """Where the content of a member begins in the file, given the bytes from its local header on.

    Raises:
        BadZipError: there is no such header.
    """
    if len(head) < _LOCAL.size:
        raise BadZipError("{}: cut short".format(member.name))
    fields = _LOCAL.unpack_from(head)
    if fields[0] != b"PK\3\4":
        raise BadZipError("{}: no member begins where the directory says".format(member.name))
    return int(member.offset + _LOCAL.size + fields[-2] + fields[-1])


def _find_directory(read: ReadRange, n_bytes: int) -> Tuple[int, int, int]:
    """Number of members, and place and length of the directory."""
    if n_bytes < _END.size:
        raise BadZipError(NOT_AN_ARCHIVE)
    end_at = n_bytes - _END.size
    before = min(end_at, _END64_PLACE.size)
    content = read(end_at - before, before + _END.size)
    fields = _END.unpack_from(content, before)
    if fields[0] != b"PK\5\6" or fields[-1]:
        raise BadZipError(NOT_AN_ARCHIVE + ", cut short, or something follows its end")
    _, disk, first_disk, here, n_members, length, start, _ = fields
    is_64 = content.startswith(_END64_MARK)  # some write it where 32 bits would do
    if is_64 or _FULL_16 in (here, n_members) or _FULL_32 in (length, start):
        end_at, n_members, length, start = _end64(read, end_at)
    elif disk or first_disk or here != n_members:
        raise BadZipError("one of several parts of an archive")
    if start + length != end_at:
        raise BadZipError("its directory is not where its end says")
    return n_members, start, length


def _end64(read: ReadRange, end_at: int) -> Tuple[int, int, int, int]:
    place_at = end_at - _END64_PLACE.size
    if place_at < _END64.size:
        raise BadZipError("cut short")
    mark, _, end64_at, _ = _END64_PLACE.unpack(read(place_at, _END64_PLACE.size))
    if mark != _END64_MARK or end64_at + _END64.size != place_at:
        raise BadZipError("its directory is not where its end says")
    fields = _END64.unpack(read(end64_at, _END64.size))
    if fields[0] != b"PK\6\6":
        raise BadZipError("its directory is not where its end says")
    return end64_at, fields[7], fields[8], fields[9]


def _entry(content: bytes, at: int) -> Tuple[ZipMember, int]:
    if at + _ENTRY.size > len(content):
        raise BadZipError("its directory is damaged")
    fields = _ENTRY.unpack_from(content, at)
    flags, method, crc = fields[3], fields[4], fields[7]
    n_name, n_extra, n_comment = fields[10:13]
    name_at = at + _ENTRY.size
    end = name_at + n_name + n_extra + n_comment
    if fields[0] != b"PK\1\2" or end > len(content):
        raise BadZipError("its directory is damaged")
    raw_name = content[name_at : name_at + n_name]
    try:
        name = raw_name.decode("utf-8" if flags & _UTF_8 else "cp437")
    except UnicodeDecodeError:
        raise BadZipError("a name in its directory is no text") from None
    if flags & _ENCRYPTED:
        raise BadZipError("{}: encrypted".format(name))
    if method not in (STORED, DEFLATED):
        raise BadZipError("{}: compressed by method {}; use numpy.savez_compressed".format(name, method))
    extra = content[name_at + n_name : name_at + n_name + n_extra]
    sizes = _with_extra([fields[9], fields[8], fields[16]], extra, name)
    if method == STORED and sizes[0] != sizes[1]:
        raise BadZipError("{}: two lengths that differ".format(name))
    return ZipMember(name, sizes[2], sizes[1], sizes[0], crc, method == DEFLATED), end


def _with_extra(sizes: List[int], extra: bytes, name: str) -> List[int]:
    """Content's length, stored length and offset, those that do not fit in 32 bits from the extra field."""
    if _FULL_32 not in sizes:
        return sizes
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        values = extra[at + 4 : at + 4 + length]
        if kind == 1:
            wanted = [i for i, size in enumerate(sizes) if size == _FULL_32]
            if len(values) < 8 * len(wanted):
                break
            for i, value in zip(wanted, struct.unpack_from("<{}Q".format(len(wanted)), values)):  # noqa: B905
                sizes[i] = value
            return sizes
        at += 4 + length
    raise BadZipError("{}: its length is not in the directory".format(name))


def _check_together(members: List[ZipMember], end: int) -> None:
    names = set()
    for member in members:
        name = member.name[:-4] if member.name.endswith(".npy") else member.name
        if name in names:
            raise BadZipError("{}: there are two arrays of this name".format(name))
        names.add(name)
    free_from = 0
    for member in sorted(members, key=lambda each: each.offset):
        if member.offset < free_from:
            raise BadZipError("{}: overlaps another member".format(member.name))
        free_from = member.offset + _LOCAL.size + member.n_stored
        if free_from > end:
            raise BadZipError("{}: reaches beyond the directory".format(member.name))
