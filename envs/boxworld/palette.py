"""What each kind of cell looks like to the agent, and in pictures for people."""

import numpy as np

from .state import AGENT, COLOURS, FLOOR, GEM, WALL

KEY_COLOURS = (
    (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255),
    (255, 128, 0), (255, 0, 128), (128, 255, 0), (0, 255, 128), (128, 0, 255), (0, 128, 255),
    (128, 0, 0), (0, 128, 0), (0, 0, 128), (128, 0, 128),
    (255, 128, 128), (128, 255, 128), (128, 128, 255), (255, 128, 255),
)  # fmt: skip
"""Of cells 1..20. Channels are 0, 128 or 255, so any two colours differ by at least 127 in one of them."""

PALETTE = np.zeros((AGENT + 1, 3), np.uint8)
"""RGB of each kind of cell."""
PALETTE[FLOOR] = 128
PALETTE[1 : COLOURS + 1] = KEY_COLOURS
PALETTE[GEM] = 255
PALETTE[WALL] = 0
PALETTE[AGENT] = 64
