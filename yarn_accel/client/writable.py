"""Hadoop's variable-length numbers, which stand before every text in its own files.

A number from -112 to 127 is one byte. Otherwise the first byte says the sign and how many bytes follow (-113
to -120: 1 to 8 bytes of a positive number, -121 to -128: of a negative one), which hold the number (or its
complement) with the most significant byte first. Standard library only, Python 3.8.
"""

from __future__ import annotations


def encode_number(value: int) -> bytes:
    """The shortest form of a number of 64 bits."""
    if -112 <= value <= 127:
        return bytes((value & 0xFF,))
    base, magnitude = (-112, value) if value >= 0 else (-120, ~value)
    n_bytes = (magnitude.bit_length() + 7) // 8 or 1
    return bytes(((base - n_bytes) & 0xFF,)) + magnitude.to_bytes(n_bytes, "big")


def n_bytes_after(first: int) -> int:
    """How many bytes follow the first one (0 to 255) of a number."""
    if first <= 127 or first >= 144:
        return 0
    return 144 - first if first >= 136 else 136 - first


def decode_number(encoded: bytes) -> int:
    """The number that exactly these bytes are; `n_bytes_after` says how many there must be."""
    first = encoded[0]
    if len(encoded) == 1:
        return first if first <= 127 else first - 256
    magnitude = int.from_bytes(encoded[1:], "big")
    return magnitude if first >= 136 else ~magnitude
