"""Lists what nobody well-meaning writes: values that a hostile author puts where a document has a string.

A value is a plain one of JSON, or `Raw`: bytes as they stand in the document itself, for what no encoder would write
(invalid UTF-8, keys twice, nesting without end, tags and aliases of YAML). Raw JSON is YAML too; TOML refuses most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MARK: Final = "fuzz-mark-5e0c"
"""Stands in texts whose way into another program's arguments is followed."""
MIB: Final = 1 << 20
LARGEST: Final = 10 * MIB
DEEP: Final = 100_000
PLANTED: Final = "fairlead-fuzz-planted"
"""Name of the file that a value asks a shell or a YAML reader to make."""


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that take a value's place in the encoded document."""

    data: bytes


Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"] | Raw


@dataclass(frozen=True, slots=True)
class Hostile:
    """One value, with a name for messages."""

    name: str
    value: Value
    is_large: bool = False
    """Costs some milliseconds in every field; a sample takes it once a door."""


_TEXTS: Final = {
    "empty": "",
    "blank": " \t ",
    "option": f"--privileged={MARK}",
    "bare option": "--privileged",
    "short option": "-v",
    "double dash": "--",
    "option with a value": f"--volume=/:/host:rw,{MARK}",
    "option in the middle": f"x --privileged {MARK}",
    "response file": f"@/etc/passwd-{MARK}",
    "NUL": f"a\0{MARK}",
    "NUL at the end": "nvidia.com/gpu\0",
    "up the tree": "../../../../../../etc/passwd",
    "dots": "..",
    "dot": ".",
    "absolute path": f"/etc/{MARK}",
    "root": "/",
    "proc": "/proc/self/fd/0",
    "endless device": "/dev/zero",
    "escaped path": "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "backslashes": "..\\..\\x",
    "pattern": "/**/*",
    "pattern of parents": "/*/../*/../*/../*/../*/../*",
    "shell": f"$(touch /tmp/{PLANTED}); `touch /tmp/{PLANTED}` | touch /tmp/{PLANTED} &",
    "newline": f"a\n{MARK}: true",
    "carriage return": f"a\r\nSet-Cookie: {MARK}",
    "ANSI": "\x1b]0;title\x07\x1b[2J\x1b[31m",
    "C1": "\x9b31m\x85",
    "bidi": "\u202egpj.exe\u2066",
    "lone surrogate": "a\ud800b",
    "surrogates swapped": "\udc00\ud800",
    "escaped byte": "\udcff",
    "not a character": "\ufffe\U0010ffff",
    "byte order mark": "\ufeffx",
    "combining": "e" + "\u0301" * 500,
    "zero width": "nvidia\u200b.com/gpu",
    "other digits": "\u0661\u0662",
    "upper sharp s": "\u1e9e\u0130",
    "template": "{{.Values}} ${HOME} %s %n {0.__class__} %(x)s",
    "quotes": "'\"`\\",
    "brackets": "[x](y)<!--]]>",
    "many slashes": "/" * 5000,
    "many colons": ":" * 5000,
    "many dots": "a." * 5000,
    "many commas": "," * 5000,
    "many equals": "=" * 5000,
    "unbalanced": "(" * 3000,
    "words of numbers": "NaN",
    "infinite": "Infinity",
    "minus zero": "-0",
    "5,000 digits": "9" * 5000,
    "exponent": "1e999999999",
    "quantity": "1e308Ei",
    "Norway": "no",
    "date": "2001-12-14",
    "date out of range": "9999-99-99T99:99:99Z",
    "null word": "null",
    "regular expression": "(a+)+$" + "a" * 40 + "!",
    "64 KiB": "x" * 65536,
}

_SHAPES: Final[dict[str, Value]] = {
    "null": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus one": -1,
    "2^31": 2**31,
    "2^63": 2**63,
    "2^64": 2**64,
    "10^400": 10**400,
    "fraction": 0.5,
    "largest float": 1.7e308,
    "empty list": [],
    "empty map": {},
    "list": ["a", 1, None, {}],
    "list of null": [None],
    "map": {"a": "b", "": None},
    "hostile keys": {"--privileged": "x", "a\0b": "y", "../..": "z", "__class__": {"__init__": 1}},
    "70 levels": Raw(b"[" * 70 + b"]" * 70),
    "500 levels": Raw(b'{"a":' * 500 + b"1" + b"}" * 500),
    "5,000-digit number": Raw(b"9" * 5000),
    "number without bounds": Raw(b"1e999999"),
    "NaN": Raw(b"NaN"),
    "invalid UTF-8": Raw(b'"\xff\xfe\xc0\x80"'),
    "keys twice": Raw(b'{"name":"a","name":"b"}'),
    "cut short": Raw(b'"'),
    "comma": Raw(b","),
    "NUL byte": Raw(b'"a\0b"'),
    "control byte": Raw(b'"a\x1bb"'),
    "escape cut short": Raw(b'"\\u12"'),
}

_LARGE: Final[dict[str, Value]] = {
    "10 MiB": "x" * LARGEST,
    "10 MiB of escapes": "\x1b" * (LARGEST // 6),
    "100,000 levels of lists": Raw(b"[" * DEEP + b"]" * DEEP),
    "100,000 levels of maps": Raw(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "100,000 items": Raw(b"[" + b"0," * DEEP + b"0]"),
    "20,000 keys": Raw(b"{" + b",".join(b'"k%d":"v"' % i for i in range(20_000)) + b"}"),
}

_YAML: Final[dict[str, bytes]] = {
    "python tag": b'!!python/object/apply:os.system ["touch /tmp/%s"]' % PLANTED.encode(),
    "python name": b"!!python/name:os.system",
    "unknown tag": b"!x y",
    "binary": b"!!binary aGVsbG8=",
    "bad binary": b"!!binary '%%%'",
    "set": b"!!set {a, b}",
    "timestamp": b"2001-12-14t21:59:43.10-05:00",
    "timestamp out of range": b"2001-99-99",
    "bad integer": b"!!int x",
    "Norway": b"no",
    "sexagesimal": b"190:20:30",
    "octal": b"0o17",
    "alias to nothing": b"*nothing",
    "alias to itself": b"&a [*a]",
    "map with itself": b"&a {a: *a}",
    "merge": b"{<<: {a: b}}",
    "merge of itself": b"&a {<<: *a}",
    "complex key": b"{? [a, b] : c}",
    "map as key": b"{? {a: b} : c}",
    "number as key": b"{1: a, null: b, true: c}",
    "alias bomb": b"[&a [x,x,x,x,x,x,x,x,x],"
    + b",".join(b"&%c [%s]" % (98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(8))
    + b"]",
    "infinity": b".inf",
    "not a number": b".nan",
}

DOCUMENTS: Final[dict[str, bytes]] = {
    "nothing": b"",
    "NUL": b"\0",
    "spaces": b" " * 1000,
    "newlines": b"\n" * 1000,
    "null": b"null",
    "text": b'"x"',
    "number": b"1",
    "list": b"[]",
    "empty map": b"{}",
    "list of map": b"[{}]",
    "not UTF-8": b"\xff\xfe\0a",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf{}",
    "tab": b"\t{}",
    "100,000 lists": b"[" * DEEP,
    "100,000 maps": b'{"a":' * DEEP,
    "100,000 YAML lists": b"- " * DEEP,
    "YAML maps": b"".join(b" " * i + b"a:\n" for i in range(400)),
    "100,000 TOML tables": b"[" + b"a." * DEEP + b"a]",
    "TOML keys": b"a." * 5000 + b"a = 1",
    "YAML alias to itself": b"&a\n- *a\n",
    "YAML tag": b"!!python/object/apply:os.system ['touch /tmp/%s']\n" % PLANTED.encode(),
    "two documents": b"---\n{}\n---\n{}\n",
    "1,000 documents": b"---\n" * 1000,
    "directive": b"%YAML 9.9\n---\n{}\n",
    "5,000-digit number": b"9" * 5000,
    "script": b"#!/bin/sh\ntouch /tmp/%s\n" % PLANTED.encode(),
    "ELF": b"\x7fELF" + b"\xff" * 200,
}
LARGE_DOCUMENTS: Final[dict[str, bytes]] = {
    "10 MiB of NUL": bytes(LARGEST),
    "10 MiB of spaces": b" " * LARGEST,
    "10 MiB of comment": b"# x\n" * (LARGEST // 4),
    "10 MiB of one word": b"x" * LARGEST,
}

TEXTS: Final = tuple(Hostile(name, text) for name, text in _TEXTS.items())
SHAPES: Final = tuple(Hostile(name, value) for name, value in _SHAPES.items())
LARGE: Final = tuple(Hostile(name, value, is_large=True) for name, value in _LARGE.items())
YAML: Final = tuple(Hostile(f"YAML {name}", Raw(data)) for name, data in _YAML.items())
JSON_VALUES: Final = (*TEXTS, *SHAPES, *LARGE)
YAML_VALUES: Final = (*JSON_VALUES, *YAML)
