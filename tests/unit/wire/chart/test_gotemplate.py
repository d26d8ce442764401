"""Go templates: what the known subset writes, and that everything else is refused with file and line.

What helm itself writes for the same text is compared in `tests/cluster/test_chart_rendering.py`.
"""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.wire.gotemplate import render
from tests.unit.wire.chart import templatecases


def rendered(text: str, values: object = templatecases.VALUES, **others: str) -> str:
    return render.Templates({"t.yaml": text, **others}).render("t.yaml", values)


@pytest.mark.parametrize(("text", "written"), templatecases.CASES)
def test_the_subset_writes_what_go_writes(text: str, written: str) -> None:
    assert rendered(text) == written


def test_yaml_of_a_value_is_read_back_as_the_same_by_gos_rules() -> None:
    lines = rendered("{{ toYaml .odd }}").split("\n")
    assert lines == ['text: "1e3"', 'version: "1.10"', "port: 8080", '"on": true', 'note: "a: b #c"']


def test_a_definition_of_any_file_can_be_included_with_a_value_of_its_own() -> None:
    greet = '{{ define "greet" }}hello {{ .who }}{{ end }}'
    helpers = greet + '{{ define "twice" }}{{ include "greet" . }} {{ . | toJson }}{{ end }}'
    assert rendered('{{ include "twice" (dict "who" .name) | quote }}', helpers=helpers) == (
        '"hello one {\\"who\\":\\"one\\"}"'
    )


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a\nb {{ .a ! }}", 2, "cannot be read"),
        ("{{ 1.5 }}", 1, "cannot be read"),
        ("\n\n{{ lookup `v1` `Pod` }}", 3, "function 'lookup' is not known"),
        ('{{ tpl "x" . }}', 1, "function 'tpl' is not known"),
        ('{{ template "x" }}', 1, "action 'template' is not known"),
        ('{{ block "x" . }}{{ end }}', 1, "action 'block' is not known"),
        ("{{ range .list }}{{ break }}{{ end }}", 1, "action 'break' is not known"),
        ("{{ range $v := .list }}{{ end }}", 1, "range takes two variables"),
        ("{{ with $x := .name }}{{ end }}", 1, "declared by 'with'"),
        ("x\n{{ if .yes }}", 2, "has no end"),
        ("{{ end }}", 1, "belongs to no block"),
        ("{{ else }}", 1, "belongs to no block"),
        ("{{ if .yes }}{{ else }}{{ else }}{{ end }}", 1, "belongs to no block"),
        ("{{ if }}x{{ end }}", 1, "a value is wanted"),
        ("{{ }}", 1, "a value is wanted"),
        ("{{ (.name }}", 1, "is wanted"),
        ("{{ .name ) }}", 1, "not expected here"),
        ("{{ .name .port }}", 1, "only a function takes arguments"),
        ("{{ .name | .port }}", 1, "only a function takes arguments"),
        ("{{ .name.deep }}", 1, "no field 'deep' in str"),
        ("\n{{ .missing.deep }}", 2, "no field 'deep' in NoneType"),
        ("{{ $x }}", 1, "variable $x is not declared"),
        ("{{ $x = 1 }}", 1, "variable $x is not declared"),
        ("{{ range .name }}{{ end }}", 1, "range over str"),
        ('{{ include "ghost" . }}', 1, "include of ['ghost']"),
        ("{{ .list }}", 1, "cannot be printed"),
        ("{{ .missing }}", 1, "nothing to print"),
        ("{{ 1000000 }}", 1, "printed in another form by helm"),
        ("{{ eq .port 9440 }}", 1, "eq and ne compare texts"),
        ('{{ printf "%d" .port }}', 1, "printf knows %s alone"),
        ('{{ printf "%s" .port }}', 1, "takes as many texts"),
        ('{{ dict "a" }}', 1, "dict takes pairs"),
        ("{{ quote | nindent 2 3 4 }}", 1, "argument"),
        ('{{ define "self" }}{{ include "self" . }}{{ end }}{{ include "self" . }}', 1, "nested deeper"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, line: int, said: str) -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        rendered(text)
    assert caught.value.message.startswith(f"t.yaml:{line}: ")
    assert said in caught.value.message
    assert caught.value.reason == "TemplateUnknown"
