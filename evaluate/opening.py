"""Opening the saved agent that a command names, and its environment."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from rmc_agents import command_line, plugins, pretrained
from rmc_agents.config import KeywordArguments
from rmc_agents.formatting import agent_title
from rmc_agents.runs import archive, checkpoint

if TYPE_CHECKING:
    from rmc_agents.envs.making import EnvFactory
    from rmc_agents.runs.saved import SavedAgent
    from rmc_agents.types import Policy

# Arguments of commands that select the agent (see `pretrained.choose`) and its environment.
RunArgument = Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUN|CHECKPOINT|NAME]")]
Pretrained = Annotated[
    str | None,
    tyro.conf.arg(metavar="NAME", help=f"Instead of RUN, a policy that comes with the package: {pretrained.listed()}."),
]
Trust = Annotated[
    bool,
    tyro.conf.arg(help="Open checkpoints of Stable-Baselines3's algorithms, which can run any code in them."),
]
Env = Annotated[
    str | None,
    tyro.conf.arg(help="An environment other than the training environment, with the same observations and actions."),
]
EnvKwargs = Annotated[
    KeywordArguments,
    tyro.conf.arg(help="Arguments of the environment instead of those in training, as in size=7."),
]


class Opened(NamedTuple):
    """An opened agent and its environment."""

    saved: "SavedAgent[Policy]"
    env: "str | EnvFactory"

    @property
    def env_name(self) -> str:
        from rmc_agents.envs.making import name_of

        return name_of(self.env)

    @property
    def title(self) -> str:
        """Environment, core and frames of training."""
        return agent_title(self.env_name, self.saved.config.core.core, self.saved.frames)


def find(run: Path | None, name: str | None, trust: bool) -> Path:
    """The path of the run, checkpoint or pretrained policy for a command, checked without opening it.

    Raises:
      ValueError: if there is none, or it can run code and is not trusted.
    """
    path = pretrained.choose(run, name)
    if archive.is_archive(path):
        archive.check_trust(path, trust)
    elif path.is_file():
        checkpoint.check_header(path)
    else:
        checkpoint.find(path, lambda _: None)
    return path


def open_policy(path: Path, device: str, trust: bool, env: str | None, env_kwargs: KeywordArguments) -> Opened:
    """Open the agent and the environment for a command.

    Raises:
      ValueError: if they cannot be opened, or do not fit together.
    """
    with command_line.importing():
        import torch

        from rmc_agents.runs.saved import load_policy, pick_device

        from .episodes import check_fits

    torch.set_num_threads(1)  # see docs/decisions/threads.md
    saved = load_policy(path, pick_device(device), trust)
    place = env_to_play(saved, env, env_kwargs)
    check_fits(saved.spec, place)
    return Opened(saved, place)


def env_to_play(saved: "SavedAgent[Policy]", env: str | None, env_kwargs: KeywordArguments) -> "str | EnvFactory":
    """The environment of the flags --env and --env-kwargs, or that of the agent's training."""
    from rmc_agents.runs.saved import given_env, saved_env

    return given_env(saved, env, env_kwargs) if env else saved_env(saved, env_kwargs)


def import_named(imports: Sequence[str], env: str | None) -> None:
    """Import the modules of --import and --env. Raises ValueError for an unknown environment name."""
    plugins.load(imports, env=env)
    if env is not None:
        from rmc_agents.envs import names

        names.check(env)
