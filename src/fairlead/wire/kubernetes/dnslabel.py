"""Tells RFC 1123 labels, the names that Kubernetes allows where a name is part of a host name or a path.

Source: apimachinery pkg/util/validation, IsDNS1123Label.
"""

from __future__ import annotations

import re
from typing import Final

RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character"
)
"""What is wrong with a text that is not a label, in the API server's words."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def is_label(text: str) -> bool:
    """Tell whether a text is a label, at most 63 characters long."""
    return _LABEL.fullmatch(text) is not None
