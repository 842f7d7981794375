"""The models of `infer`: read once from storage, by whoever may, and kept for all who may.

A worker has no storage, and a model is no input: it is read when it is first named, into memory of the server
without a file behind it, and workers open that by its descriptor. Models are kept by the digest of their
files, so the same one under two names is there once. Each principal's right to read is checked by opening the
file as that principal, as for an input: before its first request, and again while it sends more, after
`RIGHT_RECHECK_S`.

The machine of requests knows nothing of this. A request whose model is not there yet is answered by ``Busy``,
and its client sends it again; so nothing waits here that a lost connection or a kill could leave behind.
"""

from __future__ import annotations

import collections
import logging
import mmap
import os
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from yarn_accel.core.requests.machine import forbidden
from yarn_accel.errors import AccelError, RejectedError, StorageError
from yarn_accel.operations.models import ModelSource, digest_of, model_facts, model_uris, resolved_params
from yarn_accel.pipeline.own_filesystem import USERS_CURE
from yarn_accel.pipeline.plans import failure_of
from yarn_accel.uris import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from yarn_accel.core.requests.settings import TenantSettings
    from yarn_accel.pipeline.config import PipelineConfig
    from yarn_accel.pipeline.connections import Session
    from yarn_accel.pipeline.storage import Storage
    from yarn_accel.storage import Stamp, Store
    from yarn_accel.wire import Request

logger = logging.getLogger(__name__)

#: A right that was checked is checked again, while requests go on, after so long.
RIGHT_RECHECK_S = 5.0
#: A right that was not checked for so long counts no more.
RIGHT_LIFETIME_S = 30.0
#: Until then a request for a model that could not be read gets the same error.
_ERROR_S = 2.0
#: A client whose model is being read asks again after so long.
RETRY_S = 0.05
_MAX_RIGHTS = 4096
#: A computation that does not end is killed after `hang_min_s`; a model is to end long before that.
_PART_OF_HANG = 4


class _Memory:
    """A file of memory that others open by its descriptor; its pages go with the last one who has it open."""

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self.fd = os.memfd_create("model", os.MFD_CLOEXEC)
        os.truncate(self.fd, n_bytes)

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def map(self) -> mmap.mmap | bytes:
        return mmap.mmap(self.fd, self.n_bytes) if self.n_bytes else b""

    def close(self) -> None:
        os.close(self.fd)


@dataclass(slots=True)
class _Model:
    """A model in memory.

    Attributes:
        files: by the path from the model's folder; the model itself has none.
    """

    digest: str
    files: Mapping[str, _Memory]

    @property
    def n_bytes(self) -> int:
        return sum(each.n_bytes for each in self.files.values())

    def close(self) -> None:
        for each in self.files.values():
            each.close()


@dataclass(slots=True)
class _Right:
    """The result of a principal's last look at a model.

    Attributes:
        model: it may read this one; None: not known, or `error`.
        looked_s: when that was.
        is_looking: it is looked at now.
    """

    model: _Model | None = None
    error: AccelError | None = None
    looked_s: float = field(default=float("-inf"))
    is_looking: bool = False


class Resolved(NamedTuple):
    """The parameters of a connection's last request with models, before and after these were found.

    Attributes:
        found: for each of its models the right to read it, and what that right was of.
    """

    operation: str
    given: Mapping[str, Any]
    params: Mapping[str, Any]
    found: Sequence[tuple[_Right, _Model]]


class Models:
    """The models of one server.

    Args:
        config: limits.
        storage: its threads read the models.
        normalised: a URI as the rights are written.
        users_roots: where requests run as users, the only file systems they may name; else none.
    """

    def __init__(
        self,
        config: PipelineConfig,
        storage: Storage,
        normalised: Callable[[str], str],
        users_roots: tuple[str, ...],
    ) -> None:
        self._storage = storage
        self._normalised = normalised
        self._users_roots = users_roots
        self._max_bytes = config.max_model_bytes
        self._between_bytes = config.max_request_bytes
        self._kept_bytes = max(config.model_cache_bytes, config.max_model_bytes)
        self._limits = (
            config.model_memory_bytes,
            min(config.model_time_s, config.hang_min_s / _PART_OF_HANG),
            config.cores_per_worker,
        )
        self._rights: collections.OrderedDict[tuple[str, str], _Right] = collections.OrderedDict()
        self._reading: set[str] = set()
        self._lock = Lock()
        self._by_stamps: dict[tuple[str, tuple[Any, ...]], _Model] = {}
        self._by_digest: collections.OrderedDict[str, _Model] = collections.OrderedDict()

    def resolved(self, session: Session, request: Request) -> Request | None:
        """A request with what a worker needs in the place of its models' URIs; None: not yet.

        Raises:
            RejectedError: what it names is no model, or none that its tenant may read.
            StorageError: a model cannot be read.
        """
        last = session.resolved
        if isinstance(last, Resolved) and self._holds(last, request):
            return request._replace(params=last.params)
        sources: dict[str, Any] = {}
        found: list[tuple[_Right, _Model]] = []
        for uri in model_uris(request.operation, request.params):
            right = self._find(session, uri)
            if right is None or right.model is None:
                return None
            model = right.model
            found.append((right, model))
            files = {name: file.path for name, file in model.files.items()}
            sources[uri] = ModelSource(uri, model.digest, files, *self._limits)._asdict()
        given = request.params
        params = resolved_params(request.operation, given, sources) if sources else dict(given)
        if request.operation == "chain":
            params["between_bytes"] = self._between_bytes
        session.resolved = Resolved(request.operation, given, params, found)
        return request._replace(params=params)

    def close(self) -> None:
        """Give all memory back."""
        with self._lock:
            for model in self._by_digest.values():
                model.close()
            self._by_digest.clear()
            self._by_stamps.clear()

    def _holds(self, last: Resolved, request: Request) -> bool:
        """Whether a request has the parameters of the last one, and no right is to be looked at again."""
        if request.operation != last.operation or request.params != last.given:
            return False
        oldest_s = time.monotonic() - RIGHT_RECHECK_S
        return all(
            [
                right.model is model and right.looked_s > oldest_s and self._is_kept(model)
                for right, model in last.found
            ]
        )

    def _find(self, session: Session, uri: str) -> _Right | None:
        """The right of a session's principal to read a model, which is known then; None: not yet."""
        name = self._normalised(uri)
        settings = session.record.tenant.settings
        check = partial(self._check_right, settings, session.user is not None)
        check(uri)
        store = session.user.store if self._users_roots and session.user is not None else None
        key = session.tenant, name
        right = self._rights.get(key)
        if right is None:
            right = self._rights[key] = _Right()
            if len(self._rights) > _MAX_RIGHTS:
                self._rights.popitem(last=False)
        self._rights.move_to_end(key)
        age_s = time.monotonic() - right.looked_s
        if right.error is not None and age_s < _ERROR_S:
            raise right.error.with_traceback(None)
        is_there = right.model is not None and self._is_kept(right.model)
        if (not is_there or age_s >= RIGHT_RECHECK_S) and not right.is_looking:
            self._begin(right, partial(self._look, uri, name, check), name, store)
        return right if is_there and age_s < RIGHT_LIFETIME_S else None

    def _check_right(self, tenant: TenantSettings, is_user: bool, uri: str) -> None:
        """Refuse what a tenant may not name.

        Raises:
            RejectedError: ``forbidden-uri``.
        """
        name = self._normalised(uri)
        if not self._users_roots:
            failure = forbidden(tenant, (name,), "")
            if failure is not None:
                raise RejectedError(failure.code, f"model {failure.message}", cure=failure.cure)
        elif not (is_user and name.startswith(self._users_roots)):
            where = ", ".join(self._users_roots)
            raise RejectedError(
                "forbidden-uri",
                f"model {shown(name)}: this server reads as the job's user, in {where} alone",
                cure=f"give the job an HDFS token (docs/security.md), and {USERS_CURE}",
            )

    def _is_kept(self, model: _Model) -> bool:
        with self._lock:
            if self._by_digest.get(model.digest) is not model:
                return False
            self._by_digest.move_to_end(model.digest)
            return True

    def _begin(self, right: _Right, look: Callable[[Store], _Model], name: str, store: Store | None) -> None:
        """Have a thread look at a model for a principal; what another one has read now is waited for."""
        if name in self._reading:
            return
        with self._lock:
            is_known = any(known == name for known, _ in self._by_stamps)
        if not is_known:
            self._reading.add(name)
        right.is_looking = True
        self._storage.look_at_model(look, partial(self._looked, right, name), store)

    def _looked(self, right: _Right, name: str, found: Any, took_s: float) -> None:
        self._reading.discard(name)
        right.is_looking = False
        right.looked_s = time.monotonic()
        right.model = right.error = None
        if isinstance(found, _Model):
            right.model = found
        elif isinstance(found, AccelError):
            right.error = found
        else:
            logger.error("a model could not be read", exc_info=found)
            right.error = StorageError(f"model {shown(name)}: {failure_of(found).message}")

    # In threads of storage

    def _look(self, uri: str, name: str, check: Callable[[str], None], store: Store) -> _Model:
        """The model, as whoever `store` reads for may read it now."""
        with store.opened(uri):  # HDFS looks at the right to read when a file is opened.
            stamp = store.stamp(uri)
        self._check_size(uri, stamp.n_bytes)
        with self._lock:
            known = [
                (stamps, model)
                for (other, stamps), model in self._by_stamps.items()
                if other == name and stamps[0] == stamp and self._by_digest.get(model.digest) is model
            ]
        for stamps, model in known:
            if self._stamps(uri, list(model.files), check, store) == stamps:
                return model
        return self._read(uri, name, check, store, stamp)

    def _stamps(
        self, uri: str, names: list[str], check: Callable[[str], None], store: Store
    ) -> tuple[Stamp, ...]:
        """The stamps of a model's files, each opened."""
        stamps = []
        for each in names:
            place = _beside(uri, each)
            check(place)
            with store.opened(place):
                stamps.append(store.stamp(place))
        return tuple(stamps)

    def _read(self, uri: str, name: str, check: Callable[[str], None], store: Store, stamp: Stamp) -> _Model:
        files: dict[str, _Memory] = {}
        try:
            files[""] = self._read_file(uri, stamp, store)
            names = ["", *model_facts(memoryview(files[""].map()), shown(uri)).external_files]
            stamps = [stamp]
            for each in names[1:]:
                place = _beside(uri, each)
                check(place)
                stamps.append(store.stamp(place))
                self._check_size(uri, sum(one.n_bytes for one in stamps))
                files[each] = self._read_file(place, stamps[-1], store)
            if self._stamps(uri, names, check, store) != tuple(stamps):
                raise StorageError(f"{shown(uri)}: it was changed while it was read", transient=True)
            digest = digest_of({each: file.map() for each, file in files.items()})  # type: ignore[misc]
        except BaseException:
            for file in files.values():
                file.close()
            raise
        return self._keep(name, tuple(stamps), _Model(digest, files))

    def _read_file(self, uri: str, stamp: Stamp, store: Store) -> _Memory:
        memory = _Memory(stamp.n_bytes)
        try:
            if stamp.n_bytes:
                with memoryview(memory.map()) as view:
                    store.read_into(uri, view)
        except BaseException:
            memory.close()
            raise
        return memory

    def _keep(self, name: str, stamps: tuple[Stamp, ...], model: _Model) -> _Model:
        """Keep a model, and let those go that were used longest ago."""
        with self._lock:
            same = self._by_digest.get(model.digest)
            if same is not None:
                model.close()
                model = same
            self._by_digest[model.digest] = model
            self._by_digest.move_to_end(model.digest)
            n_bytes = sum(each.n_bytes for each in self._by_digest.values())
            while n_bytes > self._kept_bytes and len(self._by_digest) > 1:
                _, old = self._by_digest.popitem(last=False)
                n_bytes -= old.n_bytes
                old.close()
            self._by_stamps[name, stamps] = model
            self._by_stamps = {
                key: each for key, each in self._by_stamps.items() if self._by_digest.get(each.digest) is each
            }
        return model

    def _check_size(self, uri: str, n_bytes: int) -> None:
        if n_bytes > self._max_bytes:
            raise RejectedError(
                "model-too-large",
                f"model {shown(uri)}: {n_bytes} bytes, at most {self._max_bytes} are read",
                cure=f"raise max_model_bytes of the server to {n_bytes} or more",
            )


def _beside(uri: str, name: str) -> str:
    """The URI of a file by its path from a model's folder; of the model itself where that is empty."""
    return posixpath.join(uri.rpartition("/")[0], name) if name else uri
