"""Draw curves as SVG: axes, a line for each name, a legend. No library."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 60, 200, 40, 50
_COLOURS = ("#0b6e99", "#d9730d", "#0f7b6c", "#ad1a72", "#6940a5", "#64473a", "#9b9a97", "#dfab01", "#e03e3e")


def svg(curves: Mapping[str, Mapping[int, float]], *, title: str, across: str, up: str) -> str:
    """Return a picture. Args: curves: by name, values by place on the horizontal axis."""
    xs = [at for one in curves.values() for at in one] or [0, 1]
    ys = [value for one in curves.values() for value in one.values()] or [0.0, 1.0]
    left, right, low, high = min(xs), max(xs), int(min(ys)) // 5 * 5, (int(max(ys)) // 5 + 1) * 5
    wide, tall = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            _LEFT + wide * (x - left) / max(1, right - left),
            _TOP + tall * (high - y) / max(1, high - low),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{_LEFT + wide / 2:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(across)}</text>',
        f'<text x="16" y="{_TOP + tall / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 16 {_TOP + tall / 2:.0f})">{escape(up)}</text>',
    ]
    for y in range(low, high + 1, 5):
        _, at = place(left, y)
        parts.append(f'<path d="M{_LEFT} {at:.1f}h{wide}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{y}</text>')
    for x in range(-(-left // 10) * 10, right + 1, 10):
        at, _ = place(x, low)
        parts.append(f'<text x="{at:.1f}" y="{_TOP + tall + 18}" text-anchor="middle">{x}</text>')
    for number, (name, one) in enumerate(curves.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = " ".join("{:.1f},{:.1f}".format(*place(at, value)) for at, value in sorted(one.items()))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        y = _TOP + 16 * number
        parts.append(f'<path d="M{_LEFT + wide + 16} {y}h18" stroke="{colour}" stroke-width="3"/>')
        parts.append(f'<text x="{_LEFT + wide + 40}" y="{y + 4}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
