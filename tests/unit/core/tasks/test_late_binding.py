"""One node's late binding: who gets the GPU, for how long, and what mappers that lie, hang or die cost."""

from __future__ import annotations

import pytest

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
    ClusterFiguresReceived,
    ExpireClaim,
    GrantClaim,
    IoMeasured,
    LateBindingSettings,
    PlacesChanged,
    RefuseClaim,
    ResumedClaim,
)
from yarn_accel.core.tasks.learning import FigureStore
from yarn_accel.core.tasks.values import Form
from yarn_accel.errors import ConfigError

BOTH = (Form.CPU, Form.GPU)


def known(**forms: tuple[float, float]) -> FigureStore:
    """Figures of jobs of both forms: user_name -> (read_s, compute_s) on a GPU; on a core ten times that."""
    return FigureStore.from_document(
        {
            "version": 1,
            "applications": {
                name.replace("_", "/"): [
                    {"form": "gpu", "split_bytes": 1e8 * read_s, "read_s": read_s, "compute_s": compute_s},
                    {"form": "cpu", "split_bytes": 1e8 * read_s, "read_s": 0, "compute_s": 10 * compute_s},
                ]
                for name, (read_s, compute_s) in forms.items()
            },
        }
    )


class Node:
    """A binder, its time, and the mappers that are alive."""

    def __init__(self, figures: FigureStore | None = None, **settings: object) -> None:
        values = {"node": "w1", "cores": 3, "gpus": (0,), "bandwidth_bytes_per_s": 1e8, "policy": "hdas"}
        self.binder = LateBinder(LateBindingSettings(**{**values, **settings}), figures)
        self.now_s = 0.0
        self.alive: set[str] = set()
        self.granted: dict[str, GrantClaim] = {}
        self.refused: dict[str, str] = {}
        self.expired: list[str] = []

    def apply(self, event: object) -> None:
        for command in self.binder.apply(event):
            if isinstance(command, GrantClaim):
                self.granted[command.claim] = command
            elif isinstance(command, RefuseClaim):
                self.refused[command.claim] = command.code
                self.alive.discard(command.claim)
            else:
                assert isinstance(command, ExpireClaim)
                self.expired.append(command.claim)
                self.alive.discard(command.claim)
        self.binder.validate()

    def claim(self, claim: str, job: str = "", user: str = "", forms=BOTH, resumed=None, gpus=1) -> str:
        """``alice.1``: a claim of alice's."""
        user = user or claim.partition(".")[0]
        request = ClaimRequest(job or f"job_{user}", job or "a", f"attempt_{claim}", forms, gpus)
        self.alive.add(claim)
        self.apply(ClaimOpened(claim, user, request, self.now_s, resumed))
        return self.form(claim)

    def form(self, claim: str) -> str:
        return self.granted[claim].form.value if claim in self.granted else ""

    def end(self, claim: str, read_bytes: float = 0, read_s: float = 0) -> None:
        self.alive.discard(claim)
        self.apply(ClaimEnded(claim, True, read_bytes, read_s, self.now_s))

    def pass_time(self, seconds: float, reading: tuple[str, ...] = ()) -> None:
        """Mappers that are alive renew."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += min(0.5, until_s - self.now_s)
            for claim in sorted(self.alive):
                self.apply(ClaimRenewed(claim, claim in reading, self.now_s))
            self.apply(ClaimTimerTicked(self.now_s))


def test_who_waits_longest_for_the_gpu_is_not_who_gets_it_but_whom_the_policy_chooses():
    """alice's tasks read, bob's compute: while somebody reads on the node, bob's is delayed less."""
    node = Node(known(alice_a=(8, 2), bob_a=(0, 10)), cores=1)
    assert node.claim("alice.1") == "gpu"
    assert node.claim("alice.2") == ""
    node.pass_time(1)
    assert node.claim("bob.1") == ""
    node.apply(IoMeasured(9e7, node.now_s, node.now_s))
    node.end("alice.1")
    node.apply(IoMeasured(9e7, node.now_s, node.now_s))
    assert (node.form("bob.1"), node.form("alice.2")) == ("gpu", "")
    decision = node.binder.explain(node.now_s)["decisions"][0]
    delays = {each["job"]: each["predicted_delay"] for each in decision["candidates"]["gpu"]}
    assert delays == {"bob/job_bob": 1.0, "alice/job_alice": pytest.approx(1.0)}


def test_a_name_that_ran_elsewhere_is_not_measured_first_here():
    store = known(alice_a=(8, 2))
    elsewhere = store.measured_last(1)
    alone, informed = Node(), Node()
    informed.apply(ClusterFiguresReceived(informed.binder.figures.believe_others(elsewhere, 1000.0), 0.0))
    for node in (alone, informed):
        node.claim("alice.1")
        node.claim("alice.2")
    # The first one has the node for itself while it is measured; nobody waits where others have measured.
    assert (alone.form("alice.1"), alone.form("alice.2")) == ("gpu", "")
    assert "measured first" in alone.granted["alice.1"].reason
    assert (informed.form("alice.1"), informed.form("alice.2")) == ("gpu", "cpu")
    # They may also come while mappers wait already.
    names = alone.binder.figures.believe_others(elsewhere, 1000.0)
    alone.apply(ClusterFiguresReceived(names, alone.now_s))
    alone.end("alice.1")
    assert alone.form("alice.2") == "gpu"
    for node in (alone, informed):
        node.binder.validate()


def test_the_predicted_delay_of_every_candidate_is_kept_with_the_decision():
    node = Node(known(alice_a=(8, 2), bob_a=(0, 10)), cores=1)
    for claim in ("carol.1", "bob.1", "alice.1"):
        node.claim(claim, forms=(Form.CPU,) if claim == "carol.1" else BOTH)
    node.apply(IoMeasured(9e7, node.now_s, node.now_s))
    node.pass_time(1, reading=("carol.1",))
    node.apply(IoMeasured(9e7, node.now_s, node.now_s))
    node.end("carol.1")
    gpu = node.binder.explain(node.now_s)["decisions"][0]["candidates"]["gpu"]
    assert [each["job"] for each in gpu] == ["bob/job_bob", "alice/job_alice"]
    assert gpu[1]["predicted_delay"] > gpu[0]["predicted_delay"] == 1.0
    assert node.granted["bob.1"].reason.startswith("(a) least delay")


def test_a_mapper_waits_no_longer_than_is_said_and_computes_on_its_core_then():
    node = Node(known(alice_a=(0, 1)), cores=1, max_wait_s=30.0)
    node.claim("alice.1")
    node.claim("alice.2")
    node.pass_time(29.5)
    assert node.form("alice.2") == ""
    node.pass_time(1)
    assert node.form("alice.2") == "cpu"
    assert "no place came free" in node.granted["alice.2"].reason


def test_a_mapper_that_needs_a_gpu_is_refused_in_time_and_where_there_is_none_at_once():
    node = Node(known(alice_a=(0, 1)), max_wait_s=5.0)
    assert node.claim("alice.1", forms=(Form.GPU,)) == "gpu"
    node.claim("alice.2", forms=(Form.GPU,))
    node.pass_time(6)
    assert node.refused == {"alice.2": "no-gpu-in-time"}
    node.claim("bob.1", forms=(Form.GPU,), gpus=2)
    assert node.refused["bob.1"] == "no-gpu"


def test_where_there_is_no_gpu_nobody_waits_and_nothing_is_measured_first():
    node = Node(cores=1, gpus=())
    assert [node.claim(f"alice.{number}") for number in range(3)] == ["cpu"] * 3
    assert node.granted["alice.2"].reason == "this node has no GPU for mappers"


@pytest.mark.parametrize("way", ["killed", "stopped", "ended"])
def test_a_place_is_free_within_five_seconds_however_its_holder_ends(way):
    node = Node(known(alice_a=(0, 100), bob_a=(0, 100)), cores=1, max_wait_s=100.0)
    node.claim("alice.1")
    node.claim("bob.1")
    node.pass_time(10)
    if way == "killed":
        node.alive.discard("alice.1")
        node.apply(ClaimLost("alice.1", node.now_s))
        assert node.form("bob.1") == "gpu"
    elif way == "ended":
        node.end("alice.1")
        assert node.form("bob.1") == "gpu"
    else:
        node.alive.discard("alice.1")
        node.pass_time(4.5)
        assert (node.expired, node.form("bob.1")) == (["alice.1"], "gpu")


def test_a_stopped_mapper_that_waits_does_not_get_a_place():
    node = Node(known(alice_a=(0, 9)), cores=1)
    node.claim("alice.1")
    node.claim("alice.2")
    node.alive.discard("alice.2")
    node.pass_time(4)
    node.end("alice.1")
    assert (node.form("alice.2"), node.expired) == ("", ["alice.2"])


def test_time_in_which_the_agent_stood_still_counts_against_nobody():
    node = Node(known(alice_a=(0, 9)))
    node.claim("alice.1")
    node.pass_time(1)
    node.now_s += 60
    node.apply(ClaimTimerTicked(node.now_s))
    assert node.expired == []
    node.alive.discard("alice.1")
    node.pass_time(4.5)
    assert node.expired == ["alice.1"]


def test_whoever_claims_the_job_of_another_user_gets_a_place_of_his_own():
    """mallory names alice's job: alice's counts, figures and attempts are not touched."""
    node = Node(known(alice_a=(0, 10), mallory_a=(0, 10)), cores=9, gpus=(0, 1))
    request = ClaimRequest("job_1", "a", "attempt_1", BOTH)
    for claim, user in (("alice.1", "alice"), ("m", "mallory")):
        node.alive.add(claim)
        node.apply(ClaimOpened(claim, user, request, node.now_s))
    jobs = node.binder.explain(node.now_s)["jobs"]
    assert (jobs["alice/job_1"]["n_alloc"], jobs["mallory/job_1"]["n_alloc"]) == (1, 1)
    node.pass_time(1)
    node.end("m", 1e9, 0.5)
    beliefs = node.binder.figures.beliefs()
    names = {each.name: each.n_measured for each in beliefs if each.form is Form.GPU}
    assert names == {"alice/a": 1, "mallory/a": 2}
    assert "alice.1" in node.binder.claims


def test_a_thousand_claims_of_one_user_leave_the_others_their_places():
    node = Node(max_claims_per_user=64, max_jobs_per_user=16, policy="fifo")
    for i in range(1000):
        node.claim(f"mallory.{i}", f"job_{i % 40}")
    assert len(node.binder.claims) == 64
    assert set(node.refused.values()) == {"too-many-claims", "too-many-jobs"}
    node.claim("alice.1")
    assert "alice.1" in node.binder.claims
    node.pass_time(40)
    assert node.form("alice.1") == "cpu"


def test_a_second_claim_of_an_attempt_is_refused_and_so_are_forms_that_differ_in_a_job():
    node = Node()
    node.claim("alice.1", "job_1")
    for claim, attempt, forms in (("x", "attempt_alice.1", BOTH), ("y", "attempt_y", (Form.CPU,))):
        node.apply(ClaimOpened(claim, "alice", ClaimRequest("job_1", "job_1", attempt, forms), node.now_s))
    assert node.refused == {"x": "already-claimed", "y": "other-forms"}


def test_a_new_agent_hears_first_who_holds_a_place_and_gives_out_what_is_left():
    figures = known(alice_a=(0, 9), bob_a=(0, 9))
    node = Node(figures, cores=2, gpus=(0, 1))
    node.binder = LateBinder(node.binder.settings, figures, grants_from_s=3.0)
    node.claim("bob.1")
    node.claim("alice.1", resumed=ResumedClaim(Form.GPU, (0,)))
    assert (node.form("alice.1"), node.form("bob.1")) == ("gpu", "")
    node.pass_time(3.5)
    assert node.granted["bob.1"].gpus == (1,)
    node.end("alice.1")
    assert [each.n_measured for each in node.binder.figures.beliefs() if each.name == "alice/a"] == [1, 1]


def test_a_mapper_that_connects_again_has_one_claim():
    node = Node(known(alice_a=(0, 9)))
    node.claim("alice.1")
    node.claim("again", user="alice", resumed=ResumedClaim(Form.GPU, (0,)))
    request = ClaimRequest("job_alice", "a", "attempt_alice.1", BOTH)
    node.apply(ClaimOpened("third", "alice", request, node.now_s, ResumedClaim(Form.GPU, (0,))))
    assert node.expired == ["alice.1"]
    assert set(node.binder.claims) == {"again", "third"}


def test_counts_of_the_cluster_decide_while_they_are_young():
    """bob has got more GPUs on other nodes, so alice is first here; without news they are equal."""

    def first(age_s: float) -> str:
        node = Node(known(alice_a=(0, 9), bob_a=(0, 9)), cores=1, counts_max_age_s=10.0)
        node.claim("carol.1", forms=(Form.CPU,))
        node.claim("bob.1")
        node.claim("alice.1")
        counts = {"bob/job_bob": ClusterCount(7, 7, 100.0), "alice/job_alice": ClusterCount(1, 1, 50.0)}
        node.apply(ClusterCountsReceived(counts, node.now_s))
        node.pass_time(age_s)
        node.end("carol.1")
        shown = node.binder.explain(node.now_s)
        assert shown["counts_age_s"] == age_s
        return next(claim for claim in ("alice.1", "bob.1") if node.form(claim) == "gpu")

    assert first(9.0) == "alice.1"
    assert first(11.0) == "bob.1"


def test_figures_are_learned_on_the_first_tasks_of_each_form_and_serve_the_next_job_of_that_name():
    node = Node()
    assert node.claim("alice.1") == "gpu"
    assert "measured first" in node.granted["alice.1"].reason
    node.pass_time(4, reading=("alice.1",))
    node.end("alice.1", 4e8, 3.0)
    node.claim("alice.2")
    node.pass_time(1)
    assert node.form("alice.2") == "cpu"
    node.pass_time(20)
    node.end("alice.2", 4e8, 4.0)
    believed = {each.form: (each.read_s, each.compute_s) for each in node.binder.figures.beliefs()}
    assert believed[Form.GPU] == (3.0, pytest.approx(1.0))
    assert believed[Form.CPU][0] == 4.0
    node.claim("alice.3", "job_9")
    assert "measured first" in node.granted["alice.3"].reason  # another name
    request = ClaimRequest("job_10", "a", "attempt_4", BOTH)
    node.pass_time(1)
    node.end("alice.3", 1.0, 0.1)
    node.apply(ClaimOpened("alice.4", "alice", request, node.now_s))
    assert "measured first" not in node.granted["alice.4"].reason


def test_a_mapper_says_no_longer_reading_than_it_had_the_place():
    node = Node()
    node.claim("alice.1")
    node.pass_time(2)
    node.end("alice.1", 1e9, 1e6)
    (belief,) = node.binder.figures.beliefs()
    assert (belief.read_s, belief.compute_s) == (2.0, 0.0)


def test_a_gpu_that_fails_is_not_given_out_again_and_its_holder_keeps_its_place():
    node = Node(known(alice_a=(0, 9)), cores=4, gpus=(0, 1))
    node.claim("alice.1")
    node.apply(PlacesChanged((1,), "", node.now_s))
    node.claim("alice.2")
    assert (node.granted["alice.1"].gpus, node.form("alice.2")) == ((0,), "cpu")
    node.end("alice.1")
    node.claim("alice.3")
    assert node.granted["alice.3"].gpus == (1,)


def test_jobs_without_claims_are_forgotten_after_a_while():
    node = Node(keep_apps_s=60.0)
    node.claim("alice.1")
    node.end("alice.1")
    node.claim("bob.1")
    node.pass_time(50)
    assert set(node.binder.own_counts(node.now_s)) == {"alice/job_alice", "bob/job_bob"}
    node.pass_time(20)
    assert set(node.binder.own_counts(node.now_s)) == {"bob/job_bob"}


def test_news_of_claims_that_are_gone_change_nothing():
    node = Node()
    for event in (ClaimRenewed("x", True, 1.0), ClaimLost("x", 2.0), ClaimEnded("x", True, 1, 1, 3.0)):
        node.apply(event)
    assert node.binder.claims == {}


def test_an_unknown_policy_is_refused_when_the_binder_is_made():
    with pytest.raises(ConfigError, match="no policy is called"):
        Node(policy="best")
