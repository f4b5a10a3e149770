"""Archives of Stable-Baselines3 as checkpoints of a run: what can be read from them without unpickling.

An archive holds pickled objects, and unpickling can run arbitrary code, so archives are opened only with --trust. What
this project needs to know about the run is stored next to the pickles as JSON, in a member of the zip file that
Stable-Baselines3 ignores: finding, describing and rejecting an archive runs no code.
"""

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, Self

from . import checkpoint
from .checkpoint import CheckpointError, check_regular, numbered, opening

SUFFIX = ".zip"
MEMBER = "rmc_agents.json"
MAX_UNPACKED = 20
"""An archive may unpack to at most this many times its own size."""


class ArchiveInfo(NamedTuple):
    """What an archive records about its run, as plain values."""

    config: dict[str, Any]  # all settings
    spec: list[Any]  # a SpaceSpec's fields
    frames: int
    updates: int
    seconds: float  # of training so far
    parameters: int
    provenance: dict[str, Any] | None = None  # the fields of a `saved.Provenance`; None: not evaluated

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the info of an archive after checking the checksums of all its members.

        Raises:
          CheckpointError: if the file is missing, damaged, or not an archive of a run.
        """
        from rmc_agents.tree_checks import ANYTHING, check_like, check_progress

        with opening(path):
            check_regular(path)
            with zipfile.ZipFile(path) as archive:
                _check_declared(archive, path)
                damaged = archive.testzip()
                if damaged is not None:
                    raise CheckpointError(f"{path} is damaged: {damaged} does not match its checksum")
                if MEMBER not in archive.namelist():
                    raise CheckpointError(f"{path} is not a checkpoint of rmc-train: expected {MEMBER} in it")
                info = cls(**json.loads(archive.read(MEMBER)))
            check_progress(info._asdict())
            check_like(info.parameters, 0, "parameters")
            check_like(info.config, dict.fromkeys(info.config, ANYTHING), "config")
            return info


def _check_declared(archive: zipfile.ZipFile, path: Path) -> None:
    """Raises ValueError for a zip bomb; Stable-Baselines3 itself does not compress."""
    size = path.stat().st_size
    declared = sum(member.file_size for member in archive.infolist())
    if declared > MAX_UNPACKED * size:
        raise ValueError(
            f"expected its {size:,} bytes to unpack to at most {MAX_UNPACKED} times as many, declared are {declared:,}"
        )


def is_archive(path: Path) -> bool:
    """Whether `path` is an archive, or the folder of a run whose checkpoints are archives."""
    return next(numbered(path, SUFFIX), None) is not None if path.is_dir() else path.suffix == SUFFIX


def with_info(archive: bytes, info: ArchiveInfo) -> bytes:
    content = io.BytesIO(archive)
    with zipfile.ZipFile(content, "a") as file:
        file.writestr(MEMBER, json.dumps(info._asdict()))
    return content.getvalue()


def find(path: Path) -> tuple[Path, ArchiveInfo]:
    """Find the archive at `path` without opening it: the file itself, or the newest valid one of a run's folder.

    Raises:
      CheckpointError: if there is none.
    """
    return checkpoint.find(path, lambda candidate: (candidate, ArchiveInfo.read(candidate)), SUFFIX)


def check_trust(path: Path, trust: bool) -> None:
    """Raises ValueError, with the reason and the remedy, unless `trust` is set."""
    if not trust:
        raise ValueError(
            f"{path} is an archive of Stable-Baselines3, and opening one can run any code inside it: if it is your "
            "own, or from somebody you trust, add --trust (in Python: trust=True)"
        )
