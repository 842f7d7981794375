"""Files by URI, for programs that prepare jobs and read what came of them: HDFS, and this machine's.

>>> from yarn_accel.storage import Store
>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     store = Store()
...     store.write_atomic(f"file://{folder}/a", [b"content"])
...     store.read_bytes(f"file://{folder}/a", max_bytes=100)
7
b'content'
"""

from yarn_accel.adapters.hdfs import Store

__all__ = ["Store"]
