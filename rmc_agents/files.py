"""Safe reading of files named by a user or by another file."""

import errno
from os import PathLike
from pathlib import Path


def read_regular(path: str | PathLike[str]) -> bytes:
    """The content of a regular file. Reading anything else can block (a pipe) or never end (/dev/zero).

    Raises:
      OSError: if it cannot be read or is not a regular file.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return path.read_bytes()
