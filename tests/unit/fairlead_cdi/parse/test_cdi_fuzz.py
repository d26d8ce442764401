"""The reader's only failure is DocumentError, whatever the bytes; what it accepts it can say again."""

from __future__ import annotations

import contextlib
import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_cdi import emit, errors, lint, parse, yamlfile

FIELDS = """
    cdiVersion kind annotations devices containerEdits Kind extra name
    env deviceNodes netDevices hooks mounts intelRdt additionalGids
    path hostPath type major minor fileMode permissions uid gid hostInterfaceName
    hookName args timeout containerPath options closID schemata enableMonitoring
"""
KEYS = st.sampled_from(FIELDS.split())
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "0.3.0", "1.1.0", "vendor.com/gpu", "gpu0", "A=b", "/dev/x", "c", "prestart"])
    | st.text(alphabet=string.ascii_letters + string.digits + string.punctuation + " \näß€", max_size=8)
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)
DOCUMENTS = st.builds(
    lambda base, edits, more: base | {"devices": [{"name": "gpu0", "containerEdits": edits}]} | more,
    st.just({"cdiVersion": "1.1.0", "kind": "vendor.com/gpu"}),
    st.dictionaries(KEYS, VALUES, max_size=4),
    st.dictionaries(KEYS, VALUES, max_size=1),
)


@settings(max_examples=150)
@given(DOCUMENTS | VALUES)
def test_any_document_is_read_or_refused(document: object) -> None:
    with contextlib.suppress(errors.DocumentError):
        spec = parse.parse_spec(json.dumps(document).encode())
        assert parse.build_spec(emit.as_document(spec)) == spec
        lint.lint(spec)


@settings(max_examples=150)
@given(DOCUMENTS)
def test_json_read_as_yaml_gives_the_same_verdict(document: object) -> None:
    data = json.dumps(document, ensure_ascii=False).encode()
    verdicts: list[object] = []
    for decode in (parse.decode_json, yamlfile.decode_yaml):
        try:
            verdicts.append(parse.parse_spec(data, decode=decode))
        except errors.DocumentError:
            verdicts.append(None)
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("decode", [parse.decode_json, yamlfile.decode_yaml])
@settings(max_examples=150)
@given(
    data=st.binary(max_size=40) | st.text(alphabet="{}[]:,&*!|>-?#'\"\\ \n\tabc01.<=~%@`", max_size=40).map(str.encode)
)
def test_any_bytes_are_decoded_or_refused(decode: parse.Decoder, data: bytes) -> None:
    with contextlib.suppress(errors.DocumentError):
        parse.parse_spec(data, decode=decode)
