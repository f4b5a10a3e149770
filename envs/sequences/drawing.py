"""Text as a picture, for videos."""

import textwrap

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN = 480, 320, 12
FONT_SIZE, LINE_HEIGHT, CHARACTERS = 15, 20, 56


def draw_text(text: str) -> NDArray[np.uint8]:
    """The text on white, uint8 [HEIGHT, WIDTH, 3]. Long lines are wrapped; if it does not fit, the end is shown."""
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, CHARACTERS) or [""]]
    lines = lines[-((HEIGHT - 2 * MARGIN) // LINE_HEIGHT) :]
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    drawing, font = ImageDraw.Draw(image), ImageFont.load_default(FONT_SIZE)
    for row, line in enumerate(lines):
        drawing.text((MARGIN, MARGIN + row * LINE_HEIGHT), line, "black", font)
    return np.array(image)
