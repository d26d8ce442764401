"""Declares the functions that a selector may call: name, parameters and result of every overload.

One line an overload: its id, its name (after `.` where it is a method), its parameters, its result. Capitals are type
variables. The ids are the reference's, since costs are looked up by them.
Source: cel-go common/stdlib, ext (strings 2, lists 3, sets, two-variable comprehensions), cel/library.go (optionals 2);
apiserver pkg/cel/library and environment/base.go, v0.37.2.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fairlead.plan.cel.celtype import Type


class Overload(NamedTuple):
    """One way to call a function."""

    name: str
    function: str
    is_method: bool
    args: tuple[Type, ...]
    result: Type
    variables: tuple[str, ...]


_COMPARED: Final = ("int", "uint", "double", "bool", "duration", "timestamp", "string", "bytes")
"""In the reference's order: a list of no known type is one of the first."""
_ORDERED: Final = (
    ("bool", "bool"),
    *(("int", other) for other in ("int", "double", "uint")),
    *(("uint", other) for other in ("uint", "double", "int")),
    *(("double", other) for other in ("double", "int", "uint")),
    *((kind, kind) for kind in ("string", "bytes", "timestamp", "duration")),
)
_NUMERIC: Final = ("int", "uint", "double")
_SHORT: Final = {
    "timestamp": "google.protobuf.Timestamp",
    "duration": "google.protobuf.Duration",
    "null": "null_type",
    "quantity": "kubernetes.Quantity",
    "semver": "kubernetes.Semver",
    "url": "kubernetes.URL",
    "ip": "net.IP",
    "cidr": "net.CIDR",
    "format": "kubernetes.NamedFormat",
    "optional": "optional_type",
}
_WIDE: Final = {"int": "int64", "uint": "uint64"}

_STANDARD: Final = """
conditional _?_:_(bool, A, A) A
logical_and _&&_(bool, bool) bool
logical_or _||_(bool, bool) bool
logical_not !_(bool) bool
not_strictly_false @not_strictly_false(bool) bool
equals _==_(A, A) bool
not_equals _!=_(A, A) bool
add_bytes _+_(bytes, bytes) bytes
add_double _+_(double, double) double
add_duration_duration _+_(duration, duration) duration
add_duration_timestamp _+_(duration, timestamp) timestamp
add_timestamp_duration _+_(timestamp, duration) timestamp
add_int64 _+_(int, int) int
add_list _+_(list<A>, list<A>) list<A>
add_string _+_(string, string) string
add_uint64 _+_(uint, uint) uint
divide_double _/_(double, double) double
divide_int64 _/_(int, int) int
divide_uint64 _/_(uint, uint) uint
modulo_int64 _%_(int, int) int
modulo_uint64 _%_(uint, uint) uint
multiply_double _*_(double, double) double
multiply_int64 _*_(int, int) int
multiply_uint64 _*_(uint, uint) uint
negate_double -_(double) double
negate_int64 -_(int) int
subtract_double _-_(double, double) double
subtract_duration_duration _-_(duration, duration) duration
subtract_int64 _-_(int, int) int
subtract_timestamp_duration _-_(timestamp, duration) timestamp
subtract_timestamp_timestamp _-_(timestamp, timestamp) duration
subtract_uint64 _-_(uint, uint) uint
index_list _[_](list<A>, int) A
index_map _[_](map<A, B>, A) B
optional_list_index_int _[_](optional<list<V>>, int) optional<V>
optional_map_index_value _[_](optional<map<K, V>>, K) optional<V>
list_optindex_optional_int _[?_](list<V>, int) optional<V>
optional_list_optindex_optional_int _[?_](optional<list<V>>, int) optional<V>
map_optindex_optional_value _[?_](map<K, V>, K) optional<V>
optional_map_optindex_optional_value _[?_](optional<map<K, V>>, K) optional<V>
in_list @in(A, list<A>) bool
in_map @in(A, map<A, B>) bool
size_bytes size(bytes) int
bytes_size .size(bytes) int
size_list size(list<A>) int
list_size .size(list<A>) int
size_map size(map<A, B>) int
map_size .size(map<A, B>) int
size_string size(string) int
string_size .size(string) int
type type(A) type<A>
bool_to_bool bool(bool) bool
string_to_bool bool(string) bool
bytes_to_bytes bytes(bytes) bytes
string_to_bytes bytes(string) bytes
double_to_double double(double) double
int64_to_double double(int) double
string_to_double double(string) double
uint64_to_double double(uint) double
duration_to_duration duration(duration) duration
string_to_duration duration(string) duration
to_dyn dyn(A) dyn
int64_to_int64 int(int) int
double_to_int64 int(double) int
duration_to_int64 int(duration) int
string_to_int64 int(string) int
timestamp_to_int64 int(timestamp) int
uint64_to_int64 int(uint) int
string_to_string string(string) string
bool_to_string string(bool) string
bytes_to_string string(bytes) string
double_to_string string(double) string
duration_to_string string(duration) string
int64_to_string string(int) string
timestamp_to_string string(timestamp) string
uint64_to_string string(uint) string
ip_to_string string(ip) string
cidr_to_string string(cidr) string
timestamp_to_timestamp timestamp(timestamp) timestamp
int64_to_timestamp timestamp(int) timestamp
string_to_timestamp timestamp(string) timestamp
uint64_to_uint64 uint(uint) uint
double_to_uint64 uint(double) uint
int64_to_uint64 uint(int) uint
string_to_uint64 uint(string) uint
contains_string .contains(string, string) bool
ends_with_string .endsWith(string, string) bool
starts_with_string .startsWith(string, string) bool
matches matches(string, string) bool
matches_string .matches(string, string) bool
duration_to_hours .getHours(duration) int
duration_to_minutes .getMinutes(duration) int
duration_to_seconds .getSeconds(duration) int
duration_to_milliseconds .getMilliseconds(duration) int
optional_of optional.of(V) optional<V>
optional_ofNonZeroValue optional.ofNonZeroValue(V) optional<V>
optional_none optional.none() optional<V>
optional_value .value(optional<V>) V
optional_hasValue .hasValue(optional<V>) bool
optional_or_optional .or(optional<V>, optional<V>) optional<V>
optional_orValue_value .orValue(optional<V>, V) V
optional_unwrap optional.unwrap(list<optional<V>>) list<V>
optional_unwrapOpt .unwrapOpt(list<optional<V>>) list<V>
list_last .last(list<V>) optional<V>
list_first .first(list<V>) optional<V>
@mapInsert_map_key_value cel.@mapInsert(map<K, V>, K, V) map<K, V>
@mapInsert_map_map cel.@mapInsert(map<K, V>, map<K, V>) map<K, V>
"""

_LIBRARIES: Final = """
string_char_at_int .charAt(string, int) string
string_index_of_string .indexOf(string, string) int
string_index_of_string_int .indexOf(string, string, int) int
string_last_index_of_string .lastIndexOf(string, string) int
string_last_index_of_string_int .lastIndexOf(string, string, int) int
string_lower_ascii .lowerAscii(string) string
string_upper_ascii .upperAscii(string) string
string_replace_string_string .replace(string, string, string) string
string_replace_string_string_int .replace(string, string, string, int) string
string_split_string .split(string, string) list<string>
string_split_string_int .split(string, string, int) list<string>
string_substring_int .substring(string, int) string
string_substring_int_int .substring(string, int, int) string
string_trim .trim(string) string
string_format .format(string, list<dyn>) string
strings_quote strings.quote(string) string
list_join .join(list<string>) string
list_join_string .join(list<string>, string) string
list_sets_contains_list sets.contains(list<T>, list<T>) bool
list_sets_equivalent_list sets.equivalent(list<T>, list<T>) bool
list_sets_intersects_list sets.intersects(list<T>, list<T>) bool
list_slice .slice(list<T>, int, int) list<T>
list_flatten .flatten(list<list<T>>) list<T>
list_flatten_int .flatten(list<dyn>, int) list<dyn>
lists_range lists.range(int) list<int>
list_reverse .reverse(list<T>) list<T>
list_distinct .distinct(list<T>) list<T>
list_a_index_of_int .indexOf(list<A>, A) int
list_a_last_index_of_int .lastIndexOf(list<A>, A) int
list_includes_dyn_dyn .includes(dyn, dyn) bool
string_find_string .find(string, string) string
string_find_all_string .findAll(string, string) list<string>
string_find_all_string_int .findAll(string, string, int) list<string>
string_to_url url(string) url
is_url_string isURL(string) bool
url_get_scheme .getScheme(url) string
url_get_host .getHost(url) string
url_get_hostname .getHostname(url) string
url_get_port .getPort(url) string
url_get_escaped_path .getEscapedPath(url) string
url_get_query .getQuery(url) map<string, list<string>>
string_to_quantity quantity(string) quantity
is_quantity_string isQuantity(string) bool
quantity_sign sign(quantity) int
quantity_is_greater_than .isGreaterThan(quantity, quantity) bool
quantity_is_less_than .isLessThan(quantity, quantity) bool
quantity_compare_to .compareTo(quantity, quantity) int
quantity_get_float .asApproximateFloat(quantity) double
quantity_get_int .asInteger(quantity) int
quantity_is_integer .isInteger(quantity) bool
quantity_add .add(quantity, quantity) quantity
quantity_add_int .add(quantity, int) quantity
quantity_sub .sub(quantity, quantity) quantity
quantity_sub_int .sub(quantity, int) quantity
string_to_ip ip(string) ip
cidr_ip .ip(cidr) ip
is_ip isIP(string) bool
ip_is_canonical ip.isCanonical(string) bool
ip_family .family(ip) int
ip_is_unspecified .isUnspecified(ip) bool
ip_is_loopback .isLoopback(ip) bool
ip_is_link_local_multicast .isLinkLocalMulticast(ip) bool
ip_is_link_local_unicast .isLinkLocalUnicast(ip) bool
ip_is_global_unicast .isGlobalUnicast(ip) bool
string_to_cidr cidr(string) cidr
is_cidr isCIDR(string) bool
cidr_contains_ip_string .containsIP(cidr, string) bool
cidr_contains_ip_ip .containsIP(cidr, ip) bool
cidr_contains_cidr_string .containsCIDR(cidr, string) bool
cidr_contains_cidr .containsCIDR(cidr, cidr) bool
cidr_prefix_length .prefixLength(cidr) int
cidr_masked .masked(cidr) cidr
format-named format.named(string) optional<format>
format-validate .validate(format, string) optional<list<string>>
string_to_semver semver(string) semver
string_bool_to_semver semver(string, bool) semver
is_semver_string isSemver(string) bool
is_semver_string_bool isSemver(string, bool) bool
semver_is_greater_than .isGreaterThan(semver, semver) bool
semver_is_less_than .isLessThan(semver, semver) bool
semver_compare_to .compareTo(semver, semver) int
semver_major .major(semver) int
semver_minor .minor(semver) int
semver_patch .patch(semver) int
"""

FORMATS: Final = (
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
)
_DATES: Final = {
    "getFullYear": "year",
    "getMonth": "month",
    "getDayOfYear": "day_of_year",
    "getDayOfMonth": "day_of_month",
    "getDate": "day_of_month_1_based",
    "getDayOfWeek": "day_of_week",
    "getHours": "hours",
    "getMinutes": "minutes",
    "getSeconds": "seconds",
    "getMilliseconds": "milliseconds",
}


def _made() -> Iterator[str]:
    """Return the lines that differ by a type or a name alone."""
    for name, sign in (("less", "<"), ("less_equals", "<="), ("greater", ">"), ("greater_equals", ">=")):
        for one, other in _ORDERED:
            ids = _WIDE.get(one, one) if one == other else f"{_WIDE.get(one, one)}_{_WIDE.get(other, other)}"
            yield f"{name}_{ids} _{sign}_({one}, {other}) bool"
    for kind in _COMPARED:
        yield f"list_{kind}_is_sorted_bool .isSorted(list<{kind}>) bool"
        yield f"list_{kind}_max_{kind} .max(list<{kind}>) {kind}"
        yield f"list_{kind}_min_{kind} .min(list<{kind}>) {kind}"
        yield f"list_{kind}_sort .sort(list<{kind}>) list<{kind}>"
        yield f"list_{kind}_sortByAssociatedKeys .@sortByAssociatedKeys(list<T>, list<{kind}>) list<T>"
    for kind in (*_NUMERIC, "duration"):
        yield f"list_{kind}_sum_{kind} .sum(list<{kind}>) {kind}"
    for method, part in _DATES.items():
        yield f"timestamp_to_{part} .{method}(timestamp) int"
        yield f"timestamp_to_{part}_with_tz .{method}(timestamp, string) int"
    for name in FORMATS:
        yield f"format.{name} format.{name}() format"


_OLD: Final = {"1.36": ("int64_to_duration duration(int) duration",)}
"""What one release alone declares: this one compiles there, and fails whatever it is given."""
_LINE: Final = re.compile(r"(\S+) (.+?)\((.*)\) (\S.*)")
_WORD: Final = re.compile(r"[A-Za-z0-9_.]+|[<>,]")


@functools.cache
def functions(release: str) -> Mapping[str, tuple[Overload, ...]]:
    """Return the overloads of each function."""
    found: dict[str, list[Overload]] = {}
    for line in [*_STANDARD.split("\n"), *_LIBRARIES.split("\n"), *_made(), *_OLD.get(release, ())]:
        if line:
            one = _overload(line)
            found.setdefault(one.function, []).append(one)
    return {name: tuple(overloads) for name, overloads in found.items()}


@functools.cache
def overload(name: str) -> Overload:
    """Return one overload by its id."""
    return next(one for several in functions("1.36").values() for one in several if one.name == name)


def _overload(line: str) -> Overload:
    shape = _LINE.fullmatch(line)
    if shape is None:
        raise ValueError(line)
    name, function, args, result = shape.groups()
    kinds = _types(args)
    ending = _types(result)[0]
    named = dict.fromkeys(word for kind in (*kinds, ending) for word in _variables(kind))
    return Overload(name, function.removeprefix("."), function[0] == ".", kinds, ending, tuple(named))


def _types(text: str) -> tuple[Type, ...]:
    """Read types between commas; `<` opens the parameters of the last one."""
    levels: list[list[Type]] = [[]]
    for word in _WORD.findall(text):
        if word == "<":
            levels.append([])
        elif word == ">":
            params = tuple(levels.pop())
            levels[-1][-1] = Type(levels[-1][-1].name, params)
        elif word != ",":
            levels[-1].append(Type(f"${word}" if len(word) == 1 else _SHORT.get(word, word)))
    return tuple(levels[0])


def _variables(kind: Type) -> Iterator[str]:
    if kind.name[0] == "$":
        yield kind.name
    for param in kind.params:
        yield from _variables(param)


_NAMED: Final = {
    **{name: Type(name) for name in ("bool", "int", "uint", "double", "string", "bytes", "null_type", "dyn")},
    "list": Type("list", (Type("dyn"),)),
    "map": Type("map", (Type("dyn"), Type("dyn"))),
    "type": Type("type", (Type("dyn"),)),
    "optional_type": Type("optional_type", (Type("dyn"),)),
    **{_SHORT[word]: Type(_SHORT[word]) for word in ("timestamp", "duration", "quantity", "semver", "url", "ip")},
    **{_SHORT[word]: Type(_SHORT[word]) for word in ("cidr", "format")},
}
TYPE_NAMES: Final[Mapping[str, Type]] = {name: Type("type", (kind,)) for name, kind in _NAMED.items()}
"""The names that are types, with the type that each name has."""
