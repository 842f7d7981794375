"""Where a request goes: the least predicted finish, unless staying costs little more."""

import math

import pytest

from yarn_accel.core.server_choice import ChooserSettings, RequestChooser, RoutableRequest, ServerView

RATES = {"lu": 1e9}
LU = RoutableRequest("lu", 1e9, 0)


def view(server, queue_s=0.0, *, seq=1, link=math.inf, rates=None, weight=1.0, accepts=True):
    return ServerView(server, seq, queue_s, link, RATES if rates is None else rates, weight, accepts)


def test_predicted_finish_is_queue_and_transfer_and_compute():
    chosen = RequestChooser().choose("a", RoutableRequest("lu", 3e9, 50_000_000), [view("a", 0.25, link=1e8)])
    assert chosen.predicted_s == pytest.approx(0.25 + 0.5 + 3.0)
    assert chosen.reason == "a in 3.8 s (250 ms queue, 500 ms transfer, 3.0 s compute) is first"


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (view("b", 0.0), "b"),  # the queue decides
        (view("b", 2.0, rates={"lu": 4e9}), "a"),  # the rate does not make up for the queue
        (view("b", 0.0, rates={"lu": 5e8}), "a"),  # the rate decides
        (view("b", 0.0, link=1e7), "a"),  # the link decides
    ],
)
def test_it_goes_where_it_should_be_finished_first(other, expected):
    request = RoutableRequest("lu", 1e9, 20_000_000)
    assert RequestChooser().choose("a", request, [view("a", 1.0), other]).server == expected


def test_a_small_gain_is_not_worth_leaving_home():
    chooser = RequestChooser(ChooserSettings(min_gain_s=0.0, min_gain_share=0.2))
    assert chooser.choose("a", LU, [view("a", 0.15), view("b")]).server == "a"
    assert (
        "b in 1.0 s (0 ms queue, 0 ms transfer, 1.0 s compute) gains too little"
        in chooser.choose("a", LU, [view("a", 0.15, seq=2), view("b", seq=2)]).reason
    )
    assert chooser.choose("a", LU, [view("a", 0.3, seq=3), view("b", seq=3)]).server == "b"


def test_a_gain_of_milliseconds_is_not_worth_it_however_large_the_share():
    chooser = RequestChooser(ChooserSettings(min_gain_s=0.01, min_gain_share=0.0))
    tiny = RoutableRequest("lu", 1e6, 0)
    assert chooser.choose("a", tiny, [view("a", 0.009), view("b")]).server == "a"
    assert chooser.choose("a", tiny, [view("a", 0.02, seq=2), view("b", seq=2)]).server == "b"


def test_a_waiting_request_pays_the_transfer_only_elsewhere():
    waiting = RoutableRequest("lu", 1e9, 100_000_000, server="b")
    views = [view("a", link=1e8), view("b", 0.9, link=1e8)]
    assert RequestChooser().choose("a", waiting, views).server == "b"


def test_a_waiting_request_moves_so_often_and_no_more():
    chooser = RequestChooser(ChooserSettings(max_moves=1))
    views = [view("a"), view("b", 9.0)]
    assert chooser.choose("b", RoutableRequest("lu", 1e9, 0, "b", 0), views).server == "a"
    stays = chooser.choose("b", RoutableRequest("lu", 1e9, 0, "b", 1), views)
    assert (stays.server, "moved 1 times already" in stays.reason) == ("b", True)


def test_whose_server_is_gone_may_always_move():
    chooser = RequestChooser(ChooserSettings(max_moves=0))
    lost = RoutableRequest("lu", 1e9, 0, server="gone", n_moves=5)
    assert chooser.choose("gone", lost, [view("a"), view("b", accepts=False)]).server == "a"


def test_without_a_server_it_stays_where_it_is():
    chosen = RequestChooser().choose("a", LU, [view("a", accepts=False)])
    assert (chosen.server, chosen.predicted_s) == (None, math.inf)
    assert chosen.reason == "no accelerator node of the rack takes requests"


def test_what_was_sent_since_the_report_counts_as_queue():
    chooser = RequestChooser()
    views = [view("a"), view("b"), view("c")]
    chosen = [chooser.choose("a", LU, views) for _ in range(6)]
    assert [one.server for one in chosen] == ["a", "b", "c", "a", "b", "c"]
    assert [one.predicted_s for one in chosen] == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]
    fresh = [view("a", seq=2), view("b", 5.0, seq=2), view("c", 5.0, seq=2)]
    assert chooser.choose("a", LU, fresh).predicted_s == 1.0


def test_a_rate_that_was_not_measured_follows_from_the_weights():
    chosen = RequestChooser().choose(None, LU, [view("a"), view("b", rates={}, weight=4.0)])
    assert (chosen.server, chosen.predicted_s) == ("b", 0.25)


def test_where_nothing_was_measured_the_heavier_is_quicker():
    views = [view("a", rates={}), view("b", rates={}, weight=2.0)]
    assert RequestChooser().choose(None, RoutableRequest("lu", 1e12, 0), views).server == "b"


def test_the_order_of_the_views_does_not_matter():
    views = [view("b"), view("c"), view("a")]
    assert RequestChooser().choose(None, LU, views).server == "a"
    assert RequestChooser().choose(None, LU, views[::-1]).server == "a"


def test_in_cluster_4_3_the_requests_are_shared_by_all_three_accelerators():
    """What the paper hopes for in section 5: 100 tasks take 34 rounds, with nodes bound 50."""
    chooser = RequestChooser()
    views = [view("a1"), view("a2"), view("a3")]
    homes = ["a1", "a2", "a3", "a1"]  # the fourth node has no accelerator
    sent = [chooser.choose(homes[number % 4], LU, views).server for number in range(100)]
    assert sorted(sent.count(server) for server in ("a1", "a2", "a3")) == [33, 33, 34]


def test_the_requests_of_one_node_spread_over_the_rack():
    chooser = RequestChooser()
    views = [view("a1"), view("a2"), view("a3")]
    sent = [chooser.choose("a1", LU, views).server for _ in range(6)]
    assert sent == ["a1", "a2", "a3", "a1", "a2", "a3"]
