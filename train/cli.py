"""rmc-train: train, save, evaluate, record a video."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rmc_agents import command_line, configs, pretrained
from rmc_agents.command_line import parsing
from rmc_agents.command_line.help_text import names_entry
from rmc_agents.config import Config
from rmc_agents.runs import archive, checkpoint, folder

if TYPE_CHECKING:
    from .run import Run

DESCRIPTION = """Train a recurrent actor-critic agent, then evaluate it and record a video of it playing.

Later sources win: the defaults, --config, flags. The run's folder keeps every setting in config.yaml.

  rmc-train --env minipacman --core lstm --total-frames 2000000 --run-dir runs/lstm
  rmc-train --resume runs/lstm --total-frames 4000000
  rmc-train --env my_module:MyEnv-v0 --env-kwargs size=7 --core my_module:MyCore --core-args width=64"""

FIRST = (
    "env",
    "core",
    "config",
    "total_frames",
    "run_dir",
    "resume",
    "seed",
    "num_envs",
    "unroll_length",
    "learning_rate",
    "hidden_size",
    "algo",
    "imports",
)


@dataclass(frozen=True)
class Arguments(Config):
    """Files, and all settings of a run."""

    config: Path | None = None
    """YAML file of settings, named like the flags below, such as a run's config.yaml; or the name of a preset."""
    run_dir: Path | None = None
    """The run's folder; None: a new one under runs/."""
    resume: Path | None = None
    """Continue the run in this folder from its newest valid checkpoint. With a checkpoint file: continue from it in a
    new folder, --run-dir or one next to the run."""
    trust: bool = False
    """With --resume, open checkpoints of Stable-Baselines3's algorithms, which can run any code in them."""
    track: str | None = None
    """Also log metrics, settings, final scores and the video to wandb (Weights & Biases), or to module:Class, a custom
    tracker."""
    imports: parsing.Imports = ()


@command_line.command("rmc-train")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    first = parsing.import_typed(argv)
    base = Config().updated_from_yaml(first.config)
    new = base.changed(partial(_parse, argv), first.config)  # for a resumed run, only the flags matter
    if first.resume is None:
        parsing.check_names(new, first.config)
        if new.run.init_from is not None:
            pretrained.choose(new.run.init_from)
        folder.check_unused(first.run_dir)
    else:
        _check_resume(first)

    if first.track is not None:
        from .reporting.tracking import find_tracker

        find_tracker(first.track)

    with command_line.importing():
        from . import distributed
        from .distributed.follower import follow

    with distributed.joined():
        return _lead(argv, first, base, new) if distributed.rank() == distributed.FIRST else follow()


def _lead(argv: Sequence[str], first: argparse.Namespace, base: Config, new: Config) -> int:
    """The command in the first learner; torchrun may have started others."""
    with command_line.importing():
        from .run import resume, say_unused, train

    def with_flags(saved: Config) -> Config:
        config = _parse(argv, saved)
        parsing.check_names(config, first.resume)  # not init_from: a resumed run has its own weights
        return config

    console = command_line.console()
    if first.resume is None:
        say_unused(console, base, new)
        return _status(train(new, run_dir=first.run_dir, console=console, track=first.track))
    went_on = resume(
        first.resume, with_flags, run_dir=first.run_dir, trust=first.trust, console=console, track=first.track
    )
    return _status(went_on)


def _status(run: "Run") -> int:
    return 0 if run.stopped_by is None else 128 + run.stopped_by


def _parse(argv: Sequence[str], base: Config) -> Config:
    """The settings, as `base` where no flag is given."""
    default = Arguments(**base.sections())
    arguments = parsing.parse(Arguments, argv, "rmc-train", DESCRIPTION, default, FIRST, listed_names)
    return Config(**arguments.sections())


def listed_names() -> str:
    """Names of environments and presets, for --help."""
    from rmc_agents.envs.names import SHORT_NAMES

    environments = [*SHORT_NAMES, "text:PATH", "any of gymnasium's and minigrid's ids"]
    return "\n".join(
        [names_entry("environments (--env)", environments), names_entry("presets (--config)", configs.names())]
    )


def _check_resume(first: argparse.Namespace) -> None:
    """Reject early a run or checkpoint that cannot be resumed."""
    if first.config is not None:
        raise ValueError("--resume continues a run with its own settings: leave out --config")
    if first.run_dir is not None and first.resume.is_dir():
        raise ValueError(
            "--resume continues a run in its own folder: leave out --run-dir, or give one of its checkpoints"
        )
    if not first.resume.is_file():
        folder.check_resumable(first.resume)
        return
    if not archive.is_archive(first.resume):
        checkpoint.check_header(first.resume)
    folder.check_unused(first.run_dir or folder.branch_path(first.resume))
