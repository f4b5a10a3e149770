"""Loading and saving agents: from runs, checkpoints, exported files and pretrained policies."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rmc_agents import plugins, pretrained
from rmc_agents.agent import ActorCritic, check_default_dtype
from rmc_agents.config import Config
from rmc_agents.envs.making import EnvFactory, name_of, with_arguments
from rmc_agents.envs.names import evaluation_kwargs
from rmc_agents.envs.own import check_given_once, own_id, takes
from rmc_agents.formatting import as_printable, counted, with_interval
from rmc_agents.registry import NotRegistered
from rmc_agents.spaces import SpaceSpec
from rmc_agents.spaces.parts import action_parts
from rmc_agents.tree_checks import ANYTHING, Either, check_like, unbounded
from rmc_agents.types import Policy

from . import archive, checkpoint

EXTRA_STATE = "_extra_state"  # of a module with get_extra_state, in torch's names
Agent_co = TypeVar("Agent_co", bound=Policy, covariant=True)


class Provenance(NamedTuple):
    """The evaluation of an exported agent, or of a run's best one, when it was saved.

    Attributes:
      version: of this project.
      mean_return: of whole episodes.
      ci95: the 95 % interval of the mean return; None if all returns are equal.
      episodes: how many.
      seed: episode i started from seed + i.
      env: the environment that was played, for messages; '': not known, in older files.
      accuracy: the fraction of right answers; None if there are none, or in older files.
    """

    version: str
    mean_return: float
    ci95: tuple[float, float] | None
    episodes: int
    seed: int
    env: str = ""
    accuracy: float | None = None

    def __str__(self) -> str:
        played = f" on {self.env}" if self.env else ""
        accuracy = "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}, "
        interval = "" if self.ci95 is None else " (95 % interval)"
        return (
            f"{accuracy}mean return {with_interval(self.mean_return, self.ci95)}{played} over "
            f"{counted(self.episodes, 'episode')} from seed {self.seed}{interval} when it was saved, by version "
            f"{self.version}"
        )


class SavedAgent(NamedTuple, Generic[Agent_co]):
    """An agent in eval mode, with its settings and origin.

    Attributes:
      agent: an `ActorCritic`, which is a torch module.
      config: the settings of its training.
      spec: the spaces that it was built for.
      path: the checkpoint.
      frames: those it was trained for.
      provenance: an exported file's evaluation; None for a checkpoint of a run.
    """

    agent: Agent_co
    config: Config
    spec: SpaceSpec
    path: Path
    frames: int
    provenance: Provenance | None = None


def load(source: str | PathLike[str], *, device: str = "auto", trust: bool = False) -> SavedAgent[Any]:
    """Load a saved agent, for acting, evaluation or further training.

        saved = rmc.load("minipacman-rmc")
        saved.agent, saved.spec, saved.config.env.env

    Loading runs and imports no code from the file. Register a custom core or encoder first (`register_core`,
    `register_encoder`).

    Args:
      source: a run's folder (the newest valid checkpoint is used), a checkpoint, an exported file, or the name of a
        pretrained policy.
      device: auto: cuda if a working GPU is available, else cpu.
      trust: also open archives of Stable-Baselines3, which can run code.

    Returns:
      The agent with its settings and its spec: an `ActorCritic`, or a `Policy` from an archive of Stable-Baselines3.

    Raises:
      CheckpointError: if the file is damaged or not from this project.
      ValueError: for an unknown path or name, an archive that is not trusted, a device that is not available, or if
        torch's default dtype is not float32.
    """
    if not isinstance(source, str | PathLike):
        raise ValueError(f"source: expected a path or the name of a pretrained policy, got {source!r}")
    check_default_dtype()
    return load_policy(pretrained.choose(source), pick_device(device), trust)


def load_policy(path: str | PathLike[str], device: torch.device, trust: bool) -> SavedAgent[Policy]:
    """Like `load_agent`, for acting only: also opens archives of Stable-Baselines3 if they are trusted.

    Raises:
      ValueError: for an archive that is not trusted, or if Stable-Baselines3 is not installed.
      CheckpointError: as `load_agent` does.
    """
    path = Path(path)
    if not archive.is_archive(path):
        return load_agent(path, device)
    path, info = archive.find(path)
    archive.check_trust(path, trust)
    try:
        from rmc_agents.sb3.saved import load_model, make_policy
    except ImportError as error:
        raise ValueError(str(error)) from error
    with checkpoint.opening(path):
        config, spec = Config().updated(info.config, "config"), SpaceSpec.from_fields(info.spec)
        provenance = to_provenance(info.provenance) if info.provenance is not None else None
    model = load_model(config.train.algo, path, device)
    if not (spec.num_actions or spec.action_parts):  # from before specs had action parts
        spec = spec._replace(action_parts=action_parts(model.action_space))
    agent = make_policy(model, spec)
    return SavedAgent(agent, config, spec, path, info.frames, provenance)


def load_agent(path: str | PathLike[str], device: torch.device) -> SavedAgent[ActorCritic]:
    """The agent of a checkpoint, or of the newest valid checkpoint of a run's folder.

    Raises:
      CheckpointError: if there is none, or it is damaged or not from this project.
      ValueError: for an archive of Stable-Baselines3.
    """
    path = Path(path)
    if archive.is_archive(path):
        raise ValueError(
            f"{path} was trained by Stable-Baselines3: expected an agent of this project's own algorithms; "
            "rmc-evaluate and rmc-watch open it with --trust"
        )
    return checkpoint.find(path, partial(_open_agent, device=device))


def _open_agent(path: Path, device: torch.device) -> SavedAgent[ActorCritic]:
    tree = checkpoint.load(path)
    with checkpoint.opening(path, passing=NotRegistered):
        config, spec = to_settings(tree)
        with _drawing_privately(config):  # the initial weights are replaced
            agent = ActorCritic.from_config(spec, config.core, config.agent)
        agent.load_state_dict(tree["agent"])
        check_like(tree["frames"], 0, "frames")
        provenance = to_provenance(tree["provenance"]) if "provenance" in tree else None
        return SavedAgent(agent.to(device).eval(), config, spec, path, tree["frames"], provenance)


def to_settings(tree: dict[str, Any]) -> tuple[Config, SpaceSpec]:
    """The settings and spec in a checkpoint's tree, after checking that its weights fit them.

    Any exception means that they do not (see `checkpoint.opening`).
    """
    config, spec = Config().updated(tree["config"], "config"), SpaceSpec.from_fields(tree["spec"])
    with _drawing_privately(config) if config.has_own_parts else _without_allocating():
        expected = weights_like(ActorCritic.from_config(spec, config.core, config.agent))
    check_like(tree["agent"], expected, "agent")
    return config, spec


def weights_like(module: nn.Module) -> dict[str, Any]:
    """The structure of a module's `state_dict` (see `tree_checks`).

    Extra state of custom modules may be anything, and their buffers may have infinite numbers.
    """
    weights = module.state_dict()
    weights |= {name: unbounded(buffer) for name, buffer in module.named_buffers() if name in weights}
    return {name: ANYTHING if name.endswith(EXTRA_STATE) else weight for name, weight in weights.items()}


def _drawing_privately(config: Config) -> AbstractContextManager[object]:
    """Context in which the initial weights of an agent leave the global random numbers as they were.

    Those of built-in parts do not touch them: other threads may be drawing.
    """
    return torch.random.fork_rng(devices=()) if config.has_own_parts else _OwnGenerator()


class _OwnGenerator(TorchFunctionMode):
    """Draws initial weights from a generator of its own: `torch.nn.init` passes on `generator=None`."""

    def __init__(self) -> None:
        super().__init__()
        self._generator = torch.Generator()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "generator" in kwargs and kwargs["generator"] is None:
            kwargs = kwargs | {"generator": self._generator}
        return function(*args, **kwargs)


@contextmanager
def _without_allocating() -> Iterator[None]:
    """Context in which built-in parts can be created in any size that a file claims."""
    with torch.device("meta"), _WithoutValues():
        yield


class _WithoutValues(TorchFunctionMode):
    """Skips initialisation on the meta device, where tensors have no values.

    torch runs some of these functions through its compiler there, and importing that takes several seconds.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        if name in ("normal_", "uniform_"):
            return args[0] if args else kwargs["tensor"]
        if name in ("arange", "eye") and not kwargs and all(isinstance(size, int) for size in args):
            return torch.empty(args, dtype=torch.int64 if name == "arange" else None)
        if name == "repeat" and set(args[1:]) == {1}:
            return args[0]
        return function(*args, **kwargs)


def saved_env(saved: SavedAgent[Any], env_kwargs: Mapping[str, Any] | None = None) -> str | EnvFactory:
    """The environment in which a saved agent is evaluated: that of its training, or its variant for evaluations.

    Args:
      saved: the agent.
      env_kwargs: arguments instead of those in training, if there are any.

    Raises:
      ValueError: if it needs a module that the user has not named, or its name stands for several environments.
    """
    name = saved.config.env.env
    plugins.check_named(name, saved.path)
    check_given_once(name)
    return given_env(saved, name, env_kwargs)


def given_env(
    saved: SavedAgent[Any], env: str | EnvFactory, env_kwargs: Mapping[str, Any] | None = None
) -> str | EnvFactory:
    """The environment that a user gives for an agent, with these arguments; of a name, its variant for evaluations.

    The one in which the agent was trained has the arguments of the training, if none are given; a partial's own count.
    """
    given, _, name = name_of(env).rpartition(":")
    module, _, trained = saved.config.env.env.rpartition(":")
    is_trained_in = (
        env == saved.config.env.env or trained == own_id(name) or (module and given in ("", module) and trained == name)
    )
    trained_with = saved.config.env.env_kwargs if is_trained_in else {}
    if isinstance(env, str):
        arguments = {**evaluation_kwargs(env, {}), **env_kwargs} if env_kwargs else evaluation_kwargs(env, trained_with)
        return with_arguments(env, arguments)
    given_too = env.keywords if isinstance(env, partial) else {}
    trained_with = {key: x for key, x in trained_with.items() if key not in given_too and takes(env, key)}
    if not env_kwargs and not trained_with:
        return env
    made = partial(env, **(env_kwargs or trained_with))
    made.__name__ = name  # type: ignore[union-attr]  # for messages
    return made


def saved_size(path: str | PathLike[str]) -> int:
    """A saved agent's number of parameters, without unpickling archives.

    Raises:
      CheckpointError: as `load_agent` does.
    """
    path = Path(path)
    if archive.is_archive(path):
        return archive.find(path)[1].parameters
    return count_parameters(load_agent(path, torch.device("cpu")).agent.parameters())


def count_parameters(parameters: Iterable[Tensor]) -> int:
    """The total number of elements of the parameters."""
    return sum(parameter.numel() for parameter in parameters)


def to_provenance(fields: Any) -> Provenance:
    """Restore a saved provenance. Raises ValueError if the fields are not valid."""
    if isinstance(fields, dict):
        fields = {"env": "", "accuracy": None} | fields  # older files do not have these
    known = {"version": "", "mean_return": 0.0, "episodes": 0, "seed": 0, "env": ""}
    known |= {"ci95": Either([0.0, 0.0], None), "accuracy": Either(0.0, None)}
    check_like(fields, known, "provenance")
    shown = {name: as_printable(fields[name]) for name in ("version", "env")}
    return Provenance(**fields | shown | {"ci95": fields["ci95"] and tuple(fields["ci95"])})


def save_agent(path: str | PathLike[str], saved: SavedAgent[ActorCritic], provenance: Provenance) -> None:
    """Write only an agent, atomically: a checkpoint for acting, which cannot be resumed.

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
    """From 'auto', 'cpu', 'cuda' or 'cuda:N' to an available device.

    Raises:
      ValueError: for another name, or for a GPU that is not available.
    """
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {name!r}")
    if device.type == "cuda" and not 0 <= (device.index or 0) < torch.cuda.device_count():
        raise ValueError(f"device {name}: torch finds no such GPU; use --device cpu, or install a CUDA build of torch")
    return device
