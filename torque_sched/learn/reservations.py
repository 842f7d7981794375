"""Nodes kept for somebody for a time, as administrators and the grid's site service make them while we run.

They stand in the history file, so every process of this host sees the same: the daemon reads them in each
cycle, ``torque-sched reserve`` writes them, and the site service holds nodes here for jobs that other sites
bring. A *hold* is a reservation with a lease: not committed in time, it is nothing any more, whoever died.
The lease runs on this host's monotonic clock, and a boot ends it, so no change of the date prolongs it.

Every change is one transaction that looks for overlaps and writes: of two that want the same node at the same
time only one gets it. A row is never changed by another name or token than its own.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from torque_sched.errors import ConfigError, StartupError
from torque_sched.learn.schema import check_files, open_file
from torque_sched.learn.unreadable import RowForm, UnreadableRows
from torque_sched.model.cluster import NodeName
from torque_sched.model.snapshot import Reservation

GRID_PREFIX = "grid:"
"""Names of holds begin so; an administrator's may not."""

_KEEP_PAST_S = 7 * 86400.0
_MAX = 10_000


def boot_id() -> str:
    """Which boot of this host this is; empty where the kernel does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class KeptReservation:
    """One reservation as it is kept.

    Attributes:
        nodes: whole nodes.
        start_s, end_s: seconds since the epoch, half-open.
        users: who may use them; nobody: maintenance.
        made_by: who made it.
        token: of the grid; None: an administrator's.
        lease_until_s: on the host's monotonic clock; None: committed.
        boot_id: the boot that clock belongs to.
    """

    name: str
    nodes: frozenset[NodeName]
    start_s: float
    end_s: float
    users: frozenset[str] = frozenset()
    made_by: str = ""
    made_s: float = 0.0
    token: str | None = None
    lease_until_s: float | None = None
    boot_id: str = ""

    def value(self) -> Reservation:
        """As policies want it."""
        return Reservation(self.name, self.nodes, self.start_s, self.end_s, self.users)


def overlapping(wanted: Reservation, others: Iterable[Reservation]) -> Reservation | None:
    """The first of the others that has one of the nodes at one of the times."""
    for other in others:
        if other.start_s < wanted.end_s and wanted.start_s < other.end_s and other.nodes & wanted.nodes:
            return other
    return None


class Reservations:
    """The reservations of one scheduler; any number of processes may use one each.

    Args:
        db: an open history file.
        clock: the host's monotonic clock, in seconds.
        boot: which boot it belongs to.
        unreadable: takes in rows that cannot be read; None: they are only logged.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        clock: Callable[[], float] = time.monotonic,
        boot: str | None = None,
        unreadable: UnreadableRows | None = None,
    ) -> None:
        self._db, self._clock = db, clock
        self._unreadable = unreadable or UnreadableRows()
        self._boot = boot_id() if boot is None else boot

    @classmethod
    def open(
        cls, path: Path, clock: Callable[[], float] = time.monotonic, boot: str | None = None
    ) -> Reservations:
        """The reservations in a history file, which is created if need be.

        Raises:
            StartupError: the file cannot be used.
        """
        check_files(path)
        is_new = not path.exists()
        place = path.parent if is_new else path
        if place.exists() and not os.access(place, os.W_OK):
            raise StartupError(
                f"{place} cannot be written", cure="run this as the scheduler's user, or as root"
            )
        db = open_file(path)
        if is_new and os.geteuid() == 0:
            _give_away(path)
        return cls(db, clock, boot)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StartupError(
                f"the reservations cannot be read or written ({error})",
                cure="run this as the scheduler's user or as root, and see the space of its folder",
            ) from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._reported():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    # -- looking

    def live(self, now_s: float) -> tuple[KeptReservation, ...]:
        """Those that are not over, without holds whose lease ran out; soonest first.

        Raises:
            StartupError: the file cannot be read.
        """
        with self._reported():
            rows = RESERVATIONS.read(
                self._db, self._unreadable, "WHERE end_s > ? ORDER BY start_s, name", (now_s,)
            )
            return tuple(each for each in rows if self._holds(each))

    def _holds(self, each: KeptReservation) -> bool:
        if each.lease_until_s is None:
            return True
        return each.boot_id == self._boot and self._clock() < each.lease_until_s

    # -- an administrator's

    def add(self, wanted: KeptReservation, now_s: float, fixed: Iterable[Reservation] = ()) -> None:
        """Keep nodes.

        Args:
            wanted: what.
            now_s: seconds since the epoch.
            fixed: reservations that stand elsewhere (the settings).

        Raises:
            ConfigError: over already, the name is taken, or another has one of the nodes at that time.
            StartupError: the file cannot be written.
        """
        if wanted.end_s <= now_s or wanted.end_s <= wanted.start_s:
            raise ConfigError(f"reservation {wanted.name!r} ends before it begins, or before now")
        if not wanted.nodes:
            raise ConfigError(f"reservation {wanted.name!r} names no node")
        if wanted.name.startswith(GRID_PREFIX) and wanted.token is None:
            raise ConfigError(
                f"reservation {wanted.name!r}", cure=f"names in {GRID_PREFIX} are the grid's own"
            )
        with self._transaction():
            self._tidy(now_s)
            others = [each.value() for each in self.live(now_s)] + list(fixed)
            if any(each.name == wanted.name for each in others):
                raise ConfigError(
                    f"there is a reservation {wanted.name!r}", cure="choose another name, or delete it first"
                )
            other = overlapping(wanted.value(), others)
            if other is not None:
                nodes = ",".join(sorted(other.nodes & wanted.nodes))
                raise ConfigError(
                    f"reservation {wanted.name!r} overlaps {other.name!r} on {nodes}",
                    cure="choose other nodes or times, or delete that one first",
                )
            if len(others) >= _MAX:
                raise ConfigError(f"there are {len(others)} reservations", cure="delete some first")
            self._write(wanted)

    def delete(self, name: str) -> bool:
        """End a reservation; False: there is none of that name.

        Raises:
            StartupError: the file cannot be written.
        """
        with self._transaction():
            return bool(self._db.execute("DELETE FROM reservations WHERE name = ?", (name,)).rowcount)

    # -- the grid's: hold, then commit or release; all by token and as often as one likes

    def hold(
        self,
        token: str,
        nodes: Iterable[NodeName],
        start_s: float,
        end_s: float,
        *,
        lease_s: float,
        now_s: float,
        users: frozenset[str] = frozenset(),
        made_by: str = "",
        fixed: Iterable[Reservation] = (),
    ) -> bool:
        """Hold nodes until the lease ends; False: another reservation has one of them, or there is none.

        Only reservations are looked at. Whether jobs leave the nodes free is for the caller to see, under the
        cycle's lock. A token that holds or has just this already is answered True, and its lease is not
        prolonged; one that has something else, False.

        Raises:
            StartupError: the file cannot be written.
        """
        wanted = KeptReservation(
            f"{GRID_PREFIX}{token}", frozenset(nodes), start_s, end_s, users, made_by, now_s, token,
            self._clock() + lease_s, self._boot,
        )  # fmt: skip
        with self._transaction():
            self._tidy(now_s)
            live = self.live(now_s)
            own = next((each for each in live if each.token == token), None)
            if own is not None:
                return (own.nodes, own.start_s, own.end_s) == (wanted.nodes, start_s, end_s)
            if not wanted.nodes or end_s <= max(now_s, start_s):
                return False
            if overlapping(wanted.value(), [*(each.value() for each in live), *fixed]) is not None:
                return False
            self._write(wanted)
        return True

    def commit(self, token: str, now_s: float) -> bool:
        """Make a hold stay until its end; False: there is none, or its lease ran out.

        Raises:
            StartupError: the file cannot be written.
        """
        with self._transaction():
            own = next((each for each in self.live(now_s) if each.token == token), None)
            if own is not None and own.lease_until_s is not None:
                self._write(replace(own, lease_until_s=None))
        return own is not None

    def release(self, token: str) -> bool:
        """Give up a hold, or what was committed; False: there is nothing of that token.

        Raises:
            StartupError: the file cannot be written.
        """
        with self._transaction():
            return bool(self._db.execute("DELETE FROM reservations WHERE token = ?", (token,)).rowcount)

    # -- writing

    def _tidy(self, now_s: float) -> None:
        """Drop what is long over, and holds whose lease ran out."""
        self._db.execute("DELETE FROM reservations WHERE end_s < ?", (now_s - _KEEP_PAST_S,))
        self._db.execute(
            "DELETE FROM reservations WHERE lease_until_s IS NOT NULL "
            "AND (boot_id != ? OR lease_until_s <= ?)",
            (self._boot, self._clock()),
        )

    def _write(self, each: KeptReservation) -> None:
        values = (
            each.name, json.dumps(sorted(each.nodes)), each.start_s, each.end_s,
            json.dumps(sorted(each.users)), each.made_by, each.made_s, each.token, each.lease_until_s,
            each.boot_id,
        )  # fmt: skip
        columns, marks = ", ".join(RESERVATIONS.columns), ", ".join("?" * len(values))
        self._db.execute(f"INSERT OR REPLACE INTO reservations ({columns}) VALUES ({marks})", values)


def _give_away(path: Path) -> None:
    """Let a file that root made belong to the owner of its folder, the scheduler's user."""
    owner = path.parent.stat()
    for suffix in ("", "-wal", "-shm"):
        with suppress(OSError):
            # By the open file: that owner may have put another one in its place.
            fd = os.open(path.with_name(path.name + suffix), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                if stat.S_ISREG(status.st_mode) and status.st_uid == 0 and status.st_nlink == 1:
                    os.chown(f"/proc/self/fd/{fd}", owner.st_uid, owner.st_gid)
            finally:
                os.close(fd)


def _reservation(
    name: str, nodes: str, start_s: float, end_s: float, users: str, made_by: str, made_s: float,
    token: str | None, lease_until_s: float | None, boot: str,
) -> KeptReservation:  # fmt: skip
    names, who = json.loads(nodes), json.loads(users)
    if not (_are_texts(names) and _are_texts(who)):
        raise ValueError("nodes or users are no list of names")
    return KeptReservation(
        name, frozenset(map(NodeName, names)), start_s, end_s, frozenset(who), made_by, made_s, token,
        lease_until_s, boot,
    )  # fmt: skip


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


RESERVATIONS = RowForm(
    "reservations",
    ("name", "nodes", "start_s", "end_s", "users", "made_by", "made_s", "token", "lease_until_s", "boot_id"),
    _reservation,
)
