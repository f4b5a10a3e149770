"""An agent as it was saved: what evaluation and video need of a run or a checkpoint."""

from collections.abc import Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from rmc_agents import plugins, pretrained
from rmc_agents.agent import ActorCritic
from rmc_agents.command_line import with_interval
from rmc_agents.config import Config
from rmc_agents.envs.making import EnvFactory, with_arguments
from rmc_agents.runs import archive, checkpoint
from rmc_agents.tree_checks import check_like
from rmc_agents.types import NotRegistered, Policy, SpaceSpec

Agent_co = TypeVar("Agent_co", bound=Policy, covariant=True)


class Provenance(NamedTuple):
    """What an exported agent, or a run's best one, says of itself: how well it did when it was saved."""

    version: str  # of this project
    mean_return: float  # on the environment of its settings, by drawn actions
    ci95: tuple[float, float]  # of the mean return
    episodes: int
    seed: int  # episode i began from seed + i

    def __str__(self) -> str:
        return (
            f"mean return {with_interval(self.mean_return, self.ci95)} over {self.episodes} episodes from seed "
            f"{self.seed} (95 % interval) when it was saved, by version {self.version}"
        )


class SavedAgent(NamedTuple, Generic[Agent_co]):
    """An agent, in eval mode, and where it comes from."""

    agent: Agent_co
    config: Config
    spec: SpaceSpec
    path: Path  # the checkpoint
    frames: int  # it was trained for
    provenance: Provenance | None = None  # None: a run's checkpoint, which was not exported


def load(source: str | PathLike[str], *, device: str = "auto", trust: bool = False) -> SavedAgent[Any]:
    """Open a saved agent, to play, to be evaluated or to learn on.

        saved = rmc.load("minipacman-rmc")
        saved.agent, saved.spec, saved.config.env.env

    Nothing in a file of this project runs or imports code. Your own core or encoder has to be registered
    before (`register_core`, `register_encoder`).

    Args:
      source: a run's folder (its newest valid checkpoint is taken), a checkpoint, an exported file, or the name of a
        pretrained policy.
      device: auto: cuda where there is a GPU that works, else cpu.
      trust: open archives of Stable-Baselines3 too, which may run code that was put into them.

    Returns:
      The agent with its settings and its spec: an `ActorCritic`, from an archive of Stable-Baselines3 a `Policy`.

    Raises:
      CheckpointError: if there is no such file, or it is damaged or foreign.
      ValueError: for a name that is not known, an archive that is not trusted, or a device that is not there.
    """
    return load_policy(pretrained.choose(source), pick_device(device), trust)


def load_policy(path: str | PathLike[str], device: torch.device, trust: bool) -> SavedAgent[Policy]:
    """As `load_agent`, for all that only plays: archives of Stable-Baselines3 are opened too, if they are trusted.

    Raises:
      ValueError: if they are not, or Stable-Baselines3 is not installed.
      CheckpointError: as `load_agent` does.
    """
    path = Path(path)
    if not archive.is_archive(path):
        return load_agent(path, device)
    path, facts = archive.find(path)
    archive.check_trust(path, trust)
    try:
        from rmc_agents.sb3.saved import load_model, make_player
    except ImportError as error:
        raise ValueError(str(error)) from error
    with checkpoint.opening(path):
        config, spec = Config().updated(facts.config, "config"), to_spec(facts.spec)
        provenance = to_provenance(facts.provenance) if facts.provenance is not None else None
    agent = make_player(load_model(config.train.algo, path, device))
    return SavedAgent(agent, config, spec, path, facts.frames, provenance)


def load_agent(path: str | PathLike[str], device: torch.device) -> SavedAgent[ActorCritic]:
    """The agent of a checkpoint, or of the newest valid checkpoint of a run's folder.

    Raises:
      CheckpointError: if there is none, or it is damaged or foreign.
      ValueError: for an archive of Stable-Baselines3, which holds no agent of this project.
    """
    path = Path(path)
    if archive.is_archive(path):
        raise ValueError(
            f"{path} was trained by Stable-Baselines3: expected an agent of --algo a2c or ppo; rmc-evaluate and "
            "rmc-watch open it with --trust"
        )
    return checkpoint.find(path, partial(_open_agent, device=device))


def _open_agent(path: Path, device: torch.device) -> SavedAgent[ActorCritic]:
    tree = checkpoint.load(path)
    with checkpoint.opening(path, passing=NotRegistered):
        config, spec = to_settings(tree)
        agent = ActorCritic.from_config(spec, config.core, config.agent)
        agent.load_state_dict(tree["agent"])
        check_like(tree["frames"], 0, "frames")
        provenance = to_provenance(tree["provenance"]) if "provenance" in tree else None
        return SavedAgent(agent.to(device).eval(), config, spec, path, tree["frames"], provenance)


def to_settings(tree: dict[str, Any]) -> tuple[Config, SpaceSpec]:
    """The settings of a checkpoint's tree, once its weights are found to be those of an agent of these settings.

    Whatever is raised means that they are not (see `checkpoint.opening`).
    """
    config, spec = Config().updated(tree["config"], "config"), to_spec(tree["spec"])
    with torch.device("meta"), _WithoutValues():  # takes no memory, whatever sizes the file claims
        expected = ActorCritic.from_config(spec, config.core, config.agent).state_dict()
    check_like(tree["agent"], dict(expected), "agent")
    return config, spec


class _WithoutValues(TorchFunctionMode):
    """Leaves out what only gives tensors their values, where they have none: on the device meta, torch does some of
    that by its compiler, whose import takes several seconds.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of `function`, which may be anything that makes or changes a tensor."""
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        if name in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        if name in ("arange", "eye") and not kwargs and all(isinstance(size, int) for size in args):
            return torch.empty(args, dtype=torch.int64 if name == "arange" else None)
        if name == "repeat" and set(args[1:]) == {1}:
            return args[0]
        if name == "empty_like":
            return torch.empty(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return function(*args, **kwargs)


def saved_env_name(saved: SavedAgent[Any]) -> str:
    """The environment that an agent was trained in, to play it there.

    Raises:
      ValueError: if that imports a module which the user has not named.
    """
    name = saved.config.env.env
    plugins.check_named(name, saved.path)
    return name


def saved_env(saved: SavedAgent[Any]) -> str | EnvFactory:
    """The same with the arguments that it had."""
    return with_arguments(saved_env_name(saved), saved.config.env.env_kwargs)


def settings_and_size(path: str | PathLike[str]) -> tuple[Config, int]:
    """A saved agent's settings and its number of parameters, for which archives need not be opened.

    Raises:
      CheckpointError: as `load_agent` does.
    """
    path = Path(path)
    if archive.is_archive(path):
        path, facts = archive.find(path)
        with checkpoint.opening(path):
            return Config().updated(facts.config, "config"), facts.parameters
    saved = load_agent(path, torch.device("cpu"))
    return saved.config, sum(parameter.numel() for parameter in saved.agent.parameters())


def to_spec(fields: Sequence[Any]) -> SpaceSpec:
    """A spec that was saved as a list."""
    values: list[Any] = [tuple(field) if isinstance(field, list) else field for field in fields]
    return SpaceSpec(*values)


def to_provenance(fields: dict[str, Any]) -> Provenance:
    """A provenance that was saved by its fields. Raises ValueError if it is none."""
    check_like(fields, {"version": "", "mean_return": 0.0, "ci95": [0.0, 0.0], "episodes": 0, "seed": 0}, "provenance")
    return Provenance(**fields | {"ci95": tuple(fields["ci95"])})


def save_agent(path: str | PathLike[str], saved: SavedAgent[ActorCritic], provenance: Provenance) -> None:
    """Write an agent alone, atomically: a checkpoint that plays, but with nothing of what a resumed run needs.

    Raises:
      OSError: if it cannot be written.
    """
    tree = {
        "config": saved.config.to_mapping(),
        "spec": saved.spec,
        "frames": saved.frames,
        "agent": saved.agent.state_dict(),
        "provenance": provenance._asdict(),
    }
    checkpoint.save(Path(path), tree)


def pick_device(name: str) -> torch.device:
    """'auto', 'cpu' or 'cuda' to a device that works.

    Raises:
      ValueError: for another name, and if CUDA is asked for and there is none.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: this torch sees no CUDA GPU; use --device cpu, or a CUDA build of torch")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"device: expected auto, cpu or cuda, got {name!r}") from None
