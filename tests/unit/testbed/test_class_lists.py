from hypothesis import given
from hypothesis import strategies as st

from yarn_accel.testbed.class_lists import merge_class_lists

NAMES = st.lists(st.text("abcXYZ/", min_size=1, max_size=8), max_size=10)


def test_numbers_generated_classes_and_other_loaders_are_dropped():
    one = "# comment\njava/lang/Object id: 0\na/B$$Lambda$1 id: 4\nc/D id: 7 super: 0 source: /x.jar\n"
    two = "java/lang/String\n@lambda-proxy a/B run ()V a/B$$x\n\n"
    assert merge_class_lists([one, two]).splitlines() == [
        "@lambda-proxy a/B run ()V a/B$$x",
        "java/lang/Object",
        "java/lang/String",
    ]


@given(first=NAMES, second=NAMES)
def test_the_merge_is_a_sorted_union_in_any_order(first: list[str], second: list[str]):
    texts = ["\n".join(first), "\n".join(second)]
    merged = merge_class_lists(texts)
    assert merged == merge_class_lists(texts[::-1])
    assert merged.split() == sorted(set(first) | set(second))
