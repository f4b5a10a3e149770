"""What is known of a video before anything is played: its file and its limits. Nothing here needs torch."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

SUFFIXES = (".mp4", ".gif")
MOST_STEPS = 1000
FRAMES_PER_SECOND, HIGHEST_FPS = 10, 50


def check_target(path: str | PathLike[str], suffixes: Sequence[str] = SUFFIXES) -> None:
    """Find out before anything is played that no video could be written there.

    Raises:
      ValueError: for another suffix than these, or a folder that does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        listed = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(f"{path}: expected a file name that ends in {listed}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: expected a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
