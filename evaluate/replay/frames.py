"""Recorded frames for a page, without duplicates, and reduced ones for a page that would be too large."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

MAX_SIDE = 240
"""Frames are reduced to this side in pixels and to 64 colours."""
SMALLER_SIDES = (240, 160, 120, 80, 60)
"""Further sides in pixels, with lossy compression, until a page is small enough."""
REELS = ("scene", "view")
"""Of an episode."""
QUALITY = 50
"""Of WebP, which every browser reads."""


class Frames:
    """Images in display order, without duplicates."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._order: list[int] = []

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Append an image `[H, W, 3]`."""
        picture = Image.fromarray(frame)
        picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
        file = BytesIO()
        picture.quantize(64, dither=Image.Dither.NONE).save(file, format="PNG", optimize=True)
        self._order.append(self._numbers.setdefault(b64encode(file.getvalue()).decode(), len(self._numbers)))

    def packed(self) -> dict[str, Any]:
        """Plain values: the images as base64 files, and the index of the image at each step."""
        return {"type": "image/png", "frames": list(self._numbers), "order": self._order}


def shrunk(run: Mapping[str, Any], side: int) -> dict[str, Any]:
    """An episode of `recorder.record` with its frames reduced to `side` pixels."""
    small = dict(run)
    for reel in REELS:
        if run[reel] is not None and "frames" in run[reel]:
            files = [_smaller(file, side) for file in run[reel]["frames"]]
            small[reel] = run[reel] | {"type": "image/webp", "frames": files}
    return small


def _smaller(png: str, side: int) -> str:
    picture = Image.open(BytesIO(b64decode(png))).convert("RGB")
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = BytesIO()
    picture.save(file, format="WEBP", quality=QUALITY)
    return b64encode(file.getvalue()).decode()
