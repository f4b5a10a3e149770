"""Users' environments: an error in their code is reported as theirs, with only their lines of the traceback."""

import importlib
import logging
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from .processes import EnvError

NUMBERS = frozenset({"level", "power", "is_success", "corridor_length", "solution_length", "num_distractors"})
"""Infos that are averaged or shown as numbers."""

NOT_THEIRS = (
    "<frozen importlib",
    *(f"{Path(file or '').parent}{os.sep}" for file in (__file__, gym.__file__, importlib.__file__)),
)
"""How the file names of frames between this file and an environment's own code begin."""

logger = logging.getLogger(__name__)


class Blame:
    """Reports exceptions inside as errors of the environment `name` in `call`.

    A class, since it is entered at every step of every lane: contextlib's generators take several times as long.

    Raises:
      EnvError: in its place; a note has the traceback through their code, if it got as far as that.
    """

    def __init__(self, name: str, call: str) -> None:
        self.name, self.call = name, call

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, EnvError):
            raise _as_theirs(error, f"the environment {self.name!r} failed in {self.call}") from error


def _as_theirs(error: BaseException, what: str) -> EnvError:
    """The error as one line and, where a line of theirs is in it, the traceback through those."""
    if error.__cause__ is not None and not _their_frames(error):  # gymnasium rephrases a constructor's TypeError
        error = error.__cause__
    frames = _their_frames(error)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""
    shown = traceback.TracebackException.from_exception(error)  # its text is the error's, or says that it has none
    told = EnvError(f"{what}: {type(error).__name__}: {shown}{place}")
    if frames or isinstance(error, SyntaxError):
        shown.stack = traceback.StackSummary.from_list(frames)
        told.add_note("".join(shown.format()).rstrip())
    return told


def _their_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(NOT_THEIRS)]


class GuardedEnv(gym.Wrapper):
    """An environment with observations in an array, whose faults are `EnvError`s that name it.

    What it returns is checked as far as a vector environment relies on it. Infos that should be numbers (`NUMBERS`)
    and are none are left out, and so is None.

    Args:
      env: the environment.
      name: what its user calls it.
    """

    def __init__(self, env: gym.Env, name: str) -> None:
        super().__init__(env)
        space = env.observation_space
        assert space.dtype is not None
        self._shape, self._dtype = space.shape, space.dtype
        self._resetting, self._stepping = Blame(name, "reset()"), Blame(name, "step()")
        self._rendering, self._closing = Blame(name, "render()"), Blame(name, "close()")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._resetting:
            obs, info = self.env.reset(seed=seed, options=options)
            return self._checked(obs), _usable(info)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As the environment's. Raises EnvError."""
        with self._stepping:
            obs, reward, terminated, truncated, info = self.env.step(action)
            return self._checked(obs), float(reward), bool(terminated), bool(truncated), _usable(info)

    def render(self) -> Any:
        """As the environment's; with the render mode rgb_array a picture. Raises EnvError."""
        with self._rendering:
            frame = self.env.render()
            if self.render_mode == "rgb_array" and np.ndim(frame) != 3:  # type: ignore[arg-type]  # anything may come
                raise ValueError(f"expected a picture [height, width, 3], got {type(frame).__name__}")
            return frame

    def close(self) -> None:
        """Errors are logged and not raised."""
        try:
            with self._closing:
                self.env.close()
        except EnvError as error:
            logger.warning("%s", " ".join(str(error).split()))

    def _checked(self, obs: Any) -> NDArray[Any]:
        """The observation as an array. Raises ValueError unless it is one of the space's shape and kind of numbers."""
        array = np.asarray(obs)
        if array.shape != self._shape or not np.can_cast(array.dtype, self._dtype, "same_kind"):
            raise ValueError(
                f"expected an observation {self._shape} of {self._dtype}, got {array.shape} of {array.dtype}"
            )
        return array


class AnyInfos(VectorEnv):
    """A vector environment whose lanes may tell what they like: what does not fit in with other lanes is left out."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        try:
            return super()._add_info(vector_infos, env_info, env_num)
        except Exception:  # a number here, and a dict or a text there
            for key, value in env_info.items():
                with suppress(Exception):
                    super()._add_info(vector_infos, {key: value}, env_num)
            return vector_infos


class GuardedLanes(AnyInfos, SyncVectorEnv):
    """Lanes that are stepped one after the other, each a `GuardedEnv`.

    Args:
      makers: each makes one of them.
      autoreset_mode: as in gymnasium.

    Raises:
      ValueError: if their spaces differ.
    """

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], autoreset_mode: AutoresetMode) -> None:
        try:
            super().__init__(makers, autoreset_mode=autoreset_mode)
        except RuntimeError as error:
            raise ValueError(f"expected lanes of equal spaces: {error}") from error


def _usable(info: Any) -> dict[str, Any]:
    """The infos without None, and without values that should be numbers and are not."""
    if not isinstance(info, dict):
        raise TypeError(f"expected the infos in a dict, got {type(info).__name__}")
    return {
        key: value for key, value in info.items() if value is not None and (key not in NUMBERS or _is_number(value))
    }


def _is_number(value: Any) -> bool:
    array: NDArray[Any] = np.empty(0)
    with suppress(ValueError):  # of lists of lists
        array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "biuf" and bool(np.isfinite(array))


def check_finite(env: VectorEnv, obs: NDArray[Any], rewards: NDArray[Any]) -> None:
    """Check observations and rewards before anything is learned from them.

    Args:
      env: whose they are.
      obs: observations `[N, ...]`.
      rewards: `[N]`.

    Raises:
      EnvError: for a NaN, or what is infinite or becomes so in float32; it names environment, lane and value.
    """
    for kind, values in (("an observation", obs), ("a reward", rewards)):
        if values.dtype.kind != "f":
            continue
        is_number = np.abs(values) <= np.finfo(np.float32).max  # False for NaN
        if not is_number.all():
            place = tuple(np.argwhere(~is_number)[0].tolist())
            name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
            raise EnvError(
                f"the environment {name!r} gave {kind} that is not finite: {values[place]} in lane {place[0]}"
                + (f", entry {list(place[1:])} of the observation" if len(place) > 1 else "")
            )
