"""A window for `render_mode="human"`; pygame is imported with the first picture."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Window:
    """A pygame window that shows images at a steady rate.

    Args:
        title: the window title.
        frames_per_second: maximum rate; `show` waits to keep it.
    """

    def __init__(self, title: str, frames_per_second: int) -> None:
        """See the class; the window opens with the first picture."""
        self._title, self._rate = title, frames_per_second
        self._screen: Any = None
        self._clock: Any = None

    def show(self, frame: NDArray[np.uint8]) -> None:
        """Shows a picture, uint8 [height, width, 3]."""
        import pygame

        if self._screen is None:
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._screen = pygame.display.set_mode((frame.shape[1], frame.shape[0]))
            self._clock = pygame.time.Clock()
        self._screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._rate)

    def close(self) -> None:
        """Closes the window; may be called again."""
        if self._screen is not None:
            import pygame

            pygame.display.quit()
            self._screen = None
