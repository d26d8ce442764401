from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.kubernetes import core, selector
from fairlead.wire.kubernetes.selector import Requirement

LABELS = {"app": "train", "gpu.dev/model": "H100", "count": "8", "empty": ""}


@pytest.mark.parametrize(
    ("text", "takes"),
    [
        ("", True),
        ("  ", True),
        ("app=train", True),
        ("app==train", True),
        (" app = train ", True),
        ("app=infer", False),
        ("app!=infer", True),
        ("absent!=x", True),
        ("absent=x", False),
        ("empty=", True),
        ("app=", False),
        ("app", True),
        ("absent", False),
        ("!absent", True),
        ("!app", False),
        ("app in (train,infer)", True),
        ("app in ( infer )", False),
        ("app in(train)", True),
        ("app notin (infer)", True),
        ("app notin (train,x)", False),
        ("absent notin (x)", True),
        ("gpu.dev/model=H100", True),
        ("count>7", True),
        ("count > 8", False),
        ("count<9", True),
        ("app<9", False),
        ("app=train,count>7,!absent,gpu.dev/model in (H100,H200)", True),
        ("app=train,count>8", False),
    ],
)
def test_label_selectors(text: str, takes: bool) -> None:
    assert selector.matches(selector.parse(text), LABELS) is takes


@pytest.mark.parametrize(
    "text",
    [
        "a=b,",
        ",",
        "a b",
        "a in ()b",
        "a in",
        "a in (x",
        "a=b=c",
        "=b",
        "a>b",
        "a>",
        "!",
        "a=/",
        "a/b/c",
        "-a",
        "a in (b c)",
        "a=" + "v" * 64,
        "!a=b",
    ],
)
def test_texts_that_are_no_selector_are_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        selector.parse(text)
    assert refused.value.reason == "SelectorInvalid"
    assert repr(text) in refused.value.message


def test_an_empty_set_holds_the_empty_value_as_in_kubernetes() -> None:
    assert selector.parse("a in ()") == (Requirement("a", "In", ("",)),)


NAMES = st.text("abc", min_size=1, max_size=2)


@given(key=NAMES, values=st.sets(NAMES, min_size=1), labels=st.dictionaries(NAMES, NAMES))
def test_operators_come_in_opposites(key: str, values: set[str], labels: dict[str, str]) -> None:
    for one, other, given_values in (("In", "NotIn", tuple(values)), ("Exists", "DoesNotExist", ())):
        assert Requirement(key, one, given_values).matches(labels) is not Requirement(key, other, given_values).matches(
            labels
        )


TAINT = core.Taint(key="gpu", value="yes", effect="NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "bears"),
    [
        (core.Toleration(key="gpu", value="yes", effect="NoSchedule"), True),
        (core.Toleration(key="gpu", value="yes"), True),
        (core.Toleration(key="gpu", operator="", value="yes"), True),
        (core.Toleration(key="gpu", value="no"), False),
        (core.Toleration(key="gpu", operator="Exists"), True),
        (core.Toleration(operator="Exists"), True),
        (core.Toleration(operator="Exists", effect="NoExecute"), False),
        (core.Toleration(key="cpu", operator="Exists"), False),
        (core.Toleration(key="gpu", value="yes", effect="NoExecute"), False),
        (core.Toleration(key="gpu", operator="Unknown", value="yes"), False),
        (core.Toleration(), False),
    ],
)
def test_tolerations(toleration: core.Toleration, bears: bool) -> None:
    assert selector.tolerates([toleration], TAINT) is bears


def test_the_first_unborne_taint_with_an_effect_that_counts_is_found() -> None:
    soft = core.Taint(key="soft", effect="PreferNoSchedule")
    assert selector.find_untolerated([soft, TAINT], []) == TAINT
    assert selector.find_untolerated([soft, TAINT], [core.Toleration(key="gpu", operator="Exists")]) is None
    assert selector.find_untolerated([soft], [], effects=("PreferNoSchedule",)) == soft
