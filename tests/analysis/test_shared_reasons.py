from harness.analysis.shared_reasons import Reason, by_reason


def test_the_same_words_are_one_reason_in_the_order_of_their_first_variant() -> None:
    given = {"a": "no GPU", "b": "too old", "c": "no GPU"}
    assert by_reason(given) == (
        Reason("no GPU", ("a", "c"), names_the_first=False),
        Reason("too old", ("b",), names_the_first=False),
    )


def test_reasons_that_differ_in_the_own_name_alone_are_one() -> None:
    (found,) = by_reason({name: f"does not take '{name}'" for name in ("fp4", "int8", "int4")})
    assert found.text == "does not take 'fp4'"
    assert (found.head, found.likewise) == (("fp4",), ("int8", "int4"))


def test_a_name_within_a_word_is_not_the_name() -> None:
    # "a" and "o" stand in both texts, which say different things.
    assert len(by_reason({"a": "bad", "o": "bod"})) == 2


def test_the_same_words_are_one_reason_even_where_they_name_one_of_the_variants() -> None:
    (found,) = by_reason({"a": "a and b need a GPU", "b": "a and b need a GPU"})
    assert found.head == ("a", "b")
    assert found.likewise == ()
    assert by_reason({}) == ()
