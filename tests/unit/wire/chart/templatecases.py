"""Templates and what helm writes for them: judged by our renderer in the unit ring and by helm in the cluster ring."""

from __future__ import annotations

from typing import Any, Final

VALUES: Final[dict[str, Any]] = {
    "name": "one",
    "empty": "",
    "none": None,
    "yes": True,
    "no": False,
    "port": 9440,
    "list": ["a", "b"],
    "map": {"y": {"deep": "Y"}, "x": {"deep": "X"}},
    "odd": {"text": "1e3", "version": "1.10", "port": 8080, "on": True, "note": "a: b #c"},
}

CASES: Final[tuple[tuple[str, str], ...]] = (
    ("plain { text }", "plain { text }"),
    ("a {{ .name }} b", "a one b"),
    ("a  {{- .name -}}  b", "aoneb"),
    ("a\n  {{- /* a\n remark */ -}}  \nb", "ab"),
    ("a {{/* remark */}} b", "a  b"),
    ("{{ .empty }}|{{ .yes }}|{{ .port }}", "|true|9440"),
    ("{{ .map.x.deep }}{{ (.map).y.deep }}", "XY"),
    ("{{ if .yes }}1{{ else }}2{{ end }}{{ if .empty }}1{{ else }}2{{ end }}", "12"),
    ("{{ if .no }}1{{ else if .name }}2{{ else }}3{{ end }}", "2"),
    ("{{ if .no }}1{{ else if .empty }}2{{ else if .yes }}3{{ else }}4{{ end }}.", "3."),
    ("{{ with .map.x }}{{ .deep }}{{ else }}none{{ end }}{{ with .none }}x{{ else }}{{ .name }}{{ end }}", "Xone"),
    ("{{ range .list }}<{{ . }}>{{ end }}{{ range .none }}x{{ else }}none{{ end }}", "<a><b>none"),
    ("{{ range $i, $v := .list }}{{ $i }}{{ $v }}{{ $.name }}{{ end }}", "0aone1bone"),
    ("{{ range $k, $v := .map }}{{ $k }}={{ $v.deep }};{{ end }}", "x=X;y=Y;"),
    ("{{ $x := .name }}{{ if .yes }}{{ $x = `two` }}{{ end }}{{ $x }}", "two"),
    ("{{ $x := .name }}{{ if .yes }}{{ $x := `two` }}{{ $x }}{{ end }}{{ $x }}", "twoone"),
    ("{{ and .yes .empty .missing.deeper }}|{{ or .empty .name .missing.deeper }}", "|one"),
    ("{{ not .empty }}{{ eq .name `one` }}{{ eq .name `two` `one` }}{{ ne .name `one` }}", "truetruetruefalse"),
    ("{{ .name | quote }}{{ .port | quote }}{{ quote `a` `b` }}{{ quote .none }}", '"one""9440""a" "b"'),
    ("{{ default `d` .empty }}{{ .name | default `d` }}{{ default `d` .none }}", "doned"),
    ('{{ printf "%s-%s" .name "x" | trunc 4 | trimSuffix "-" }}', "one"),
    ('{{ "a+b" | replace "+" "_" }}{{ join "," .list }}{{ contains "n" .name }}', "a_ba,btrue"),
    ("{{ ternary `a` `b` .yes }}{{ hasKey .map `x` }}{{ `k` | hasKey .map }}", "atruefalse"),
    ("x:{{ .list | toYaml | nindent 2 }}", "x:\n  - a\n  - b"),
    ("{{ toJson .map }}{{ toJson (concat .list (list 1)) }}", '{"x":{"deep":"X"},"y":{"deep":"Y"}}["a","b",1]'),
    ('{{ dict "a" 1 "b" .name | toJson }}{{ list | toJson }}{{ indent 1 "a" }}', '{"a":1,"b":"one"}[] a'),
    ('{{ "a \\"b\\" }}" }}{{ `raw "x"` }}', 'a "b" }}raw "x"'),
)
"""Text of a template, and what it writes for `VALUES`."""

SETTINGS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("a=1", {"a": 1}),
    ("a.b.c=x,a.b.d=true", {"a": {"b": {"c": "x", "d": True}}}),
    ("a=", {"a": ""}),
    ("a=null,b=false,c=-3,d=007,e=1.5", {"a": None, "b": False, "c": -3, "d": "007", "e": "1.5"}),
    (r"a.b\.io/c=x", {"a": {"b.io/c": "x"}}),
    (r"a=x\,y", {"a": "x,y"}),
    ("a={x,1},b={}", {"a": ["x", 1], "b": [""]}),
    ("a=b=c", {"a": "b=c"}),
)
"""What --set is given, and the values it makes."""
