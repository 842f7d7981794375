"""Files of arrays: ``.npy`` and ``.npz`` as the server and a mapper read and write them, by the same code.

Importing this package needs only the standard library; numpy is imported when elements have to be converted.
"""

from yarn_accel.formats.array_file import (
    BytesInMemory,
    ByteSource,
    StoredArray,
    conversions,
    describe,
    is_array_file,
    load,
    name_plain_bytes,
)
from yarn_accel.formats.zip_directory import MAX_MEMBERS

__all__ = [
    "MAX_MEMBERS",
    "ByteSource",
    "BytesInMemory",
    "StoredArray",
    "conversions",
    "describe",
    "is_array_file",
    "load",
    "name_plain_bytes",
]
