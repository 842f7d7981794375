"""Whatever comes, goes, flaps, is lost, late or reported twice: orders make sense and all ends as wanted.

`VirtualCluster` holds the truth and checks each command, `validate()` runs after each event; when the noise
stops, the truth must become the target within bounded virtual time.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.examples import ALL, examples
from tests.unit.core.application import noise
from tests.unit.core.application.virtual_cluster import AGENT, QUICK, VirtualCluster
from yarn_accel.core.binding import make

POLICIES = ("paper", "weighted", "container")
seeds = st.integers(0, 2**32)


class ApplicationMachine(RuleBasedStateMachine):
    """Faults by rules, with traffic between them; `teardown` is the calm after it."""

    @initialize(policy=st.sampled_from(POLICIES), is_up=st.booleans())
    def start(self, policy, is_up):
        self.cluster = VirtualCluster(lambda: make(policy))
        noise.populate(self.cluster)
        if is_up:
            self.cluster.calm(3.0)
            self.cluster.assert_target_is_actual()

    @rule(what=st.sampled_from(list(noise.FAULTS)), seed=seeds)
    def happens(self, what, seed):
        what(self.cluster, random.Random(seed))

    @rule(seed=seeds, n=st.integers(1, 60))
    def traffic(self, seed, n):
        noise.make_noise(self.cluster, random.Random(seed), n)

    def teardown(self):
        if hasattr(self, "cluster"):
            noise.assert_calm_ends_well(self.cluster)


TestApplicationMachine = ApplicationMachine.TestCase
TestApplicationMachine.settings = settings(max_examples=examples(50), stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("seed", range(40 if ALL else 6))
def test_long_noise_ends_well(seed):
    """Longer stories than hypothesis tells; the same each time."""
    rng = random.Random(seed)
    cluster = VirtualCluster(lambda: make(POLICIES[seed % 3]))
    noise.populate(cluster)
    for _ in range(60):
        noise.make_noise(cluster, rng, rng.randint(0, 25))
        noise.make_noise(cluster, rng, 1, noise.FAULTS)
    noise.assert_calm_ends_well(cluster)


@pytest.mark.parametrize("seed", range(30 if ALL else 3))
def test_servers_go_when_nobody_needs_them_and_return_when_somebody_asks(seed):
    rng = random.Random(seed)
    cluster = VirtualCluster(lambda: make(POLICIES[seed % 3]), replace(QUICK, idle_release_s=8.0))
    noise.populate(cluster)
    faults = {what: n for what, n in noise.FAULTS.items() if what is not noise.an_admin_stops}
    for _ in range(20):
        noise.make_noise(cluster, rng, rng.randint(0, 25))
        noise.make_noise(cluster, rng, 1, {**faults, noise.tasks_come_or_go: 6})
    for is_wanted in (False, True, False, True):
        cluster.are_servers_wanted = is_wanted
        noise.assert_calm_ends_well(cluster)
        assert is_wanted or not cluster.endpoints


@pytest.mark.parametrize("seed", range(30 if ALL else 3))
def test_the_next_attempt_moves_nobody_when_nothing_else_changed(seed):
    """Whatever came before: once all is calm, the bindings survive the ApplicationMaster."""
    rng = random.Random(seed)
    cluster = VirtualCluster(lambda: make(POLICIES[seed % 3]))
    noise.populate(cluster)
    for i in range(9):
        cluster.add_node(f"m{i}", noise.RACKS[i % 2], is_accelerator=False)
    faults = {what: n for what, n in noise.FAULTS.items() if what is not noise.an_admin_stops}
    for _ in range(10):
        noise.make_noise(cluster, rng, rng.randint(0, 25))
        noise.make_noise(cluster, rng, 1, faults)
    noise.assert_calm_ends_well(cluster)
    before = dict(cluster.bound)
    for _ in range(2):
        cluster.start_attempt()
        cluster.calm(30.0)
        assert cluster.version >> 32 == cluster.attempt
        assert cluster.bound == before


@settings(max_examples=examples(20), deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    phase_s=st.floats(0.0, 1.0),
    stall_s=st.floats(0.0, 10_000.0),
    late=st.floats(0.0, 1.0),
)
def test_a_stall_alone_changes_nothing(policy, phase_s, stall_s, late):
    """Agents lost the master meanwhile and come back late, but in `recall_s`."""
    cluster = VirtualCluster(lambda: make(policy))
    noise.populate(cluster)
    cluster.calm(10.0)
    cluster.assert_target_is_actual()
    cluster.wait(phase_s)
    before = (cluster.version, cluster.n_containers)
    cluster.stall(stall_s)
    is_long = stall_s >= cluster.settings.silence_s
    cluster.spoken_s = cluster.now_s - 1.0 + late * (cluster.settings.recall_s if is_long else 0.0)
    cluster.calm(20.0)
    assert (cluster.version, cluster.n_containers) == before
    cluster.assert_target_is_actual()


def test_what_a_cut_node_runs_when_the_application_ends_is_left_to_yarn():
    """It is ordered to stop in vain, and the restarted RM knows of no release: the end of all does it."""
    cluster = VirtualCluster(lambda: make("weighted"))
    noise.populate(cluster)
    cluster.calm(3.0)
    (left,) = [true for true in cluster.running(AGENT) if true.container.node == "n1"]
    cluster.nodes["n1"].is_cut = True
    cluster.stop()
    while not cluster.is_finished:
        cluster.restart_rm()
        cluster.step(1.0)
    assert cluster.running() == [left]
    assert cluster.now_s < cluster.stopping_s + cluster.settings.stop_limit_s
    noise.assert_calm_ends_well(cluster, 2.0)
