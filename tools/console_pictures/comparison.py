"""Compares two pictures as an eye at arm's length does: block by block, not pixel by pixel. Pure, but for `Decoder`.

The tolerance was measured, not chosen: see `MOVED`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""Rows, columns, red, green and blue."""
BLOCK: Final = 8
"""Pixels of a kept picture at a block's side: 16 CSS pixels, a letter or two."""
MOVED: Final = 14.0
"""Of 255: what a block's mean must differ by, in its strongest colour."""
TALLER: Final = 4
"""Pixels by which a page may be taller or shorter: less than half a line."""


@dataclass(frozen=True)
class Difference:
    """How two pictures differ."""

    blocks: int
    """That differ by more than `MOVED`."""
    most: float
    """Difference of the block that differs most."""
    taller: int
    """Pixels by which the new one is taller."""

    @property
    def is_changed(self) -> bool:
        """Whether somebody must look."""
        return self.blocks > 0 or abs(self.taller) > TALLER


def compare(old: Picture, new: Picture) -> Difference:
    """Compare two pictures; of one that is wider or taller, the part that the other lacks counts as different."""
    rows, columns = min(old.shape[0], new.shape[0]), min(old.shape[1], new.shape[1])
    apart = np.abs(_blocks(old[:rows, :columns]) - _blocks(new[:rows, :columns])).max(axis=2)
    beyond = int(old.shape[1] != new.shape[1])
    most = float(apart.max(initial=0.0))
    return Difference(int((apart > MOVED).sum()) + beyond, most, new.shape[0] - old.shape[0])


def _blocks(picture: Picture) -> NDArray[np.float64]:
    """Return the mean of each block; what is left at the right and the bottom is filled up with its edge."""
    rows, columns = picture.shape[:2]
    padded = np.pad(picture.astype(np.float64), ((0, -rows % BLOCK), (0, -columns % BLOCK), (0, 0)), mode="edge")
    high, wide = padded.shape[0] // BLOCK, padded.shape[1] // BLOCK
    means: NDArray[np.float64] = padded.reshape(high, BLOCK, wide, BLOCK, 3).mean(axis=(1, 3))
    return means


_DECODE: Final = """(async () => {
  const blob = await (await fetch("data:image/webp;base64," + %s)).blob();
  const image = await createImageBitmap(blob);
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const data = context.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let at = 0; at < data.length; at += 32768) text += String.fromCharCode(...data.subarray(at, at + 32768));
  return [image.width, image.height, btoa(text)];
})()"""
_STYLE: Final = """body { margin: 0; padding: 12px; background: #777; font: 14px sans-serif; color: #fff; display: flex;
  gap: 12px; align-items: start } figure { margin: 0 } img { display: block } .over { display: grid; background: #fff }
  .over > * { grid-area: 1 / 1 } .over img + img { mix-blend-mode: difference }"""


def _sides(old: bytes, new: bytes) -> str:
    """Return a page with two pictures, and a third that is black where they are the same."""
    kept, now = (f'<img src="data:image/webp;base64,{base64.b64encode(one).decode()}">' for one in (old, new))
    over = f'<figure>difference<div class="over">{kept}{now}</div></figure>'
    return f"<!doctype html><style>{_STYLE}</style><figure>kept{kept}</figure><figure>now{now}</figure>{over}"


class Decoder:
    """Has a tab of Chromium decode pictures, and draw two side by side."""

    def __init__(self, page: Any) -> None:
        self._page = page
        page.open("about:blank")

    def decode(self, data: bytes) -> Picture:
        """Return a picture's pixels."""
        width, height, text = self._page.ask(_DECODE % json.dumps(base64.b64encode(data).decode()))
        pixels = np.frombuffer(base64.b64decode(text), np.uint8).reshape(height, width, 4)
        return pixels[:, :, :3]

    def sides(self, old: bytes, new: bytes) -> bytes:
        """Return a PNG: the kept picture, the new one, and where they differ."""
        frame = self._page.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        self._page.call("Page.setDocumentContent", frameId=frame, html=_sides(old, new))
        width, height = self._page.ask(
            "Promise.all([...document.images].map((one) => one.decode())).then(() => ["
            "3 * Math.max(...[...document.images].map((one) => one.naturalWidth)) + 60,"
            "Math.max(...[...document.images].map((one) => one.naturalHeight)) + 60])"
        )
        self._page.look(width=width, height=height)
        picture: bytes = self._page.picture(whole=False)
        return picture


def changed(decoder: Decoder, pairs: Iterator[tuple[str, bytes, bytes]]) -> Iterator[tuple[str, Difference]]:
    """Compare pictures by name; equal files are not decoded."""
    for name, old, new in pairs:
        if old != new:
            yield name, compare(decoder.decode(old), decoder.decode(new))
