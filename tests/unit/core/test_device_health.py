"""A device that fails rests, each time for longer, and must prove itself before it is trusted again."""

from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.core.device_health import (
    DeviceHealth,
    DeviceHealthSettings,
    Faulted,
    Passed,
    Rest,
    Resume,
    TimePassed,
    Trust,
)

SETTINGS = DeviceHealthSettings(
    first_rest_s=10.0, max_rest_s=35.0, n_soft=3, soft_window_s=60.0, n_probation=2
)


def hard(now_s, device="cuda:0"):
    return Faulted(device, True, "Xid 79", now_s)


def soft(now_s, device="cuda:0", suspects=""):
    """A fault that each of the requests named by a letter may be the reason of."""
    return Faulted(device, False, "died", now_s, frozenset(suspects))


def test_a_hard_fault_means_rest_and_each_rest_is_longer():
    health = DeviceHealth(SETTINGS)
    now_s = 0.0
    for rest_s in (10.0, 20.0, 35.0, 35.0):
        assert health.apply(hard(now_s)) == [Rest("cuda:0", now_s + rest_s, "Xid 79")]
        assert health.state("cuda:0") == "resting"
        assert health.wake_s() == now_s + rest_s
        assert health.apply(TimePassed(now_s + rest_s - 1)) == []
        now_s += rest_s
        assert health.apply(TimePassed(now_s)) == [Resume("cuda:0")]
        assert health.state("cuda:0") == "probation"


def test_probation_ends_in_trust_and_the_next_rest_is_a_first_one():
    health = DeviceHealth(SETTINGS)
    health.apply(hard(0.0))
    health.apply(TimePassed(10.0))
    assert health.apply(Passed("cuda:0", 11.0)) == []
    assert health.apply(Passed("cuda:0", 12.0)) == [Trust("cuda:0")]
    assert health.apply(Passed("cuda:0", 13.0)) == []
    assert health.apply(hard(20.0)) == [Rest("cuda:0", 30.0, "Xid 79")]


def test_soft_faults_count_only_when_there_are_several():
    health = DeviceHealth(SETTINGS)
    assert health.apply(soft(0.0)) == []
    assert health.apply(soft(50.0)) == []
    assert health.apply(soft(100.0)) == []
    assert health.apply(soft(101.0)) == [Rest("cuda:0", 111.0, "died")]


def test_on_probation_a_soft_fault_is_enough():
    health = DeviceHealth(SETTINGS)
    health.apply(hard(0.0))
    health.apply(TimePassed(10.0))
    assert health.apply(soft(11.0)) == [Rest("cuda:0", 31.0, "died")]


def test_the_tries_of_one_request_count_once():
    health = DeviceHealth(SETTINGS)
    assert [health.apply(soft(now_s, suspects="x")) for now_s in range(9)] == [[]] * 9
    assert health.apply(soft(10.0, suspects="abx")) == [], "with it in a batch, it may still be the reason"
    assert health.apply(soft(11.0, suspects="a")) == []
    assert health.apply(soft(12.0, suspects="b")) == [Rest("cuda:0", 22.0, "died")], "three alone: x, a, b"


def test_faults_of_batches_count_by_the_fewest_requests_that_explain_them():
    health = DeviceHealth(SETTINGS)
    for now_s, batch in enumerate(("abc", "cde", "efg")):
        assert health.apply(soft(now_s, suspects=batch)) == [], "c and e, or less"
    assert health.apply(soft(4.0, suspects="hij")) == [Rest("cuda:0", 14.0, "died")]


def test_a_request_that_fails_on_two_devices_rests_neither():
    health = DeviceHealth(SETTINGS)
    for bad in "abcdef":
        assert health.apply(soft(0.0, "cuda:0", bad + "xyz")) == [], "in a batch with others"
        assert health.apply(soft(0.0, "cuda:1", bad)) == []
    health.apply(hard(1.0, "cuda:2"))
    health.apply(TimePassed(11.0))
    assert health.apply(soft(12.0, "cuda:2", "a")) == [], "not one that has to prove itself, either"


def test_a_request_fails_where_others_fail_too():
    health = DeviceHealth(SETTINGS)
    for bad in "ab":
        health.apply(soft(0.0, "cuda:0", bad))
    assert health.apply(soft(61.0, "cuda:0", "c")) == [], "those before are forgotten"
    assert health.apply(soft(62.0, "cuda:0", "d")) == []
    assert health.apply(soft(63.0, "cuda:0", "e")) == [Rest("cuda:0", 73.0, "died")]


def test_while_it_rests_nothing_is_said_twice():
    health = DeviceHealth(SETTINGS)
    health.apply(hard(0.0))
    assert health.apply(hard(1.0)) == []
    assert health.apply(Passed("cuda:0", 2.0)) == []
    assert health.snapshot()["cuda:0"] == {
        "state": "resting",
        "until_s": 10.0,
        "faults": 2,
        "reason": "Xid 79",
    }


def test_devices_do_not_mix():
    health = DeviceHealth(SETTINGS)
    health.apply(hard(0.0))
    assert health.state("cuda:1") == "trusted"
    assert health.apply(Passed("cuda:1", 0.0)) == []
    assert health.wake_s() == 10.0


@given(st.lists(st.tuples(st.sampled_from("hspt"), st.floats(0.0, 40.0)), max_size=60))
def test_rest_and_resume_always_alternate(story):
    health = DeviceHealth(SETTINGS)
    now_s = 0.0
    is_resting = False
    for what, seconds in story:
        now_s += seconds
        event = {
            "h": hard(now_s),
            "s": soft(now_s),
            "p": Passed("cuda:0", now_s),
            "t": TimePassed(now_s),
        }[what]
        for command in health.apply(event):
            if isinstance(command, Rest):
                assert not is_resting
                assert now_s < command.until_s <= now_s + SETTINGS.max_rest_s
                is_resting = True
            elif isinstance(command, Resume):
                assert is_resting
                is_resting = False
        assert is_resting == (health.state("cuda:0") == "resting")
