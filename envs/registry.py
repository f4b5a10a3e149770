"""Environments by name: one function from what a user types to a vector environment that agents can play."""

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import DtypeObservation, FlattenObservation

from rmc_agents.envs.minigrid.memory import MiniGridView
from rmc_agents.envs.minigrid.vector import MemoryVectorEnv
from rmc_agents.envs.minipacman.tokens import MapTokens

from .guarded import Blame, GuardedEnv
from .processes import EnvError
from .sequences import names as sequences
from .stacking import stack_views
from .workers import WorkerVectorEnv

MINIPACMAN = "rmc_agents.envs:MiniPacman-v0"
MINIPACMAN_MODES = ("avoid", "hunt", "ambush", "rush")
WINDOWS = (3, 7, 9, 11, 15)  # sides of others than the 5x5 one, to measure what that costs
BOXWORLD = "rmc_agents.envs:BoxWorld-v0"
BOXWORLD_SIZES: dict[str, dict[str, Any]] = {  # a curriculum
    "boxworld": {},
    "boxworld-medium": {"room_size": 10, "max_solution_length": 3, "max_distractors": 3},
    "boxworld-small": {"room_size": 8, "max_solution_length": 2, "max_distractors": 2},
    "boxworld-tiny": {"room_size": 5, "max_solution_length": 1, "max_distractors": 1},
}

SHORT_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "minipacman": (MINIPACMAN, {}),
    **{f"minipacman-{mode}": (MINIPACMAN, {"mode": mode}) for mode in MINIPACMAN_MODES},
    **{f"minipacman-{whole}": (MINIPACMAN, {"viewport": None}) for whole in ("full", "map")},
    **{
        f"minipacman-{mode}-{whole}": (MINIPACMAN, {"mode": mode, "viewport": None})
        for mode in MINIPACMAN_MODES
        for whole in ("full", "map")
    },
    **{f"minipacman-window{side}": (MINIPACMAN, {"viewport": side}) for side in WINDOWS},
    **{name: (BOXWORLD, options) for name, options in BOXWORLD_SIZES.items()},
    **{f"{name}-full": (BOXWORLD, {**options, "viewport": None}) for name, options in BOXWORLD_SIZES.items()},
    "recall": ("rmc_agents.envs:Recall-v0", {}),
    **{f"memory-{size}": (f"MiniGrid-Memory{size.upper()}-v0", {}) for size in ("s7", "s9", "s11", "s13")},
    **{f"memory-{size}-random": (f"MiniGrid-Memory{size.upper()}Random-v0", {}) for size in ("s13", "s17")},
    **sequences.SHORT_NAMES,
}
"""Short name -> gymnasium id and arguments."""

STACKED = re.compile(r"(.+)-stack(\w*)")
"""The suffix that asks for stacked views, as in minipacman-stack4."""

MAPS = frozenset(name for name in SHORT_NAMES if name.endswith("-map"))
"""Where the whole map is shown as tokens (see `MapTokens`)."""

MOVES_ONLY = frozenset(name for name in SHORT_NAMES if name.startswith("memory-"))
"""Where the actions are left, right and forward (see `MiniGridView`)."""

ACTION_SPACES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
"""Agents of this package take Discrete alone, Stable-Baselines3's all of them."""

Backend = Literal["auto", "native", "minigrid"]


def make_vector_env(
    name: str,
    num_envs: int,
    render_mode: str | None = None,
    num_workers: int = 0,
    backend: Backend = "auto",
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    env_kwargs: Mapping[str, Any] | None = None,
    wrapper: Callable[[gym.Env], gym.Env] | None = None,
) -> VectorEnv:
    """A vector environment whose observations are arrays of numbers.

    MiniGrid's dictionaries become vectors (see `MiniGridView`); discrete and binary observations are flattened.

    Args:
      name: a short name or a registered gymnasium id, 'module:Id' included; with -stackK behind it, an observation
        holds the last K (see `StackedViews`). Names of sequences may have options, and text:PATH names a text (see
        `sequences.names`).
      num_envs: lanes.
      render_mode: as in gymnasium.
      num_workers: processes that share the lanes (see `WorkerVectorEnv`); 0: this one steps them all.
      backend: native: an engine of this package that steps all lanes at once; minigrid: minigrid's own environments,
        one after the other, with the same results as the native engine's; auto: native where there is one.
      autoreset_mode: NEXT_STEP is what this package's agents take, and all that workers and stacked views know.
      env_kwargs: arguments of the environment.
      wrapper: what every lane's environment is wrapped in, which is then stepped by itself, whatever `backend` says.

    Raises:
      ValueError: for a name that is not known (with the nearest that is), for actions in none of `ACTION_SPACES`, for
        observations that cannot be made an array of numbers, for a backend that does not have the environment, and for
        workers where the native engine steps it, or more of them than lanes.
      EnvError: if the environment's own code fails, now or when it is reset, stepped or drawn.
    """
    if not sequences.is_text(name) and (stacked := STACKED.fullmatch(name)):
        base, num_views = stacked.groups()
        if not num_views.isdecimal() or int(num_views) < 2:
            raise ValueError(f"environment {name!r}: expected a number of at least 2 behind -stack, got {num_views!r}")
        views = make_vector_env(base, num_envs, render_mode, num_workers, backend, autoreset_mode, env_kwargs, wrapper)
        return stack_views(views, int(num_views))
    env_id, arguments = sequences.find_sequences(name) or SHORT_NAMES.get(name, (name, {}))
    rendered = {} if render_mode is None else {"render_mode": render_mode}  # many constructors do not know it
    arguments = {**arguments, **rendered, **(env_kwargs or {})}
    spec = _find_spec(env_id, name)
    view: dict[str, Any] = {"actions": "moves"} if name in MOVES_ONLY else {}
    if wrapper is not None:
        view["wrapper"] = wrapper
        if name in MAPS:
            raise ValueError(f"wrapper: expected none for {name!r}, whose lanes are no environments of their own")
    _check_backend(backend, spec, name)
    if _has_native_engine(spec) and backend != "minigrid" and wrapper is None:
        if num_workers:
            raise ValueError(
                f"env_workers: expected 0 for {name!r}, whose native engine steps all lanes at once, got {num_workers}"
            )
        env = _make_native(spec, num_envs, {**arguments, **view, "autoreset_mode": autoreset_mode})
        return MapTokens(env) if name in MAPS else env
    make_lane = partial(_make_lane, name, env_id, spec, arguments, view)
    make_lanes = partial(_make_lanes, make_lane, spec, autoreset_mode)
    return WorkerVectorEnv(make_lanes, num_envs, num_workers) if num_workers else make_lanes(num_envs)


def module_of(name: str) -> str:
    """The module of somebody's own that an environment's name has in front, as in 'module:Id', else ''."""
    module = name.rpartition(":")[0]
    return "" if module == __package__ else module


def refuse_unnamed_module(name: str, source: object) -> None:
    """For a name that only a file gives: importing a module runs its code, so that a user has to name it.

    Args:
      name: of an environment.
      source: the file.

    Raises:
      ValueError: if the environment's module would have to be imported.
    """
    module = module_of(name)
    if module and module not in sys.modules:
        raise ValueError(
            f"{source} names the environment {name!r}, and importing {module} runs its code: if you trust it, add "
            f"--trust, or in rmc-train and rmc-evaluate --env {name}"
        )


def _make_lanes(
    make_lane: Callable[[], gym.Env], spec: EnvSpec, autoreset_mode: AutoresetMode, num_envs: int
) -> VectorEnv:
    """Lanes stepped by the process that calls this, a worker's too."""
    env = SyncVectorEnv([make_lane] * num_envs, autoreset_mode=autoreset_mode)
    env.spec = spec
    return env


def _make_lane(name: str, env_id: str, spec: EnvSpec, arguments: dict[str, Any], view: dict[str, Any]) -> gym.Env:
    _import_module(env_id, name)  # in a worker nothing else has
    with Blame(name, "its constructor"):
        env = gym.make(spec, **arguments)
    return GuardedEnv(as_numbers(env, **view), name)


def as_numbers(env: gym.Env, wrapper: Callable[[gym.Env], gym.Env] | None = None, **view: Any) -> gym.Env:
    """The environment with observations in a Box or MultiDiscrete, wrapped only where need be.

    Args:
      env: any.
      wrapper: what it is wrapped in first.
      view: options of `MiniGridView`, for MiniGrid's environments.

    Raises:
      ValueError: naming the space that cannot be encoded.
    """
    if wrapper is not None:
        env = wrapper(env)
    if not isinstance(env.action_space, ACTION_SPACES):
        raise ValueError(f"expected an environment with a Discrete action space, got {env.action_space}")
    space = env.observation_space
    if isinstance(space, spaces.Box):
        if 0 in space.shape:
            raise ValueError(f"expected observations of at least one number, got {space}")
        return env if space.shape else FlattenObservation(env)
    if isinstance(space, spaces.Dict) and {"image", "direction"} <= set(space):
        return MiniGridView(env, **view)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return DtypeObservation(FlattenObservation(env), np.uint8)
    raise ValueError(
        f"cannot encode the observation space {space}: expected an image, a vector, discrete values or MiniGrid's "
        "dictionary; wrap the environment and register the wrapped one"
    )


def _is_memory(spec: EnvSpec) -> bool:
    """Whether this is MiniGrid's MemoryEnv with nothing around it, of which there is a native engine."""
    is_bare = spec.max_episode_steps is None and not spec.additional_wrappers
    known = {"size", "random_length", "max_steps"}
    return spec.entry_point == "minigrid.envs:MemoryEnv" and is_bare and set(spec.kwargs) <= known


def _has_native_engine(spec: EnvSpec) -> bool:
    entry_point = spec.vector_entry_point
    return _is_memory(spec) or (isinstance(entry_point, str) and entry_point.startswith("rmc_agents."))


def _make_native(spec: EnvSpec, num_envs: int, arguments: dict[str, Any]) -> VectorEnv:
    try:
        if not _is_memory(spec):
            return gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **arguments)
        env = MemoryVectorEnv(num_envs, **(spec.kwargs | arguments))
    except TypeError as error:
        raise ValueError(f"environment {spec.id} cannot be made: {error}") from error
    env.spec = spec
    return env


def _check_backend(backend: str, spec: EnvSpec, name: str) -> None:
    if backend == "native" and not _has_native_engine(spec):
        raise ValueError(f"env_backend: expected auto for {name!r}, which has no native engine, got native")
    if backend == "minigrid" and not str(spec.entry_point).startswith("minigrid."):
        raise ValueError(
            f"env_backend: expected auto for {name!r}, which is none of minigrid's environments, got minigrid"
        )


def _find_spec(env_id: str, name: str) -> EnvSpec:
    _import_module(env_id, name)
    registered = env_id.rpartition(":")[2]
    if registered not in gym.registry:
        raise ValueError(f"there is no environment {name!r}{_nearest(name)}")
    return gym.registry[registered]


def _import_module(env_id: str, name: str) -> None:
    """Import what registers the environment: the module in front of its id; minigrid's ids need none."""
    module = env_id.rpartition(":")[0] or "minigrid"
    try:
        with Blame(name, f"the import of {module}"):
            importlib.import_module(module)
    except EnvError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise ValueError(f"environment {name!r}: importing {module} failed: {error.__cause__}") from None
        raise


def _nearest(name: str) -> str:
    known = [*SHORT_NAMES, *gym.registry]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"; did you mean {near[0]!r}?" if near else f"; short names are {', '.join(SHORT_NAMES)}, text:PATH"
