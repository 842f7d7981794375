"""Numbers and strings of the batch protocol ("data is strings"): everything is ASCII digits.

A number is its sign and its decimal digits. More than one digit is announced by a count before the sign, and
a count of more than one digit by its own count: ``+5`` is 5, ``2+12`` is 12, ``210+1234567890`` has ten
digits. A string is its length in bytes as a number, then the bytes: ``+5queue``. There is no terminator.

A text is UTF-8; a byte that is not UTF-8 becomes a lone surrogate, so that every string comes back byte by
byte.
"""

from __future__ import annotations

from torque_sched.errors import ProtocolError

_PLUS, _MINUS, _ZERO, _NINE = b"+-09"
_MOST_DIGITS = 20
_MOST_COUNTS = 4


class Incomplete(Exception):
    """The value goes on beyond the bytes that are there.

    Args:
        end: where the bytes have to reach at least, as an index into them.
    """

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


class Garbled(Exception):
    """These bytes are no such value; whoever knows the place makes a `ProtocolError` of it."""


def encode_number(value: int) -> bytes:
    """The bytes of a number; a count is written only where it is more than 1.

    >>> encode_number(5), encode_number(-12), encode_number(1234567890)
    (b'+5', b'2-12', b'210+1234567890')

    Raises:
        ProtocolError: more than 20 digits.
    """
    if 0 <= value < _N_READY:
        return _READY[value]
    return _encode_number(value)


def _encode_number(value: int) -> bytes:
    if -10 < value < 10:
        return b"%c%d" % (_MINUS if value < 0 else _PLUS, abs(value))
    digits = b"%d" % abs(value)
    if len(digits) > _MOST_DIGITS:
        raise ProtocolError(f"a number of {len(digits)} digits", cure=f"at most {_MOST_DIGITS}")
    text = b"%c%s" % (_MINUS if value < 0 else _PLUS, digits)
    n = len(digits)
    while n > 1:
        count = b"%d" % n
        text = count + text
        n = len(count)
    return text


_N_READY = 512
_READY = tuple(map(_encode_number, range(_N_READY)))
"""Each request has some of them, and nearly all are small."""


def encode_string(text: str) -> bytes:
    """The bytes of a string, its length in bytes before it.

    >>> encode_string("später")
    b'+7sp\\xc3\\xa4ter'
    """
    data = text.encode("utf-8", "surrogateescape")
    return encode_number(len(data)) + data


def read_number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends.

    A count of 1 and leading zeros are read as well: trqauthd writes ``1+5`` for 5.

    Raises:
        Incomplete: more bytes are needed.
        Garbled: no number begins here.
    """
    # A look reads hundreds of thousands of them, nearly all with one sign and fewer than ten digits.
    try:
        first = data[at]
        if first == _PLUS:
            digit = data[at + 1] - _ZERO
            if 0 <= digit <= 9:
                return digit, at + 2
        elif data[at + 1] == _PLUS and _ZERO < first <= _NINE:
            end = at + 2 + first - _ZERO
            digits = data[at + 2 : end]
            if digits.isdigit() and end <= len(data):
                return int(digits), end
    except IndexError:
        pass
    return _read_any_number(data, at)


def _read_any_number(data: bytes | bytearray, at: int) -> tuple[int, int]:
    n = 1
    for _ in range(_MOST_COUNTS):
        if at >= len(data):
            raise Incomplete(at + 1)
        first = data[at]
        if first in {_PLUS, _MINUS}:
            digits = _digits(data, at + 1, n)
            value = int(digits)
            return -value if first == _MINUS else value, at + 1 + n
        digits = _digits(data, at, n)
        at += n
        n = int(digits)
        if not 1 <= n <= _MOST_DIGITS or digits[0] == _ZERO:
            raise Garbled(f"a number of {n} digits")
    raise Garbled("counts without a number")


def _digits(data: bytes | bytearray, start: int, n: int) -> bytes | bytearray:
    digits = data[start : start + n]
    if digits and not digits.isdigit():
        raise Garbled(f"{bytes(data[start : start + 20])!r} where digits belong")
    if len(digits) < n:
        raise Incomplete(start + n)
    return digits


def read_string(data: bytes | bytearray, at: int, longest: int) -> tuple[str, int]:
    """The string of at most ``longest`` bytes that begins at ``at``, and where it ends.

    Raises:
        Incomplete: more bytes are needed.
        Garbled: no string begins here, or it is longer.
    """
    length, start = read_number(data, at)
    if not 0 <= length <= longest:
        raise Garbled(f"a string of {length} bytes, more than {longest}")
    end = start + length
    if end > len(data):
        raise Incomplete(end)
    return data[start:end].decode("utf-8", "surrogateescape"), end
