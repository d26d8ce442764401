"""Decodes YAML that others wrote into plain values: PyYAML's safe types, and no nesting that would end the process.

Loaded with the first file that is YAML: PyYAML takes 35 ms and a megabyte of every process.
"""

from __future__ import annotations

import yaml

from fairlead_cdi import yamlfile


def load(data: bytes) -> object:
    """Decode one document; an empty one is None. Raises: ValueError: it is not YAML, or is nested too deeply."""
    try:
        yamlfile.check_depth(data)
        return yaml.load(data, yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
