"""Tags of frame headers: without the key of a direction nobody can make, change, move or repeat a frame.

The tag is keyed BLAKE2b with 16 bytes of output, a MAC by itself (RFC 7693) and, because a keyed state can be
copied, six times faster from Python than HMAC-SHA256.
"""

import hashlib
import hmac

from yarn_accel.wire.checksums import Buffer

TAG_BYTES = 16


class Tagger:
    """Makes the tags of one direction of one connection, in the order of its frames."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._sequence = 0

    def next_tag(self, prefix: Buffer, header: Buffer) -> bytes:
        """The tag of the next frame: its sequence number is part of it."""
        mac = self._keyed.copy()
        mac.update(b"".join((self._sequence.to_bytes(8, "big"), prefix, header)))
        self._sequence += 1
        return mac.digest()

    def is_next(self, tag: bytes, prefix: Buffer, header: Buffer) -> bool:
        """Whether this is the tag of the next frame, in a time that does not depend on where it differs."""
        return hmac.compare_digest(self.next_tag(prefix, header), tag)
