"""A run's folder: a lock for its writer, and the files that describe the run."""

import json
import os
import platform
import re
import shlex
import shutil
import sys
from contextlib import suppress
from datetime import datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from rmc_agents import configs, plugins
from rmc_agents.command_line import quoted
from rmc_agents.config import SB3_ALGORITHMS, Config
from rmc_agents.files import read_regular, temporaries, write_atomically, write_json

from . import archive, checkpoint
from .checkpoint import FOLDER, numbered

CONFIG, VERSIONS, SUMMARY, TENSORBOARD = "config.yaml", "versions.json", "summary.json", "tensorboard"
VIDEOS = "videos"
LOCK, WANDB_ID = ".lock", "wandb-run-id"
BEST = "best"
"""The file name of the best agent, without suffix."""
VOCABULARY, HASH = "vocabulary.json", "text.sha256"
OWN = (CONFIG, VERSIONS, SUMMARY, WANDB_ID, f"{BEST}{checkpoint.SUFFIX}", f"{BEST}{archive.SUFFIX}", VOCABULARY, HASH)
"""The files that a training writes in its folder, besides checkpoints, videos and TensorBoard's."""
TIME_TAG = "time/time_elapsed"
"""TensorBoard tag: seconds of training, earlier parts of the run included."""
PACKAGES = ("rmc-agents", "torch", "numpy", "numba", "gymnasium", "minigrid", "safetensors")
SB3_PACKAGES = ("stable-baselines3", "sb3-contrib")


SECONDS_TO_LOOK = 0.5  # in which others that only look whether the folder is in use release its lock
MAX_LETTERS = 100  # of the environment and the core in a folder's name; file systems allow 255 bytes


class InUse(ValueError):
    """Another process trains in a folder, or its lock was left where no file system releases those of killed ones."""

    def __init__(self, path: Path, advice: str = "") -> None:
        left = f"if none runs, as when it was killed on another machine, remove {path / LOCK}"
        super().__init__(f"{path} is in use by another training{advice} ({left})")


class RunFolder:
    """A folder that one process at a time may train in.

    Args:
      path: the folder; made if it does not exist.
      resuming: whether to continue the run in the folder; a new run needs a folder without one.

    Raises:
      InUse: if another process trains in it.
      ValueError: if a new run would overwrite an old one, a resumed one holds links, or its name is not UTF-8.
      OSError: if it cannot be made or written to.
    """

    def __init__(self, path: Path, resuming: bool) -> None:
        self.path = path
        if resuming:
            check_resumable(path)
            check_links(path)
        try:
            str(path).encode()
        except UnicodeEncodeError:  # TensorBoard could not write there
            raise ValueError(f"expected a folder's name in UTF-8, got {str(path)!r}") from None
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / LOCK)
        try:
            self._lock.acquire(timeout=SECONDS_TO_LOOK)
        except Timeout:
            raise InUse(path, "; wait for it" + ("" if resuming else ", or choose another --run-dir")) from None
        if not resuming:
            try:
                check_unused(path)
            except ValueError:
                self._lock.release()
                raise
            self._clean()
        for leftover in chain.from_iterable(temporaries(path / name) for name in OWN):  # of killed processes
            leftover.unlink(missing_ok=True)

    def _clean(self) -> None:
        """Remove the files of a run that ended before its first checkpoint, to not mix them with the new run's."""
        if not (self.path / VERSIONS).is_file():
            return  # no run has been here: the files are the user's
        leftovers = [*(self.path / TENSORBOARD).glob("events.out.tfevents.*"), *(self.path / FOLDER).glob(".update-*")]
        for leftover in [self.path / WANDB_ID, *leftovers]:
            leftover.unlink(missing_ok=True)

    def take_curve(self, run: Path) -> None:
        """Copy another run's TensorBoard events, if it has any."""
        for file in filter(Path.is_file, (run / TENSORBOARD).rglob("*")):
            target = self.path / file.relative_to(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)  # without its mode: the run may be read-only

    def write_config(self, config: Config) -> None:
        """Write `config.yaml`, which `--config` takes, and `versions.json`."""
        import torch

        write_atomically(self.path / CONFIG, config.to_yaml().encode())
        packages = PACKAGES + (SB3_PACKAGES if config.train.algo in SB3_ALGORITHMS else ())
        versions = {name: version(name) for name in packages}
        versions |= {"python": sys.version.split()[0], "platform": platform.platform()}
        versions |= {"torch_threads": str(torch.get_num_threads()), "seed": str(config.run.seed)}
        write_json(self.path / VERSIONS, versions)

    def write_summary(self, summary: dict[str, Any]) -> None:
        write_json(self.path / SUMMARY, summary)

    def read_results(self) -> dict[str, Any]:
        """The evaluation and video in the summary, which an earlier command made; nothing if it is damaged."""
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            earlier = json.loads(read_regular(self.path / SUMMARY))
            return {name: earlier[name] for name in ("evaluation", "video")}
        return {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object = None, *_: object) -> None:
        with suppress(OSError):  # removed, or another process's folder by now
            if error is not None and [path.name for path in self.path.iterdir()] == [LOCK]:  # nothing has been written
                (self.path / LOCK).unlink()
                self.path.rmdir()
        self._lock.release()


def read_config(run: Path) -> Config:
    """The settings of a run. Raises ValueError if the folder holds none, or its file is damaged."""
    if not (run / CONFIG).is_file():
        raise ValueError(f"{run} holds no run (expected {run / CONFIG}){checkpoint.nearby_run(run)}")
    return Config().updated_from_yaml(run / CONFIG)


def has_checkpoints(path: Path) -> bool:
    """Whether the folder holds a run that can be resumed, with either kind of checkpoint."""
    return any(True for suffix in (checkpoint.SUFFIX, archive.SUFFIX) for _ in numbered(path, suffix))


def check_resumable(path: Path) -> None:
    """Raises ValueError if the folder holds no run that can be resumed."""
    if not has_checkpoints(path):
        raise ValueError(f"cannot resume {path}: {_nothing_to_resume(path)}")


def check_links(path: Path) -> None:
    """Check a run's or a sweep's folder before writing into it: links in a stranger's would lead to the user's files.

    Raises:
      ValueError: for a symbolic link in the folder that leads out of it.
    """
    for folder, folders, files in os.walk(path):
        for link in (each for name in (*folders, *files) if (each := Path(folder, name)).is_symlink()):
            if not (target := link.resolve()).is_relative_to(path.resolve()):
                raise ValueError(
                    f"{link} is a link to {target}, which would be written to: expected a file or folder of its own "
                    "there (the whole folder may be a link)"
                )


def check_no_file(path: Path) -> None:
    """Raises ValueError if the path is that of a file, where a folder is needed."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: expected a folder's name")


def check_unused(path: Path | None) -> None:
    """Raises ValueError if the folder already holds a run, which a new one would overwrite, or is a file."""
    if path is None:
        return
    check_no_file(path)
    if has_checkpoints(path):
        raise ValueError(
            f"{path} already holds a run; continue it (rmc-train --resume {quoted(path)}, rmc.resume) or choose "
            "another folder"
        )
    if results := _results(path):
        raise ValueError(f"{path} already holds {results[0].name} of a run without checkpoints; choose another folder")
    if not (path / VERSIONS).is_file() and _is_written_by_hand(path / CONFIG):
        raise ValueError(f"{path / CONFIG} would be replaced by the run's own {CONFIG}; choose another folder")


def _results(path: Path) -> list[Path]:
    """What a run without checkpoints has left that nobody would want to lose: its summary and its best agent."""
    names = (SUMMARY, f"{BEST}{checkpoint.SUFFIX}", f"{BEST}{archive.SUFFIX}")
    return [path / name for name in names if (path / name).is_file()]


def _is_written_by_hand(file: Path) -> bool:
    """Whether it is a file of settings, but not all settings as a run writes them."""
    try:
        return file.is_file() and file.read_text() != Config().updated_from_yaml(file).to_yaml()
    except ValueError:  # not even settings
        return True


def _nothing_to_resume(path: Path) -> str:
    if path.suffix in (checkpoint.SUFFIX, archive.SUFFIX) and not path.exists():
        return "there is no such checkpoint"
    if not (path / CONFIG).is_file():
        is_preset = str(path) in configs.names()
        hint = f"; a new run begins with --config {path}" if is_preset else checkpoint.nearby_run(path)
        return f"expected a run's folder, with its checkpoints in {path / FOLDER}{hint}"
    command = f"rmc-train --config {quoted(path / CONFIG)}"
    if _results(path):
        return f"it holds a run, but no checkpoints in {path / FOLDER}; train anew in another folder: {command}"
    config = read_config(path)
    imports = plugins.flags_of(config.core.core, config.agent.encoder, config.train.loss, config.env.env)
    again = f"{command} --run-dir {quoted(path)}{imports}"
    return f"its run ended before the first checkpoint; start it again with: {again}"


def flags_to_open(config: Config) -> str:
    """The flags, each with a leading space, that commands need to open a run of these settings."""
    return (" --trust" if config.train.algo in SB3_ALGORITHMS else "") + plugins.flags_text()


def resume_command(run: Path, config: Config, flags: str = "") -> str:
    """The command that continues a run, with further flags."""
    address = config.actors.ray_address
    cluster = f" --ray-address {shlex.quote(address)}" if address else ""  # it is not taken from a file
    return f"rmc-train --resume {quoted(run)}{flags}{cluster}{flags_to_open(config)}"


def run_of(source: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to; None for a file that lies elsewhere."""
    if source.parent.parent.name in ("", ".."):  # inside the run, its path may be just the file's name
        source = Path(os.path.abspath(source))
    return source.parent.parent if source.parent.name == FOLDER else None


def branch_path(source: Path) -> Path:
    """The folder of a copy that continues from a checkpoint: `RUN-update-N`, or the file's name without suffix."""
    run = run_of(source)
    return source.with_suffix("") if run is None else run.with_name(f"{run.name}-{source.stem}")


def new_folder(config: Config) -> Path:
    """Create `runs/ENV-CORE-seedN-TIME`, without characters that are special in paths, and not too long.

    If several runs begin in the same second, a number follows.
    """
    agent = re.sub(r"[^\w.,-]+", "-", f"{config.env.env}-{config.core.core}", flags=re.ASCII)[:MAX_LETTERS]
    name = f"{agent}-seed{config.run.seed}-{datetime.now():%Y%m%d-%H%M%S}"
    Path("runs").mkdir(exist_ok=True)
    folder, runs = Path("runs") / name, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            runs += 1
            folder = Path("runs") / f"{name}-{runs}"
