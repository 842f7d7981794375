from yarn_accel.master.markup import document, element, raw, text


def test_text_and_attributes_are_escaped():
    assert element("p", '1 < 2 & "3"', title='a"b<c') == (
        '<p title="a&quot;b&lt;c">1 &lt; 2 &amp; &quot;3&quot;</p>'
    )


def test_elements_inside_elements_are_not_escaped_twice():
    assert element("p", element("b", "&"), ["x", [element("i", "y"), None]]) == "<p><b>&amp;</b>x<i>y</i></p>"


def test_a_slice_of_markup_is_text_again():
    assert element("p", element("b", "x")[:3]) == "<p>&lt;b&gt;</p>"


def test_attributes_that_are_not_given_are_left_out():
    assert element("a", hidden=True, href=None, id=False, class_="x", data_node="n", x=1.5, y=2.0) == (
        '<a hidden class="x" data-node="n" x="1.5" y="2"></a>'
    )


def test_zero_and_the_empty_text_are_given():
    assert element("rect", 0, 0.0, x=0, y="") == '<rect x="0" y="">00</rect>'


def test_what_cannot_be_seen_is_shown():
    assert text("a\x00b\x1b[31m\u202ec\ud800\n") == "a\ufffdb\ufffd[31m\ufffdc\ufffd\n"
    text("\ud800").encode()


def test_some_elements_have_no_end():
    assert document(element("meta", charset="utf-8")) == (
        '<!DOCTYPE html>\n<html lang="en"><meta charset="utf-8"></html>\n'
    )


def test_our_own_code_stays_as_it_is():
    assert element("script", raw("a && b")) == "<script>a && b</script>"
