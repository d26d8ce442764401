"""Evaluates a ValidatingAdmissionPolicy of the chart by our own CEL, as an API server does with its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from fairlead import errors
from fairlead.plan.cel import compile as cel
from fairlead.plan.cel import device

DEVICE: Final = device.DeviceView(driver="gpu.nvidia.com")


def literal(value: Any) -> str:
    """Write a document as CEL that is typed as little as an object from outside."""
    if isinstance(value, dict):
        return "dyn({" + ", ".join(f"{json.dumps(key)}: {literal(one)}" for key, one in value.items()) + "})"
    if isinstance(value, list):
        return "dyn([" + ", ".join(map(literal, value)) + "])"
    return f"dyn({json.dumps(value)})"


def holds(policy: Mapping[str, Any], expression: str, document: Any, **beside: Any) -> bool:
    """Return whether an expression is true; one that ends in an error refuses, as the policy says.

    Args: policy: its spec.   document: the object.   beside: what else the server binds, such as `request`.
    """
    text = f"({expression})"
    for one in reversed(policy["variables"]):
        name = one["name"]
        if re.search(rf"\bvariables\.{name}\b", text):
            text = re.sub(rf"\bvariables\.{name}\b", f"{name}_", f"cel.bind({name}_, {one['expression']}, {text})")
    for name, value in {"object": document, **beside}.items():
        text = f"cel.bind({name}, {literal(value)}, {text})"
    return cel.compile_selector(text).matches(DEVICE)


def refusals(policy: Mapping[str, Any], document: Any, **beside: Any) -> list[str]:
    """Return the messages, or the expressions for them, of the validations that refuse a document."""
    said = []
    for one in policy["validations"]:
        try:
            is_right = holds(policy, one["expression"], document, **beside)
        except errors.FairleadError as error:
            if error.reason != "CELFailed":
                raise
            is_right = False  # failurePolicy: Fail
        if not is_right:
            said.append(one.get("message") or one["messageExpression"])
    return said
