"""Whose turn a lent segment is, and when it goes."""

import pytest

from yarn_accel.errors import RejectedError
from yarn_accel.pipeline.loans import Loans
from yarn_accel.pipeline.pool import Pool

MIB = 1 << 20


@pytest.fixture
def pool():
    pool = Pool(64 * MIB)
    yield pool
    pool.close()
    assert pool.used_bytes == 0


@pytest.fixture
def loans(pool):
    loans = Loans(pool, 4 * MIB)
    yield loans
    loans.end()


def test_one_request_at_a_time_may_write_into_a_segment(loans):
    number = loans.lend(MIB).segment.id
    loan = loans.use(number, MIB, exclusive=True)
    for exclusive in (True, False):
        with pytest.raises(RejectedError, match="used by another"):
            loans.use(number, 10, exclusive=exclusive)
    loans.done(loan)
    loans.done(loans.use(number, 10, exclusive=True))


def test_several_may_read_it(loans):
    number = loans.lend(MIB).segment.id
    used = [loans.use(number, MIB, exclusive=False) for _ in range(3)]
    with pytest.raises(RejectedError, match="used by another"):
        loans.use(number, MIB, exclusive=True)
    for loan in used:
        loans.done(loan)


def test_what_is_not_lent_or_too_short_is_refused(loans):
    number = loans.lend(MIB).segment.id
    with pytest.raises(RejectedError, match="not lent") as caught:
        loans.use(number + 1, 10, exclusive=True)
    assert caught.value.code == "bad-placement"
    with pytest.raises(RejectedError, match="1048577 are named"):
        loans.use(number, MIB + 1, exclusive=True)
    loans.give_back(number)
    with pytest.raises(RejectedError, match="not lent"):
        loans.use(number, 10, exclusive=True)


def test_what_was_given_back_serves_the_same_connection_again(loans):
    first = loans.lend(MIB)
    assert loans.lend(MIB) is not first
    loans.give_back(first.segment.id)
    assert loans.lend(MIB // 2) is first
    loans.give_back(first.segment.id)
    assert loans.lend(1000) is not first, "far too large for that"
    loans.give_back(12345678)


def test_a_result_occupies_its_segment_until_it_is_told(loans):
    loan = loans.lend(MIB, for_result=True)
    loans.give_back(loan.segment.id)
    assert loans.lend(MIB) is not loan
    loans.done(loan)
    assert loans.lend(MIB) is loan


def test_the_bound_of_a_connection_holds(loans, pool):
    assert loans.lend(3 * MIB) is not None
    assert loans.lend(2 * MIB) is None
    assert loans.lend(MIB) is not None
    assert pool.lent_bytes == 4 * MIB


def test_the_end_waits_for_what_is_in_use(loans, pool):
    loan = loans.lend(MIB, for_result=True)
    loans.lend(MIB)
    loans.end()
    assert pool.lent_bytes == MIB
    assert loans.lend(MIB) is None
    loans.done(loan)
    assert pool.lent_bytes == 0


def test_its_client_may_name_a_segment_again_while_the_answer_leaves(loans, pool):
    loan = loans.use(loans.lend(MIB).segment.id, MIB, exclusive=True)
    loans.answered(loan)
    again = loans.use(loan.segment.id, MIB, exclusive=True)
    assert again is loan
    loans.done(again)
    loans.give_back(loan.segment.id)
    assert loans.lend(MIB) is not loan, "it is still read from"
    loans.end()
    assert pool.lent_bytes == MIB, "it is still read from"
    loans.left(loan)
    assert pool.lent_bytes == 0
