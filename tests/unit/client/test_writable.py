import pytest

from yarn_accel.client.writable import decode_number, encode_number, n_bytes_after


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (-112, "90"),
        (128, "8f80"),
        (255, "8fff"),
        (256, "8e0100"),
        (-113, "8770"),
        (-257, "860100"),
        (2**63 - 1, "887fffffffffffffff"),
        (-(2**63), "807fffffffffffffff"),
    ],
)
def test_hadoop_variable_length_numbers(value, encoded):
    content = bytes.fromhex(encoded)
    assert encode_number(value) == content
    assert n_bytes_after(content[0]) == len(content) - 1
    assert decode_number(content) == value
