"""When tokens are prolonged and when new ones take their place, by hand-made times."""

import pytest

from yarn_accel.core.token_renewal import TokenTimes, look_interval_s

DAY_S = 86_400.0


def test_tokens_that_others_prolong_are_replaced_at_seven_tenths_of_their_life():
    times = TokenTimes.prolonged_by_others(0.0, 7 * DAY_S)
    assert times.act_at_s == pytest.approx(4.9 * DAY_S, abs=60)
    assert not times.need_new(4.8 * DAY_S)
    assert times.need_new(4.9 * DAY_S)


def test_own_tokens_are_prolonged_long_before_they_expire_and_replaced_all_the_same():
    times = TokenTimes.prolonged_by_others(0.0, 7 * DAY_S).prolonged(0.0, DAY_S)
    n_prolonged = 0
    while not times.need_new(times.act_at_s):
        now_s = times.act_at_s
        assert now_s < times.expires_s
        times, n_prolonged = times.prolonged(now_s, now_s + DAY_S), n_prolonged + 1
    assert times.act_at_s == pytest.approx(4.9 * DAY_S, abs=60)
    assert n_prolonged == 6


def test_nobody_prolongs_a_token_beyond_its_end():
    times = TokenTimes.prolonged_by_others(0.0, 160.0).prolonged(60.0, 260.0)
    assert times.expires_s == 160.0


def test_a_token_is_replaced_before_its_last_minute_in_which_the_hdfs_client_does_not_use_it():
    assert TokenTimes.prolonged_by_others(0.0, 160.0).act_at_s == pytest.approx(70.0)


def test_a_token_that_has_ended_is_replaced_at_once():
    assert TokenTimes.prolonged_by_others(0.0, 0.0).need_new(0.0)


@pytest.mark.parametrize(("life_s", "interval_s"), [(-1.0, 1.0), (90.0, 4.5), (1e9, 300.0)])
def test_containers_look_often_in_a_life_but_not_too_often(life_s, interval_s):
    assert look_interval_s(life_s) == pytest.approx(interval_s)
