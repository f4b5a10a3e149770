"""The best agent of a run so far, saved in the run's folder; usable wherever a checkpoint is."""

import logging
from pathlib import Path
from typing import NamedTuple

from rmc_agents.files import write_atomically
from rmc_agents.tree_checks import check_like

from . import archive, checkpoint
from .checkpoint import CheckpointError
from .folder import BEST
from .saved import Provenance, to_provenance

logger = logging.getLogger(__name__)


class Best(NamedTuple):
    """What the file records about its agent."""

    frames: int  # trained for
    provenance: Provenance  # its evaluation


def best_path(run_dir: Path) -> Path | None:
    """The file's path; None if there is none."""
    paths = [run_dir / f"{BEST}{suffix}" for suffix in (checkpoint.SUFFIX, archive.SUFFIX)]
    return next(filter(Path.is_file, paths), None)


def best_of(run_dir: Path) -> Best | None:
    """Read the file's records; None if there is no file or, after a warning, if it is damaged."""
    path = best_path(run_dir)
    if path is None:
        return None
    try:
        tree = archive.ArchiveInfo.read(path)._asdict() if archive.is_archive(path) else checkpoint.load(path)
        with checkpoint.opening(path):
            check_like(tree["frames"], 0, "frames")
            return Best(tree["frames"], to_provenance(tree["provenance"]))
    except CheckpointError as error:
        logger.warning("skipped: %s", error)
        return None


def copy_best(source: Path, run_dir: Path, frames: int) -> None:
    """Copy a run's best agent to a branch that starts at `frames`, unless it was trained for more frames."""
    if (path := best_path(source)) is None:
        return
    write_atomically(copy := run_dir / path.name, path.read_bytes())  # first: a training may replace it at any time
    best = best_of(run_dir)
    if best is None or best.frames > frames:
        copy.unlink()
