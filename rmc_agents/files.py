"""Safe reading and writing of files."""

import errno
import glob
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any

LONGEST_NAME = 200  # bytes of the target's name in a temporary file's name; file systems allow 255 in all


def read_regular(path: str | PathLike[str]) -> bytes:
    """The content of a regular file. Reading anything else can block (a pipe) or never end (/dev/zero).

    Raises:
      OSError: if it cannot be read or is not a regular file.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a temporary file next to `path`, flush it to disk, and rename it.

    Raises:
      OSError: if it cannot be written; the old file, if any, stays as it was.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, content: Any, **options: Any) -> None:
    """Write an indented JSON file as `write_atomically` does; the options are those of `json.dumps`."""
    write_atomically(path, (json.dumps(content, indent=2, **options) + "\n").encode())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`, with its suffix: at the end flushed to disk and renamed to `path`.

    If an exception ends the context, the file is deleted. Of a symbolic link, the file that it leads to is replaced.

    Raises:
      OSError: if it cannot be written; the old file, if any, stays as it was.
    """
    temporary, path = None, path.resolve() if path.is_symlink() else path
    try:
        temporary = path.with_name(secrets.token_hex(4).join(_around(path)))
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # minus the user's umask
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
    except OSError as error:
        if error.filename not in (None, str(temporary), str(path)):
            raise  # of another file, in the caller's block
        if error.errno is None:
            raise OSError(f"{path} cannot be written: {error}") from error
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
    _flush(path.parent)


def temporaries(path: Path) -> list[Path]:
    """The temporary files of `replacing(path)`: those of processes that are writing, or were killed."""
    return list(path.parent.glob((8 * "[0-9a-f]").join(map(glob.escape, _around(path)))))


def _around(path: Path) -> tuple[str, str]:
    """What stands before and after the random part of a temporary file's name."""
    length = max(0, LONGEST_NAME - len(os.fsencode(path.suffix)))
    return f".{os.fsdecode(os.fsencode(path.stem)[:length])}.", path.suffix or ".tmp"


def _flush(path: str | Path) -> None:
    """Flush a file's content, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_writable(path: Path) -> None:
    """Check that a file can be written, before any work is done.

    Raises:
      ValueError: if it is a folder or a device, or its folder does not exist or is not writable.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder: expected a file name")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is not a regular file, and would be replaced by one: expected a file name")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: there is no folder {path.parent}")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from error
