"""Environments by name: from a name typed by a user to a vector environment for agents."""

import importlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import DtypeObservation, FlattenObservation

from .blame import Blame
from .checks import checked_choice
from .guarded import GuardedEnv, OneHotObservation
from .minipacman.tokens import MapTokens
from .names import MAPS, MOVES_ONLY, SHORT_NAMES, split_stack, unknown
from .nested import MAX_CATEGORIES, is_nested, numeric_leaves
from .own import check_arguments, check_lanes, register_own, takes
from .processes import EnvError
from .saving import guarded, sync_lanes
from .sequences import names as sequences
from .stacking import stack_views
from .token_space import is_vector_of_names
from .workers import WorkerVectorEnv

OWN = __name__.partition(".")[0]  # this package
ACTION_SPACES = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box, spaces.Tuple)

Backend = Literal["auto", "native", "minigrid"]

VIEW = {"view_size", "actions"}
"""Arguments of `MiniGridView`."""
NATIVE_MEMORY = {"size", "random_length", "max_steps", *VIEW}
"""Arguments of the native engine of MiniGrid's MemoryEnv."""


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
    """Create a vector environment with observations that are arrays of numbers, or dicts and tuples of arrays.

    MiniGrid's dictionaries become vectors (see `MiniGridView`); discrete and binary observations are flattened unless
    they are inside a Dict or Tuple.

    Args: as in `making.make_env`, except for
      name: a short name or a registered gymnasium id, 'module:Id' included; with the suffix -stackK, an observation
        holds the last K (see `StackedViews`). Names of sequences may have options, and text:PATH names a text (see
        `sequences.names`).
      num_workers: see `WorkerVectorEnv`.
      backend: native: an engine of this package that steps all lanes together; minigrid: minigrid's own environments,
        one by one, with the same results as the native engine; auto: native if there is one that takes the arguments.
      autoreset_mode: this package's agents, workers and stacked views need NEXT_STEP.
      wrapper: wraps every lane's environment; the lanes are then stepped one by one, whatever `backend` is.

    Raises:
      ValueError: for an unknown name (the message suggests the nearest), actions in none of `ACTION_SPACES`,
        observations that cannot be arrays of numbers, a backend that does not have the environment, workers for a
        native engine, or more workers than lanes.
      EnvError: if the environment's own code fails, now or later in reset, step or render.
    """
    base, num_views = split_stack(name)
    if num_views > 1:
        views = make_vector_env(base, num_envs, render_mode, num_workers, backend, autoreset_mode, env_kwargs, wrapper)
        return stack_views(views, num_views)
    env_id, arguments = sequences.find_sequences(name) or SHORT_NAMES.get(name, (name, {}))
    spec = _find_spec(env_id, name)
    make = spec.entry_point or spec.vector_entry_point
    if render_mode is not None and (not callable(make) or takes(make, "render_mode")):  # some constructors lack it
        arguments = {**arguments, "render_mode": render_mode}
    arguments = {**arguments, **(env_kwargs or {})}
    _check_arguments(spec, name, env_kwargs or {})
    view: dict[str, Any] = {"actions": "moves"} if name in MOVES_ONLY else {}
    is_native = _has_native_engine(spec) and backend != "minigrid" and wrapper is None
    if _is_memory(spec):
        others = arguments.keys() - NATIVE_MEMORY - {"render_mode"}
        is_native = is_native and not others
        if backend == "native" and others:
            raise ValueError(f"env_backend: the native engine takes no {', '.join(sorted(others))}; expected auto")
        view |= {each: arguments.pop(each) for each in VIEW & arguments.keys()}
    if wrapper is not None:
        view["wrapper"] = wrapper
        if name in MAPS:
            raise ValueError(f"wrapper: expected none for {name!r}, whose lanes are not separate environments")
    _check_backend(backend, spec, name)
    if spec.entry_point is None:
        return _make_all_lanes(spec, name, num_envs, num_workers, arguments, wrapper)
    if is_native:
        if num_workers:
            raise ValueError(
                f"env_workers: expected 0 for {name!r}, whose native engine steps all lanes together, got {num_workers}"
            )
        env = _make_native(spec, num_envs, autoreset_mode, {**arguments, **view})
        return MapTokens(env) if name in MAPS else env
    make_lane = partial(_make_lane, name, env_id, spec, arguments, view)
    make_lanes = partial(_make_lanes, make_lane, spec, autoreset_mode)
    return WorkerVectorEnv(make_lanes, num_envs, num_workers) if num_workers else make_lanes(num_envs)


def _make_lanes(
    make_lane: Callable[[], gym.Env], spec: EnvSpec, autoreset_mode: AutoresetMode, num_envs: int
) -> VectorEnv:
    """Lanes stepped by the calling process, which may be a worker."""
    env = sync_lanes(make_lane, autoreset_mode, num_envs)
    env.spec = spec
    return env


def _make_all_lanes(
    spec: EnvSpec,
    name: str,
    num_envs: int,
    num_workers: int,
    arguments: dict[str, Any],
    wrapper: Callable[[gym.Env], gym.Env] | None,
) -> VectorEnv:
    """A user's vector environment, which has no separate lanes."""
    if num_workers or wrapper is not None:
        raise ValueError(f"environment {name!r} creates all its lanes itself: expected no env_workers and no wrapper")
    with Blame(name, "its constructor"):
        env = gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **arguments)
    return guarded(check_lanes(env, name, num_envs), name)


def _make_lane(name: str, env_id: str, spec: EnvSpec, arguments: dict[str, Any], view: dict[str, Any]) -> gym.Env:
    _import_module(env_id, name)  # a worker has not imported it yet
    with Blame(name, "its constructor"):
        env = gym.make(spec, disable_env_checker=True, **arguments)  # GuardedEnv checks it
    return GuardedEnv(as_numbers(env, **view), name)


def as_numbers(env: gym.Env, wrapper: Callable[[gym.Env], gym.Env] | None = None, **view: Any) -> gym.Env:
    """The environment with Box, MultiDiscrete or nested observations; wrapped only if necessary.

    Args:
      env: the environment.
      wrapper: applied first; its errors become EnvError.
      view: options of `MiniGridView` for MiniGrid's environments.

    Raises:
      ValueError: naming the space that cannot be encoded.
    """
    if wrapper is not None:
        with Blame(type(env.unwrapped).__name__, "its wrapper"):
            env = wrapper(env)
    for name in ("observation_space", "action_space"):
        if not hasattr(env, name):
            raise ValueError(f"expected an environment with an {name}, set in its class or constructor, got none")
    if not isinstance(env.action_space, ACTION_SPACES):
        raise ValueError(
            "expected an environment with a Discrete, MultiDiscrete, MultiBinary or Box action space, or a Tuple of "
            f"these, got {env.action_space}"
        )
    space = env.observation_space
    if isinstance(space, spaces.Box):
        if 0 in space.shape:
            raise ValueError(f"expected observations of at least one number, got {space}")
        return env if space.shape else FlattenObservation(env)
    if isinstance(space, spaces.Dict) and {"image", "direction"} <= set(space) and _is_minigrid(env):
        from .minigrid.view import MiniGridView

        return MiniGridView(env, **view)
    if is_vector_of_names(space):
        return env
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        if (width := spaces.flatdim(space)) > MAX_CATEGORIES:
            raise ValueError(f"expected at most {MAX_CATEGORIES:,} categories, got {width:,}")
        return DtypeObservation(OneHotObservation(env), np.uint8)
    if is_nested(space):
        wrong = [(path, leaf) for path, leaf in numeric_leaves(space).items() if leaf.shape is None or not leaf.dtype]
        if wrong:
            name = "/".join(map(str, wrong[0][0]))
            raise ValueError(f"observation {name!r}: expected numbers, got {wrong[0][1]}; wrap the environment")
        return env
    raise ValueError(
        f"cannot encode the observation space {space}: expected an image, a vector, discrete values, or a Dict or "
        "Tuple of these; wrap the environment and register the wrapped one"
    )


def _is_minigrid(env: gym.Env) -> bool:
    """Whether it is one of MiniGrid's environments; by name, to not import minigrid for others."""
    names = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(env.unwrapped).__mro__)
    return "minigrid.minigrid_env.MiniGridEnv" in names


def _is_memory(spec: EnvSpec) -> bool:
    """Whether this is MiniGrid's MemoryEnv without a wrapper, which has a native engine."""
    is_known = spec.entry_point == "minigrid.envs:MemoryEnv" and spec.kwargs.keys() <= NATIVE_MEMORY - VIEW
    return is_known and _is_bare(spec)


def _has_native_engine(spec: EnvSpec) -> bool:
    entry_point = spec.vector_entry_point
    is_ours = isinstance(entry_point, str) and entry_point.startswith("rmc_agents.")
    return _is_memory(spec) or (is_ours and _is_bare(spec))


def _is_bare(spec: EnvSpec) -> bool:
    """Whether the registration adds neither a time limit nor wrappers, which need lanes that are stepped one by one."""
    return spec.max_episode_steps is None and not spec.additional_wrappers


def _make_native(spec: EnvSpec, num_envs: int, autoreset_mode: AutoresetMode, arguments: dict[str, Any]) -> VectorEnv:
    try:
        if not _is_memory(spec):
            return gym.make_vec(spec, num_envs, "vector_entry_point", autoreset_mode=autoreset_mode, **arguments)
        from .minigrid.vector import MemoryVectorEnv

        env = MemoryVectorEnv(num_envs, autoreset_mode=autoreset_mode, **(spec.kwargs | arguments))
    except TypeError as error:
        raise ValueError(f"environment {spec.id} cannot be made: {error}") from error
    env.spec = spec
    return env


def _check_arguments(spec: EnvSpec, name: str, given: Mapping[str, Any]) -> None:
    """Raises ValueError if the environment's constructor does not take one of the given arguments."""
    make = spec.entry_point or spec.vector_entry_point
    if not given or make is None:
        return
    with Blame(name, "its import"):
        creator = load_env_creator(make) if isinstance(make, str) else make
    if _is_memory(spec):  # it hands further arguments on, to its base class
        from minigrid.minigrid_env import MiniGridEnv

        check_arguments(MiniGridEnv, given, name, also=NATIVE_MEMORY)
    check_arguments(creator, given, name)


def _check_backend(backend: str, spec: EnvSpec, name: str) -> None:
    checked_choice("backend", backend, get_args(Backend))
    if backend == "native" and not _has_native_engine(spec):
        raise ValueError(f"env_backend: expected auto for {name!r}, which has no native engine, got native")
    if backend == "minigrid" and not str(spec.entry_point).startswith("minigrid."):
        raise ValueError(f"env_backend: expected auto for {name!r}, which is not a minigrid environment, got minigrid")


def register_named(name: str) -> None:
    """Register the class or function 'module:NAME' with gymnasium, for a name that the user has given.

    One that a file names passes `plugins.check_named` first. None of this package's own is registered: a file may name
    its modules, and could call any of their functions.

    Raises:
      ValueError: if there is no such module.
      EnvError: if the module's own code fails.
    """
    base, _ = split_stack(name)
    module, _, attribute = base.rpartition(":")
    if module and module.partition(".")[0] != OWN and not sequences.is_text(name):
        _import_module(base, name)
        if callable(make := getattr(sys.modules[module], attribute, None)):
            register_own(attribute, make)


def _find_spec(env_id: str, name: str) -> EnvSpec:
    _import_module(env_id, name)
    module, _, registered = env_id.rpartition(":")
    if registered not in gym.registry:
        raise unknown(name)
    spec = gym.registry[registered]
    if callable(known := spec.entry_point or spec.vector_entry_point):
        make = getattr(sys.modules.get(module), registered, known)
        if make is not known:
            register_own(registered, make)  # another module's class of this name was registered since
    return gym.registry[registered]


def _import_module(env_id: str, name: str) -> None:
    """Import the module that registers the environment: the prefix of its id, or minigrid for its ids."""
    if ":" not in env_id and env_id in gym.registry:
        return
    module = env_id.rpartition(":")[0] or "minigrid"
    try:
        with Blame(name, f"the import of {module}"):
            importlib.import_module(module)
    except EnvError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            hint = "; pip install 'rmc-agents[popgym]'" if error.__cause__.name == module == "popgym" else ""
            raise ValueError(f"environment {name!r}: importing {module} failed: {error.__cause__}{hint}") from None
        raise
