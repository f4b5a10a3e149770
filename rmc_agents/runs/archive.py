"""Archives of Stable-Baselines3 as checkpoints of a run: what can be known of them without opening them.

An archive holds pickled objects, and opening those runs whatever code somebody put there. So archives are opened only
for a user who says --trust. What the project itself has to know of a run stands beside the pickles as JSON, in a member
of the same zip file that Stable-Baselines3 passes over: finding, describing and refusing an archive runs nothing.
"""

import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple, Self

from rmc_agents.runs.checkpoint import FOLDER, CheckpointError, numbered, write_numbered

SUFFIX = ".zip"
MEMBER = "rmc_agents.json"


class Facts(NamedTuple):
    """What a run's archive says of the run; plain values."""

    config: dict[str, Any]  # all settings
    spec: list[Any]  # a SpaceSpec's fields
    frames: int
    updates: int
    seconds: float  # of training so far
    parameters: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """The facts of an archive, whose members' checksums are all looked at.

        Raises:
          CheckpointError: if the file is missing, damaged, or no archive of a run.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                damaged = archive.testzip()
                if damaged is not None:
                    raise CheckpointError(f"{path} is damaged: {damaged} does not match its checksum")
                return cls(**json.loads(archive.read(MEMBER)))
        except FileNotFoundError:
            raise CheckpointError(f"there is no checkpoint {path}") from None
        except KeyError:
            raise CheckpointError(f"{path} is no checkpoint of rmc-train: expected {MEMBER} in it") from None
        except CheckpointError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged or no checkpoint: {error}") from None


def is_archive(path: Path) -> bool:
    """Whether `path` is an archive, or the folder of a run whose checkpoints are archives."""
    return next(numbered(path, SUFFIX), None) is not None if path.is_dir() else path.suffix == SUFFIX


def save_numbered(run_dir: Path, archive: bytes, facts: Facts, keep: int) -> Path:
    """Save an archive of Stable-Baselines3 with its facts as `checkpoint.save_numbered` does: atomically, `keep` kept.

    Raises:
      OSError: if it cannot be written.
    """
    content = io.BytesIO(archive)
    with zipfile.ZipFile(content, "a") as file:
        file.writestr(MEMBER, json.dumps(facts._asdict()))
    return write_numbered(run_dir, facts.updates, content.getvalue(), keep, SUFFIX)


def find(path: Path) -> tuple[Path, Facts]:
    """The archive that a user means by `path`, unopened: the file itself, or the newest valid one of a run's folder.

    Raises:
      CheckpointError: if there is none.
    """
    if not path.is_dir():
        return path, Facts.read(path)
    problem = f"{path} holds no checkpoint (expected {path / FOLDER / f'update-*{SUFFIX}'})"
    for candidate in numbered(path, SUFFIX):
        try:
            return candidate, Facts.read(candidate)
        except CheckpointError as error:
            problem = f"{path} holds no valid checkpoint; {error}"
    raise CheckpointError(problem)


def resume_flags(run_dir: Path, trust: bool) -> list[str] | None:
    """The flags with which rmc-train goes on with a run; None if its folder holds no checkpoint of any kind.

    Raises:
      ValueError: if the checkpoints are archives and not trusted.
    """
    newest = next(numbered(run_dir, suffix=""), None)
    if newest is None:
        return None
    if not is_archive(run_dir):
        return ["--resume", str(run_dir)]
    check_trust(newest, trust)
    return ["--resume", str(run_dir), "--trust"]


def check_trust(path: Path, trust: bool) -> None:
    """Raises ValueError, with the reason and the remedy, unless the user trusts the archive."""
    if not trust:
        raise ValueError(
            f"{path} is an archive of Stable-Baselines3, and opening one runs whatever code was put in it: if it is "
            "your own, or from somebody you trust, add --trust"
        )
