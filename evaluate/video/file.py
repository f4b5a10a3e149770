"""The file of a video: its name, checked before any episode is played, and writing it. Does not import torch."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from rmc_agents.files import check_writable

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".mp4", ".gif")
MAX_VIDEO_STEPS = 1000
FRAMES_PER_SECOND, HIGHEST_FPS = 10, 50


def check_target(path: str | PathLike[str], suffixes: Sequence[str] = SUFFIXES) -> None:
    """Check that a video can be written to a path, before any episode is played.

    Raises:
      ValueError: for another suffix, and as `check_writable` does.
    """
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        listed = " or ".join(filter(None, (", ".join(suffixes[:-1]), suffixes[-1])))
        raise ValueError(f"{path}: expected a file name that ends in {listed}")
    check_writable(path)


class HeldFrame(NamedTuple):
    """An image of a video."""

    image: "Image"
    repeats: int  # number of frames


def write_mp4(path: Path, pictures: Iterator[HeldFrame], fps: int) -> int:
    """Encode the images as they arrive, with the ffmpeg of imageio-ffmpeg; returns the number of frames."""
    first = next(pictures)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            _ffmpeg_command(path, first.image.size, fps),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,  # so that only this process receives Ctrl-C
        )
        try:
            assert process.stdin is not None
            frames = _feed(process.stdin, chain([first], pictures))
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        problem = log.read().decode(errors="replace").strip() or f"exit status {status}"
    if status != 0 or frames is None:
        raise OSError(f"ffmpeg: {problem.splitlines()[0].split('] ')[-1]}")
    return frames


def _feed(stdin: IO[bytes], pictures: Iterator[HeldFrame]) -> int | None:
    """Write all frames and close; returns their number, or None if ffmpeg has ended."""
    frames = 0
    for picture in pictures:
        raw = picture.image.tobytes()
        for _ in range(picture.repeats):
            try:
                stdin.write(raw)
            except BrokenPipeError:
                return None
        frames += picture.repeats
    try:
        stdin.close()
    except BrokenPipeError:
        return None
    return frames


def _ffmpeg_command(path: Path, size: tuple[int, int], fps: int) -> list[str]:
    """The command for H.264 that browsers play: even sizes, yuv420p, the index before the data."""
    from imageio_ffmpeg import get_ffmpeg_exe

    try:
        program = get_ffmpeg_exe()
    except RuntimeError as error:
        raise OSError(f"no ffmpeg: {error}; reinstall imageio-ffmpeg, or record a .gif") from None
    source = f"-f rawvideo -pix_fmt rgb24 -s {size[0]}x{size[1]} -r {fps} -i pipe:0"
    output = "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
    return [program, "-loglevel", "error", "-y", *source.split(), *output.split(), f"file:{path}"]


def write_gif(path: Path, pictures: Iterator[HeldFrame], fps: int) -> int:
    """Encode with Pillow, which merges equal frames; returns the number of frames."""
    from PIL.Image import Dither

    shown = 0

    def paletted() -> "Iterator[Image]":
        nonlocal shown
        for picture in pictures:
            image = picture.image.quantize(256, dither=Dither.NONE)
            begins = round(100 * shown / fps)  # hundredths of a second, the unit of a GIF
            shown += picture.repeats
            image.info["duration"] = 10 * (round(100 * shown / fps) - begins)
            yield image

    images = paletted()
    next(images).save(path, format="GIF", save_all=True, append_images=images, loop=0)
    return shown
