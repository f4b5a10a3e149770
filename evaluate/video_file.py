"""Checks of a video's file name and limits before any episode is played. Does not import torch."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

SUFFIXES = (".mp4", ".gif")
MOST_STEPS = 1000
FRAMES_PER_SECOND, HIGHEST_FPS = 10, 50


def check_target(path: str | PathLike[str], suffixes: Sequence[str] = SUFFIXES) -> None:
    """Check that a video can be written to a path, before any episode is played.

    Raises:
      ValueError: for another suffix, or a folder that does not exist.
    """
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        listed = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ValueError(f"{path}: expected a file name that ends in {listed}")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: expected a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
