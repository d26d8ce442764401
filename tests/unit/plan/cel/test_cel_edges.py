"""The edges of Kubernetes' CEL for devices, each as the reference answers it on both releases."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel.device import DeviceView, Version
from fairlead.plan.cel.problem import CELError
from tests.unit.plan.cel.samples import DEVICE, A, C, cost, value


def _refused(text: str) -> str:
    with pytest.raises(errors.Invalid) as refused:
        cel.compile_selector(text)
    assert refused.value.reason == "CELInvalid"
    return refused.value.message


def _failed(text: str, release: str = "1.37") -> str:
    with pytest.raises(CELError) as failed:
        cel.compile_selector(text, release=release).matches(DEVICE)
    return failed.value.message


def test_an_unknown_domain_is_an_empty_map() -> None:
    assert value('device.attributes["no.such"].size() == 0') is True
    assert value('"no.such" in device.attributes') is False


def test_an_unknown_id_is_an_error() -> None:
    assert "no such key: zz" in _failed(f"{A}.zz == 1")
    assert "no such key: zz" in _failed('device.capacity["no.such"].zz.isInteger()')


def test_a_name_without_domain_has_the_drivers() -> None:
    assert value('device.attributes["other.com"].text') == "bird"
    assert value(f"{A}.text") == "fish"


def test_a_key_with_a_slash_is_not_taken_for_domain_and_id() -> None:
    device = DeviceView(driver="d", attributes={"a/b/c": True})
    assert value('device.attributes["a"]["b/c"]', device=device) is True
    assert value('device.attributes["a/b"].size() == 0', device=device) is True


def test_sign_is_a_function_and_no_method() -> None:
    assert value(f"sign({C}.memory) == 1") is True
    assert "no such overload" in _refused(f"{C}.memory.sign() == 1")


def test_a_version_and_a_text_are_compared_one_way_only() -> None:
    assert "no such overload" in _failed(f"{A}.version == 'text'")
    assert value(f"'text' == {A}.version") is False
    assert value(f"{A}.version != 'text'") is True


def test_a_version_in_a_list_of_texts_is_an_error_that_nothing_absorbs() -> None:
    assert "internal error" in _failed(f"{A}.version in ['1.0.0'] || true")


def test_an_integer_and_a_text_are_unequal_but_have_no_order() -> None:
    assert value(f"{A}.count == 'text'") is False
    assert "no such overload" in _failed(f"{A}.count > 'text'")


@pytest.mark.parametrize(
    "text",
    [
        "3u == 3",
        "[1, 'a'].size() == 2",
        "{'a': 1, 'b': 'c'}.size() == 2",
        f"{C}.memory == 1",
        "math.greatest(1, 2) == 2",
        "'abc'.reverse() == 'cba'",
        "let x = 1; x == 1",
        "undeclared",
        "device.nothing",
        "1",
        "'text'",
        "[true]",
        "int('x') == 1",
        "'a'.matches('(')",
        "'%d'.format(['a']) == ''",
        "'%s'.format([1, 2]) == ''",
        "1.exists(x, true)",
        "has(device)",
        "'a' + 1 == 'a1'",
        "true && 1",
        "google.protobuf.Int32Value{value: 1} == 1",
    ],
)
def test_what_does_not_compile_there_does_not_compile_here(text: str) -> None:
    assert "at line 1, column" in _refused(text)


def test_numbers_are_compared_across_their_types() -> None:
    assert value("1 < 1.5 && 2u > 1 && 1.0 <= 1u && dyn(3u) == 3") is True


def test_a_short_version_takes_no_prerelease() -> None:
    assert "semantic version" in _failed("semver('v1.2-rc1', true) == semver('1.2.0')")
    assert value("semver('v1.2', true) == semver('1.2.0')") is True
    assert value("isSemver('1.2')") is False
    assert value("isSemver('v01.2', true)") is True


def test_build_metadata_does_not_count() -> None:
    assert value("semver('1.0.0+a') == semver('1.0.0+b')") is True
    assert value("semver('1.0.0-rc.1+a').isLessThan(semver('1.0.0'))") is True


@pytest.mark.parametrize(
    ("lower", "higher"),
    [("1.0.0-1", "1.0.0-a"), ("1.0.0-2", "1.0.0-10"), ("1.0.0-a", "1.0.0-a.1"), ("1.9.9", "1.10.0")],
)
def test_versions_have_an_order(lower: str, higher: str) -> None:
    assert value(f"semver('{lower}').compareTo(semver('{higher}')) == -1") is True


def test_an_invalid_version_ends_the_device() -> None:
    with pytest.raises(CELError, match="no semantic version"):
        DeviceView(driver="d", attributes={"v": Version("v1")})


@pytest.mark.parametrize(
    "text",
    [
        "true // said",
        "[1, 2].all(i, v, i < v)",
        "{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}",
        "{'a': 1}.transformMapEntry(k, v, {k + 'x': v}) == {'ax': 1}",
        "[1, 2].transformList(i, v, i > 0, v) == [2]",
        "[3, 1].sort() == [1, 3]",
        "[3, 1].sortBy(x, -x) == [3, 1]",
        "[1, 1].distinct() == [1]",
        "[1, 2, 3].slice(1, 2) == [2]",
        "[[1], [2]].flatten() == [1, 2]",
        "lists.range(2) == [0, 1]",
        "[1].first().value() == 1",
        f"{A}.?zz.orValue('x') == 'x'",
        f"{A}[?'text'].hasValue()",
        "optional.of(1).optMap(x, x + 1).value() == 2",
        "optional.of(1).optFlatMap(x, optional.none()).hasValue() == false",
        "optional.ofNonZeroValue('').or(optional.of('a')).value() == 'a'",
        "cel.bind(a, 1, a == 1)",
        "[1, 2].map(x, x > 1, x * 10) == [20]",
        "[1, 2].exists_one(x, x == 1)",
        f"has({A}.text) && !has({A}.zz)",
        "sets.contains([1, 2], [1]) && sets.intersects([1], [1]) && sets.equivalent([1, 1], [1])",
        "url('https://h.example:80/p?a=1').getPort() == '80'",
        "ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.2.3')",
        "'%s is %.1f, %d and %x'.format(['a', 1.5, 2, 255]) == 'a is 1.5, 2 and ff'",
        "'a,b'.split(',').join('-') == 'a-b'",
        "format.dns1123Label().validate('A').hasValue()",
        f"{A}.names.includes('a') && {A}.text.includes('fish')",
        "duration('1h') > duration('59m') && timestamp('2020-02-29T00:00:00Z').getDate() == 29",
        "timestamp('2020-01-01T00:00:00Z').getHours('+05:30') == 5",
        "-5 / 2 == -2 && -5 % 2 == -1",
        "type(1) == int && type('a') == string",
        "string(1e6) == '1e+06' && string(0.1) == '0.1'",
        "'\\u00e9' == 'é' && r'\\d' == '\\\\d' && b'\\xff'.size() == 1",
        "-9223372036854775808 < 0 && 18446744073709551615u > 0u",
    ],
)
def test_what_is_true_there_is_true_here(text: str) -> None:
    assert value(text) is True
    assert value(text, release="1.36") is True


def test_errors_are_absorbed_in_either_order() -> None:
    assert value("1 / 0 == 1 || true") is True
    assert value("true || 1 / 0 == 1") is True
    assert value("1 / 0 == 1 && false") is False
    assert value("false && 1 / 0 == 1") is False
    assert value("[0, 1].exists(x, 1 / x == 1)") is True
    assert value("[0, 2].all(x, 1 / x == 1)") is False
    assert "division by zero" in _failed("1 / 0 == 1 || false")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        ("-9223372036854775808 - 1 < 0", "integer overflow"),
        ("-(-9223372036854775808) == 1", "integer overflow"),
        ("9223372036854775807 * 2 > 0", "integer overflow"),
        ("-9223372036854775808 / -1 > 0", "integer overflow"),
        ("18446744073709551615u + 1u > 0u", "unsigned integer overflow"),
        ("5u - 6u == 1u", "unsigned integer overflow"),
        ("1 / 0 == 1", "division by zero"),
        ("1u % 0u == 1u", "modulus by zero"),
        ("[1][1] == 1", "index out of bounds: 1"),
        ("double('nan') < 1.0", "NaN"),
        ("optional.none().value() == 1", "dereference"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('1s') > timestamp(0)", "timestamp overflow"),
        (f"{A}.text", "CEL result of type string could not be converted to bool"),
        (f"{A}.count.exists(x, true)", "got 'types.Int', expected iterable type"),
        ("[1, 2].transformMapEntry(k, v, {'a': v}).size() == 1", "insert failed"),
    ],
)
def test_a_failing_evaluation_says_why(text: str, said: str) -> None:
    assert said in _failed(text)


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert "no UTF-8" in _refused("device.driver == '\ud800'")
    with pytest.raises(CELError, match="no UTF-8"):
        DeviceView(driver="d", attributes={"a": "\ud800"})


def test_a_large_pattern_is_looked_for_as_well() -> None:
    assert value("'ab'.matches('(a|b|c|d){300}|ab$')") is True
    assert value("'ba'.matches('(a|b|c|d){300}|ab$')") is False


def test_an_item_that_cannot_be_compared_is_another() -> None:
    assert value(f"3 in [{A}.version, {A}.count]") is False
    assert value(f"sets.contains([{A}.version], [{A}.count])") is False


def test_quantities_are_exact() -> None:
    assert value("quantity('0.1').add(quantity('0.2')) == quantity('300m')") is True
    assert value("quantity('9223372036854775807').add(1).isInteger()") is False
    assert value("quantity('1.5').isInteger()") is False
    assert "cannot convert value to integer" in _failed("quantity('1.5').asInteger() == 1")


def test_the_releases_differ_in_costs_and_includes() -> None:
    text = f"{A}.names.includes('a')"
    assert (cost(text, "1.36"), cost(text, "1.37")) == (5, 4)
    assert cel.compile_selector(text, release="1.36").estimate() == 52
    assert cel.compile_selector(text, release="1.37").estimate() == 68
    long = "lists.range(49).includes(50)"
    assert value(long) is False
    assert "longer than 48" in _failed(long, "1.36")


def test_join_and_type_have_no_bound() -> None:
    estimated = cel.compile_selector("['a'].join(',') == 'a'").estimate()
    assert estimated is not None
    assert estimated > 1_000_000
    assert (cel.compile_selector(f"type({A}.text) == string").estimate() or 2**64) > 1_000_000


def test_an_error_names_line_and_column() -> None:
    assert _refused("true &&\n  undeclared").endswith("at line 2, column 3")
    assert "at line 2, column 4" in _failed("true &&\n 1 / 0 == 1")


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="release"):
        cel.compile_selector("true", release="1.20")


def test_the_last_selectors_are_kept() -> None:
    assert cel.compile_selector("device.driver == 'kept'") is cel.compile_selector("device.driver == 'kept'")
