"""What is looked at before anything is done for a request: limits and rights."""

from __future__ import annotations

from collections.abc import Iterable

from yarn_accel.core.requests.events import Failure, Needs
from yarn_accel.core.requests.settings import MachineSettings, TenantSettings
from yarn_accel.uris import shown


def too_large(needs: Needs, settings: MachineSettings) -> Failure | None:
    """Why inputs are too large, or inputs and outputs together; None: they are not."""
    n_bytes = max(needs.payload_bytes, needs.input_bytes if needs.reads else 0)
    if n_bytes > settings.max_request_bytes:
        text = f"{n_bytes} bytes of inputs, at most {settings.max_request_bytes} are taken"
        return _too_large(text, f"raise max_request_bytes of the server to {n_bytes} or more")
    if needs.input_bytes + needs.output_bytes > settings.pool_bytes:
        text = f"{needs.input_bytes} bytes of inputs and {needs.output_bytes} of outputs"
        text = f"{text}, the server has {settings.pool_bytes}"
        return _too_large(text, f"raise pool_bytes of the server to {needs.input_bytes + needs.output_bytes}")
    return None


def forbidden(tenant: TenantSettings, reads: Iterable[str], writes: str) -> Failure | None:
    """Why a tenant may not read or write one of these URIs; None: it may.

    Both are normalised to ``scheme://authority/path``.  A prefix ends at a path border: ``hdfs://nn/data``
    allows ``hdfs://nn/data/a`` but not ``hdfs://nn/database``.  Without prefixes nothing is allowed.
    """
    for uri in reads:
        if not _is_below(uri, tenant.read_prefixes):
            return _forbidden(uri, "read_prefixes", tenant.read_prefixes)
    if writes and not _is_below(writes, tenant.write_prefixes):
        return _forbidden(writes, "write_prefixes", tenant.write_prefixes)
    return None


def _is_below(uri: str, prefixes: tuple[str, ...]) -> bool:
    for prefix in prefixes:
        if uri == prefix or uri.startswith(prefix if prefix.endswith("/") else prefix + "/"):
            return True
    return False


def _forbidden(uri: str, setting: str, prefixes: tuple[str, ...]) -> Failure:
    text, cure = "not below any allowed prefix", f"see {setting} of the tenant in the server's configuration"
    scheme, authority = _store(uri)
    allowed = sorted({_store(prefix)[1] for prefix in prefixes if _store(prefix)[0] == scheme})
    if scheme == "hdfs" and allowed and authority not in allowed:
        names = ", ".join(each or "none" for each in allowed)
        text = f"{text}: its authority {authority or '(none)'} differs from those allowed ({names})"
        cure = f"write hdfs:///PATH for the cluster's own file system, or {cure}"
    return Failure("rejected", "forbidden-uri", f"{shown(uri)}: {text}", cure)


def _store(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    return scheme, rest.partition("/")[0]


def _too_large(message: str, cure: str) -> Failure:
    return Failure("rejected", "request-too-large", message, cure)


def key_reused(key: str) -> Failure:
    """Why a request is refused whose key belongs to another."""
    return Failure("rejected", "key-reused", f"key {key!r} was used for another request")
