"""rmc-train: learn, save, evaluate, record."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from rmc_agents import command_line, configs
from rmc_agents.config import Config

if TYPE_CHECKING:
    from .run import Run

DESCRIPTION = """Train a recurrent actor-critic agent, then evaluate it and record a video of it playing.

Later sources win: the defaults below, --config, flags. The run's folder keeps every setting in config.yaml.

  rmc-train --env minipacman --core lstm --total-frames 2000000 --run-dir runs/lstm
  rmc-train --resume runs/lstm --total-frames 4000000"""


@dataclass(frozen=True)
class Arguments(Config):
    """Files, and all settings of a run."""

    config: Path | None = None
    """YAML file of settings by the names of the flags below, as a run's own config.yaml is, or a preset's name."""
    run_dir: Path | None = None
    """The run's own folder; None: a new one under runs/."""
    resume: Path | None = None
    """Go on with the run in this folder, exactly where its newest valid checkpoint stands."""
    trust: bool = False
    """Open what may run code of others: with --resume, checkpoints of Stable-Baselines3's algorithms; and the
    environment's own module where a checkpoint or --config names one (module:Id)."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-train", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    from rmc_agents.train.impala.follower import follow

    from . import distributed

    with distributed.joined():
        return _lead(argv) if distributed.rank() == distributed.FIRST else follow()


def _lead(argv: Sequence[str] | None) -> int:
    """All but the learners that torchrun may have started beside the first."""
    from rmc_agents.envs.registry import refuse_unnamed_module
    from rmc_agents.runs.folder import RunFolder

    from .resuming import read_saved
    from .run import resume, train

    first = _sources(argv)
    command_line.find_modules_here(first.env)

    def with_flags(base: Config) -> Config:
        config = _parse(argv, base)
        if first.env is None and not first.trust:
            refuse_unnamed_module(config.env.env, first.resume or first.config)
        return config

    console = Console()
    if first.resume is not None:
        if first.config is not None or first.run_dir is not None:
            raise ValueError(
                "--resume goes on with a run's own settings in its own folder: leave out --config and --run-dir"
            )
        if first.resume.is_file():
            read_saved(first.resume, first.trust)  # which may have more to say than that it is no folder
        with RunFolder(first.resume, resuming=True) as folder:
            return _status(resume(folder, with_flags, first.trust, console))
    base = Config() if first.config is None else Config().updated_from_yaml(configs.find(first.config))
    return _status(train(with_flags(base), run_dir=first.run_dir, console=console))


def _status(run: "Run") -> int:
    return 0 if run.stopped_by is None else 128 + run.stopped_by


def _sources(argv: Sequence[str] | None) -> argparse.Namespace:
    """What decides the other flags' defaults, --config, --run-dir, --resume, and what the user names or trusts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--config", "--run-dir", "--resume"):
        parser.add_argument(flag, type=_path)
    parser.add_argument("--env")
    parser.add_argument("--trust", action=argparse.BooleanOptionalAction, default=False)
    try:
        return parser.parse_known_args(argv)[0]
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from None


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return Path(text)


def _parse(argv: Sequence[str] | None, base: Config) -> Config:
    default = Arguments(**{section.name: getattr(base, section.name) for section in fields(Config)})
    arguments = command_line.parse(Arguments, argv, "rmc-train", DESCRIPTION, default)
    return Config(**{section.name: getattr(arguments, section.name) for section in fields(Config)})
