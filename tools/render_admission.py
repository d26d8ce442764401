"""Write the chart's policy on tenants' pods from the table that the standalone API judges by.

`python -m tools.render_admission` rewrites the template; the house ring compares it with the table. Lists that an
operator may change stand in the chart's values, whose defaults the house ring compares as well.
Source: Kubernetes, "Common Expression Language in Kubernetes"; cel-go ext/README.md (strings, optional types).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from fairlead.cli.admin import manifests
from fairlead.plan.pod import tenantrule

_MADE: Final = "{{- /* Made by tools/render_admission.py from src/fairlead/plan/pod/tenantrule.py. */}}"
_HEAD: Final = """\
{{- $name := include "fairlead.fullname" . }}
{{- if .Values.admission.deviceAccess.enabled }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ $name }}-device-access
  labels:
    {{- include "fairlead.labels" (dict "root" $ "component" "admission") | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      {{- include "fairlead.podRules" . | nindent 6 }}
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [UPDATE]
        scope: "*"
        resources: [pods]
  variables:
    {{- /* What a pod was made with is judged when it is made: an older one can still be changed and ended. */}}
    - name: made
      expression: >-
        request.operation == 'CREATE' || request.?subResource.orValue('') != ''
    - name: containers
      expression: >-
        CONTAINERS
"""
_TAIL: Final = """\
---
{{- $who := toYaml .Values.admission.tenants }}
{{ include "fairlead.policyBinding" (dict "root" $ "policy" "device-access" "actions" (list "Deny") "tenants" $who) }}
{{- end }}
"""


def path() -> Path:
    """Return the template's path."""
    return manifests.CHART / "templates" / "tenantpods.yaml"


def text() -> str:
    """Return the template."""
    containers = " + ".join(_each("object", f"spec.{kind}[*]") for kind in tenantrule.CONTAINERS)
    lines = [_MADE, _HEAD.replace("CONTAINERS", containers).rstrip("\n")]
    for rule in tenantrule.RULES:
        lines += [f"    - name: {rule.name}", "      expression: >-", f"        {_variable(rule)}"]
    lines.append("  validations:")
    for rule in tenantrule.RULES:
        condition = f"size(variables.{rule.name}) == 0"
        if not rule.after_creation:
            condition = f"!variables.made || {condition}"
        lines += [
            f'    - expression: "{condition}"',
            "      reason: Forbidden",
            "      messageExpression: >-",
            f"        {_message(rule)}",
        ]
    return "\n".join(lines) + "\n" + _TAIL


def _variable(rule: tenantrule.Rule) -> str:
    """Return the expression for what a rule finds: a list of texts."""
    if not rule.per_container:
        return _refused(rule, "object")
    found = _refused(rule, "c")
    if isinstance(rule.refuses, tenantrule.IsSet):
        return f"variables.containers.filter(c, size({found}) > 0).map(c, c.name)"
    return f"variables.containers.map(c, size({found}) > 0, c.name + ' (' + {found}.join(', ') + ')')"


def _refused(rule: tenantrule.Rule, base: str) -> str:
    """Return the expression for the values below `base` that a rule refuses."""
    values = _each(base, rule.field)
    match rule.refuses:
        case tenantrule.IsSet():
            # As texts, so that every rule finds a list of them.
            return f"{values}.filter(v, v).map(v, string(v))"
        case tenantrule.NotIn(words, value) | tenantrule.In(words, value):
            found = f"v in {_list(words, value)}"
            return f"{values}.filter(v, {f'!({found})' if isinstance(rule.refuses, tenantrule.NotIn) else found})"
        case tenantrule.OfKind(allowed):
            # Of the kinds that this API server knows one is set, which it checks by itself.
            known = " || ".join(f"has(v.{kind})" for kind in allowed)
            return f"{values}.filter(v, !({known})).map(v, v.name)"
        case tenantrule.LeadsTo(guarded, value):
            return (
                f"{values}.map(v, '/' + v.split('/').filter(part, part != '' && part != '.').join('/'))"
                f"{''.join(_aliased(link, target) for link, target in tenantrule.ALIASES.items())}"
                f".filter(v, v.split('/').exists(part, part == '..') || {_list(guarded, value)}.exists(guarded, "
                "(v + '/').startsWith(guarded) || guarded.startsWith(v == '/' ? v : v + '/')))"
            )
        case tenantrule.Matches(pattern):
            old = "oldObject.?metadata.?annotations.orValue({})"
            changed = f"(oldObject == null || !(v in {old}) || {old}[v] != object.metadata.annotations[v])"
            kept = f" && {changed}" if rule.after_creation else ""
            return f"{values}.filter(v, v.matches({_quoted(pattern)}){kept})"
        case tenantrule.Unlisted(annotation, is_closed, is_image):
            listed = f"{_annotation(annotation)}.orValue('').split(',').map(p, p.trim())"
            below = "p.endsWith('/') ? v.startsWith(p) : (v.startsWith(p + ':') || v.startsWith(p + '@'))"
            same = f"p != '' && (v == p || (({below}) && (p.endsWith('/') || !v.substring(size(p)).contains('/'))))"
            kept = f" && (oldObject == null || !(v in {_old_images()}))" if rule.after_creation else ""
            found = same if is_image else "p != '' && (v == p || p == '/')" if is_closed else "p != '' && v == p"
            given = "" if is_closed else f"{_annotation(annotation)}.hasValue() && "
            return f"{values}.filter(v, {given}!{listed}.exists(p, {found}){kept})"


def _annotation(name: str) -> str:
    """Return the expression for an annotation of the pod's namespace: an optional text."""
    return f"namespaceObject.metadata.?annotations[?{_quoted(name)}]"


def _old_images() -> str:
    """Return the expression for the images that the pod had before."""
    return f"({' + '.join(_each('oldObject', f'spec.{kind}[*].image') for kind in tenantrule.CONTAINERS)})"


def _aliased(link: str, target: str) -> str:
    here, below = _quoted(link), _quoted(f"{link}/")
    return f".map(v, v == {here} || v.startsWith({below}) ? {_quoted(target)} + v.substring({len(link)}) : v)"


def _each(base: str, field: str) -> str:
    """Return the expression for the list of values at a field path."""
    if field.endswith(".*"):
        return f"{_optional(base, field.removesuffix('.*'))}.orValue({{}}).map(k, k)"
    head, star, rest = field.partition("[*]")
    if not star:
        return f"{_optional(base, field)}.optMap(v, [v]).orValue([])"
    members = f"{_optional(base, head)}.orValue([])"
    if not rest:
        return members
    member = _optional("m", rest.removeprefix("."))
    return f"{members}.map(m, {member}.hasValue(), {member}.value())"


def _optional(base: str, field: str) -> str:
    return base + "".join(f".?{step}" for step in field.split("."))


def _list(items: tuple[str, ...], value: str) -> str:
    return f"{{{{ toJson .Values.admission.deviceAccess.{value} }}}}" if value else json.dumps(list(items))


def _message(rule: tenantrule.Rule) -> str:
    return " + ".join(_parts(rule))


def _parts(rule: tenantrule.Rule) -> Iterator[str]:
    for part in re.split(r"(\{\w+\})", rule.message):
        match part:
            case "{found}":
                yield f"variables.{rule.name}.join(', ')"
            case "{allowed}" if isinstance(rule.refuses, tenantrule.OfKind):
                yield _quoted(", ".join(rule.refuses.allowed))
            case "{allowed}" if isinstance(rule.refuses, tenantrule.NotIn) and rule.refuses.value:
                yield f'{{{{ toJson (join ", " .Values.admission.deviceAccess.{rule.refuses.value}) }}}}'
            case "{allowed}" if isinstance(rule.refuses, tenantrule.Unlisted):
                yield f"{_annotation(rule.refuses.annotation)}.orValue('')"
            case "":
                pass
            case _:
                yield _quoted(part)


def _quoted(words: str) -> str:
    """Return a CEL literal. Raises ValueError for what would need an escape there."""
    if "\\" in words or '"' in words or "{{" in words:
        raise ValueError(f"not plain: {words!r}")
    return f'"{words}"' if "'" in words else f"'{words}'"


if __name__ == "__main__":
    path().write_text(text())
