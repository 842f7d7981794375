"""Mappers that ask, read, compute, stop, wake, die, lie and connect again: places add up and become free."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.examples import examples
from yarn_accel.core.late_binding_reports import ClusterCount
from yarn_accel.core.tasks.late_binding import LateBinder
from yarn_accel.core.tasks.late_binding.values import (
    ClaimEnded,
    ClaimLost,
    ClaimOpened,
    ClaimRenewed,
    ClaimRequest,
    ClaimTimerTicked,
    ClusterCountsReceived,
    ExpireClaim,
    GrantClaim,
    IoMeasured,
    LateBindingSettings,
    PlacesChanged,
    RefuseClaim,
    ResumedClaim,
)
from yarn_accel.core.tasks.policies import POLICIES
from yarn_accel.core.tasks.values import AppId, Form

LEASE_S, MAX_WAIT_S, TICK_S = 3.0, 12.0, 0.5
FORMS = ((Form.CPU,), (Form.GPU,), (Form.CPU, Form.GPU))
indices = st.integers(0, 1000)


class LateBindingMachine(RuleBasedStateMachine):
    """The mappers are the truth: who lives, who is stopped, what each was given."""

    @initialize(policy=st.sampled_from(sorted(POLICIES)), cores=st.integers(1, 4), gpus=st.integers(0, 3))
    def start(self, policy: str, cores: int, gpus: int) -> None:
        self.settings = LateBindingSettings(
            "w1",
            cores,
            tuple(range(gpus)),
            1e8,
            policy=policy,
            max_wait_s=MAX_WAIT_S,
            lease_s=LEASE_S,
            keep_apps_s=20.0,
            max_claims=12,
            max_claims_per_user=6,
            max_jobs_per_user=2,
        )
        self.binder = LateBinder(self.settings)
        self.now_s = 0.0
        self.n = 0
        self.gpus = tuple(range(gpus))
        self.live: dict[str, ClaimOpened] = {}
        self.stopped: dict[str, float] = {}
        self.granted: dict[str, GrantClaim] = {}
        self.gone: dict[str, GrantClaim] = {}
        for user in ("alice", "bob", "mallory"):
            for forms in (FORMS[2], FORMS[2], FORMS[0]):
                self.asks(user, 1 + len(forms), forms, 1)

    def apply(self, event: object) -> None:
        for command in self.binder.apply(event):
            if isinstance(command, GrantClaim):
                assert command.claim in self.live, "a place for nobody"
                assert command.claim not in self.granted, "two places for one"
                self.check_grant(command)
                self.granted[command.claim] = command
            elif isinstance(command, RefuseClaim):
                assert command.claim not in self.granted
                self.forget(command.claim)
            else:
                assert isinstance(command, ExpireClaim)
                self.forget(command.claim)
        self.binder.validate()
        assert set(self.binder.claims) == set(self.live)

    def check_grant(self, grant: GrantClaim) -> None:
        """What the policy gives out is there; what is late or was held before may be too much."""
        request = self.live[grant.claim].request
        assert grant.form in request.forms
        is_free_for_all = "no place came free" in grant.reason or "no GPU" in grant.reason
        if self.live[grant.claim].resumed is not None or is_free_for_all:
            return
        assert len(self.granted) < self.settings.cores
        held = [gpu for claim, each in self.granted.items() for gpu in each.gpus if claim in self.live]
        assert len(held) + len(grant.gpus) <= len(self.gpus)
        assert set(grant.gpus) <= set(self.gpus)

    def forget(self, claim: str) -> None:
        self.live.pop(claim)
        self.stopped.pop(claim, None)
        if claim in self.granted:
            self.gone[claim] = self.granted.pop(claim)

    def one_of(self, index: int) -> str | None:
        return sorted(self.live)[index % len(self.live)] if self.live else None

    def open(self, event: ClaimOpened) -> None:
        self.live[event.claim] = event
        self.apply(event)

    @rule(
        user=st.sampled_from(["alice", "bob", "mallory"]),
        job=st.integers(1, 3),
        forms=st.sampled_from(FORMS),
        gpus=st.integers(1, 2),
    )
    def asks(self, user: str, job: int, forms: tuple[Form, ...], gpus: int) -> None:
        self.n += 1
        request = ClaimRequest(f"job_{job}", f"name{job % 2}", f"attempt_{self.n}", forms, gpus)
        self.open(ClaimOpened(f"c{self.n}", user, request, self.now_s))

    @rule(index=indices)
    def asks_twice(self, index: int) -> None:
        """With an attempt that has a claim: refused, and the first one stays."""
        if (claim := self.one_of(index)) is not None:
            self.n += 1
            first = self.live[claim]
            self.open(ClaimOpened(f"c{self.n}", first.user, first.request, self.now_s))
            assert f"c{self.n}" not in self.live
            assert claim in self.live

    @rule(index=indices, is_done=st.booleans(), n_bytes=st.sampled_from([0.0, 1e6, 1e18]))
    def ends(self, index: int, is_done: bool, n_bytes: float) -> None:
        if (claim := self.one_of(index)) is not None and claim not in self.stopped:
            self.forget(claim)
            self.gone.pop(claim, None)
            self.apply(ClaimEnded(claim, is_done, n_bytes, n_bytes / 1e6, self.now_s))

    @rule(index=indices)
    def is_killed(self, index: int) -> None:
        if (claim := self.one_of(index)) is not None:
            self.forget(claim)
            self.gone.pop(claim, None)
            self.apply(ClaimLost(claim, self.now_s))

    @rule(index=indices)
    def is_stopped(self, index: int) -> None:
        if (claim := self.one_of(index)) is not None:
            self.stopped.setdefault(claim, self.now_s)

    @rule(index=indices)
    def is_stopped_for_long(self, index: int) -> None:
        self.is_stopped(index)
        self.time_passes(9, is_reading=False)
        assert not self.stopped

    @rule(index=indices)
    def goes_on(self, index: int) -> None:
        """One whose lease ended connects again and says what it holds."""
        self.stopped.clear()
        if self.gone:
            grant = self.gone.pop(sorted(self.gone)[index % len(self.gone)])
            self.n += 1
            forms = FORMS[0] if grant.form is Form.CPU else FORMS[1]
            request = ClaimRequest("job_9", "again", f"attempt_{self.n}", forms, max(1, len(grant.gpus)))
            resumed = ResumedClaim(grant.form, grant.gpus)
            self.open(ClaimOpened(f"c{self.n}", "bob", request, self.now_s, resumed))

    @rule(n_ticks=st.integers(1, 60), is_reading=st.booleans())
    def time_passes(self, n_ticks: int, is_reading: bool) -> None:
        for _ in range(n_ticks):
            self.now_s += TICK_S
            for claim in sorted(self.live.keys() - self.stopped.keys()):
                if claim in self.live:
                    self.apply(ClaimRenewed(claim, is_reading, self.now_s))
            self.apply(ClaimTimerTicked(self.now_s))
        for claim, since_s in self.stopped.items():
            assert self.now_s - since_s <= 5.0, f"{claim} is stopped and keeps its place"
        for claim in self.live.keys() - self.granted.keys():
            waited_s = self.now_s - self.live[claim].now_s
            assert waited_s <= MAX_WAIT_S + TICK_S, f"{claim} waits for {waited_s} s"

    @rule(gap_s=st.floats(2, 1000))
    def the_agent_stands_still(self, gap_s: float) -> None:
        self.now_s += gap_s
        n_live = len(self.live.keys() & self.granted.keys())
        self.apply(ClaimTimerTicked(self.now_s))
        assert len(self.live.keys() & self.granted.keys()) >= n_live, "a lease ended in no time"
        self.stopped = dict.fromkeys(self.stopped, self.now_s)

    @rule(gpus=st.lists(st.integers(0, 3), unique=True, max_size=3))
    def gpus_come_and_go(self, gpus: list[int]) -> None:
        self.gpus = tuple(gpus)
        self.apply(PlacesChanged(self.gpus, "", self.now_s))

    @rule(n_alloc=st.integers(0, 99), age_s=st.floats(0, 1e4), io=st.floats(0, 1e9))
    def news_come(self, n_alloc: int, age_s: float, io: float) -> None:
        app = AppId("alice/job_1")
        self.apply(ClusterCountsReceived({app: ClusterCount(n_alloc, n_alloc // 2, age_s)}, self.now_s))
        self.apply(IoMeasured(io, self.now_s, self.now_s))

    def teardown(self) -> None:
        """When all mappers have ended, nothing is held, waited for or remembered."""
        if not hasattr(self, "binder"):
            return
        for claim in sorted(self.live):
            if claim in self.live:
                self.forget(claim)
                self.apply(ClaimLost(claim, self.now_s))
        self.now_s += 1
        for _ in range(50):
            self.now_s += TICK_S
            self.apply(ClaimTimerTicked(self.now_s))
        shown = self.binder.explain(self.now_s)
        assert (shown["claims"], shown["jobs"]) == ([], {})


TestLateBinding = LateBindingMachine.TestCase
TestLateBinding.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
