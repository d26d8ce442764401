"""Puts a scheduler's reasons into a person's words: events and conditions keep Kubernetes', people read these. Pure.

Source: the messages of kube-scheduler's filters (`ErrReason…`), which ours repeat.
"""

from __future__ import annotations

import re
from typing import Final

_MESSAGE: Final = re.compile(r"0/(?P<nodes>[0-9]{1,9}) nodes are available: (?P<why>.*?)\.(?=\s|$)")
_EACH: Final = re.compile(r", (?=\d+ |and \d+ more )")
_COUNTED: Final = re.compile(r"(?P<nodes>[0-9]{1,9}) (?P<why>.+)", re.DOTALL)
_LACK: Final = re.compile(r"Insufficient (?P<resource>\S+)")
_TAINT: Final = re.compile(r"node\(s\) had untolerated taint \{(?P<key>[^:}]*): (?P<value>[^}]*)\}")
_WORDS: Final = {
    "Too many pods": "as many containers as may run there",
    "node(s) were not ready": "not ready",
    "node(s) were unschedulable": "closed to new containers",
    "node(s) didn't match Pod's node affinity/selector": "not with the labels that it asks for",
    "node(s) didn't have free ports for the requested pod ports": "a port that it asks for is taken",
}
_AMOUNTS: Final = {"cpu": "too little cpu", "memory": "too little memory", "ephemeral-storage": "too little disk"}
_LONGEST: Final = 8192
"""Characters of a message that is put into other words; who writes events chooses their length."""


def reason(why: str) -> str:
    """Return why a node was refused; what is not known stays as it is."""
    if found := _LACK.fullmatch(why):
        name = found["resource"]
        return f"{_AMOUNTS.get(name) or ('too few GPUs' if name.endswith('/gpu') else f'too few {name}')} free"
    if found := _TAINT.fullmatch(why):
        value = f"={found['value']}" if found["value"] else ""
        return f"tainted {found['key']}{value}, which it does not tolerate"
    return _WORDS.get(why) or why.removeprefix("node(s) ").removeprefix("reserved: ")


def message(text: str) -> str:
    """Return a message in which a scheduler counts the nodes that it refused, the rest of it unchanged."""
    return _MESSAGE.sub(_counted, text) if len(text) <= _LONGEST else text


def _counted(found: re.Match[str]) -> str:
    nodes = int(found["nodes"])
    if not nodes:
        return "there are no nodes"
    one_machine = nodes == 1
    told = []
    for part in _EACH.split(found["why"]):
        each = _COUNTED.fullmatch(part)
        if each is None:
            told.append(part)
        else:
            told.append(reason(each["why"]) + ("" if one_machine else f" on {each['nodes']}"))
    more = ";" if found.string[found.end() :].strip() else ""
    return f"{'it does not fit' if one_machine else f'none of {nodes} nodes fits'}: {', '.join(told)}{more}"
