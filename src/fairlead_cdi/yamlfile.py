"""Decodes YAML with PyYAML, by the rules of the engines' YAML decoder.

Plain scalars are read as the engines' decoder (go-yaml v2) reads them, not as PyYAML would: `1:0` is the name of a MIG
device and not sixty-something, dates are text, `0o660` is octal, `1e3` is a number, `y` and `n` are booleans. This is
the only module that imports PyYAML. `directory.scan` loads it when the first YAML file is read; `yamltext` writes YAML
without it.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from fairlead_cdi import errors, parse, yamltext

_INTEGER: Final = re.compile(r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")


DEEPEST: Final = 64
"""No manifest, spec or kubeconfig is nested deeper."""


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's C parser; its Python one where PyYAML was built without libyaml."""


class _Loader(_Base):  # type: ignore[misc]  # which of the two it is, is known at run time
    """PyYAML's parser with go-yaml's idea of plain scalars, and with duplicate keys refused."""


# Every plain scalar gets this one tag, so that explicit tags and quotes still mean what they say.
_PLAIN: Final = "!plain"
_MERGE: Final = "<<"
_Loader.yaml_implicit_resolvers = {}
_Loader.add_implicit_resolver(_PLAIN, re.compile("", re.DOTALL), None)


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    merged: list[Any] = []
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        value = loader.construct_object(value_node, deep=True)
        if key == _MERGE and key_node.tag == _PLAIN:
            merged.extend(value if isinstance(value, list) else [value])
        elif (name := parse.scalar_text(key, "key")) in found:
            raise yaml.constructor.ConstructorError(None, None, f'key "{name}" is given twice', key_node.start_mark)
        else:
            found[name] = value
    for item in merged:
        if not isinstance(item, dict):
            raise yaml.constructor.ConstructorError(None, None, "merge of something not a mapping", node.start_mark)
        found = item | found
    return found


def _construct_plain(loader: Any, node: yaml.ScalarNode) -> object:
    """Resolve one unquoted scalar by go-yaml's rules."""
    text = loader.construct_scalar(node)
    if text in yamltext.TRUE or text in yamltext.FALSE:
        return text in yamltext.TRUE
    if text in yamltext.NULL:
        return None
    return _number(text)


def _number(text: str) -> object:
    """Read a number, or give the text back where it is none."""
    plain = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        digits = plain.lstrip("+-")
        is_old_octal = len(digits) > 1 and digits.isdigit() and digits[0] == "0"
        try:
            value = int(digits, 8) if is_old_octal else int(digits, 0)
        except ValueError:
            return float(plain) if _FLOAT.fullmatch(plain) else text
        return -value if plain[0] == "-" else value
    return float(plain) if _FLOAT.fullmatch(plain) else text


_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_constructor(_PLAIN, _construct_plain)


def check_depth(text: str | bytes, deepest: int = DEEPEST) -> None:
    """Refuse nesting on which the loader, which recurses in C, would end the process.

    Raises: yaml.YAMLError: it is nested too deeply, or is not YAML.
    """
    depth = 0
    for event in yaml.parse(text, _Base):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > deepest:
            raise yaml.YAMLError(f"it is nested deeper than {deepest} levels")


def decode_yaml(data: bytes) -> object:
    """Decode the first YAML document into plain values; later ones are ignored, as by the engines.

    Raises: DocumentError: not YAML, a key given twice in one mapping, a tag of another language.
    """
    try:
        check_depth(data)
        loader = _Loader(data)
        try:
            return loader.get_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = f"not a YAML document: {' '.join(str(error).split())}"
        raise errors.DocumentError(message, reason="SpecUndecodable") from error
