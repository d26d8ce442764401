"""What is made of objects once, as long as they are the very same."""

from __future__ import annotations

from fairlead.serve.api.resultcache import ResultCache


def test_the_same_objects_are_looked_at_once_and_equal_ones_anew() -> None:
    made = list[str]()
    kept: ResultCache[int] = ResultCache(2)
    one, two = ["a"], ["b"]

    def count(word: str) -> int:
        made.append(word)
        return len(made)

    assert kept.of(one, two, make=lambda: count("first")) == 1
    assert kept.of(one, two, make=lambda: count("again")) == 1
    assert kept.of(two, one, make=lambda: count("other order")) == 2
    assert kept.of(list(one), two, make=lambda: count("equal")) == 3
    assert made == ["first", "other order", "equal"]


def test_no_more_is_kept_than_was_said_and_what_was_used_stays() -> None:
    kept: ResultCache[str] = ResultCache(2)
    one, two, three = object(), object(), object()
    for source, name in ((one, "one"), (two, "two"), (one, "one"), (three, "three")):
        assert kept.of(source, make=name.lower) == name
    assert kept.of(one, make=lambda: "made anew") == "one"
    assert kept.of(two, make=lambda: "made anew") == "made anew"
