"""Walks trees without Python's stack, so that how deep an expression nests is bounded by our words and by no frame."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def descend(visit: Callable[[Asked], Generator[Asked, Answer, Answer]], start: Asked) -> Answer:
    """Return what `visit` returns for the start; what a visit yields is visited, and the answer sent back."""
    stack = [visit(start)]
    answer: Answer | None = None
    while True:
        try:
            asked = next(stack[-1]) if answer is None else stack[-1].send(answer)
        except StopIteration as done:
            stack.pop()
            if not stack:
                found: Answer = done.value
                return found
            answer = done.value
        else:
            stack.append(visit(asked))
            answer = None
