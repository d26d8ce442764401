"""The articles' manifests stay as the articles print them: whoever edits one edits a copy."""

from __future__ import annotations

import hashlib
from typing import Final

from tests import articles

_DIGESTS: Final = {
    "cuda-mem-test": "b8949a163e6f350e",
    "dra-workload": "9eef06130b042961",
    "gpu-debug": "2175035b9af1adbd",
    "gpu-node-1": "0be86e403fd25255",
    "gpu-pod": "cdda210c54ce78d3",
    "gpu-quota": "112e1a3b7714837f",
    "gpu-workload": "924ffa4c5e112be7",
    "optimized-gpu-workload": "b773f6943909baee",
    "secure-gpu-workload": "ea98be6f7244e108",
}
"""Of the lines after ours, without indentation: the articles' own lost theirs on the way here."""


def test_the_manifests_are_the_articles_word_for_word_and_each_says_what_to_expect() -> None:
    found = {}
    for path in sorted(articles.FOLDER.glob("*.yaml")):
        first, *lines = path.read_text().splitlines()
        assert "Expect: " in f"{first} {lines[0]}", path.name
        if first.startswith("# From the articles, verbatim. "):
            words = "\n".join(line.strip() for line in lines)
            found[path.stem] = hashlib.sha256(words.encode()).hexdigest()[:16]
    assert found == _DIGESTS


def test_every_manifest_is_in_the_table() -> None:
    table = (articles.FOLDER / "README.md").read_text()
    assert [path.name for path in articles.FOLDER.glob("*.yaml") if f"`{path.name}`" not in table] == []
