"""Plays episodes in one lane and draws their frames, for a video."""

import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from PIL import ImageOps

from rmc_agents.collect import checked_step, choose
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.envs.stacking import StackedViews
from rmc_agents.evaluate.actions import action_rows, shares, taken
from rmc_agents.evaluate.episodes import PlaySettings, episodes_to_play, lanes_for, numbers_of
from rmc_agents.evaluate.progress import OnProgress, ignore_progress
from rmc_agents.files import replacing
from rmc_agents.spaces.parts import ArraySpec
from rmc_agents.stream import Lanes
from rmc_agents.types import Policy, State, TimeStep

from .file import FRAMES_PER_SECOND, HIGHEST_FPS, HeldFrame, check_target, write_gif, write_mp4
from .panels import FrameInfo, compose

HOLD_SECONDS, LEAST_SECONDS = 1.0, 10.0
SDL_DRIVER = "SDL_VIDEODRIVER"
COUNTERS = ("level", "power")
SQUARE = 24  # pixels, of a number's square in a picture of numbers
SQUARES_IN_ROW, MOST_SQUARES = 16, 256


class RecordedVideo(NamedTuple):
    """A recorded video.

    Attributes:
      path: its file.
      frames: number of pictures, including the repeated last ones of each episode.
      returns: one per episode; for a cut episode the return so far.
      cut: whether each episode was cut off by the step limit.
    """

    path: Path
    frames: int
    returns: list[float]
    cut: list[bool]


@contextmanager
def drawn(env: str | EnvFactory) -> Iterator[VectorEnv]:
    """Context with the environment in one lane, which `picture` draws."""
    has_driver = SDL_DRIVER in os.environ
    os.environ.setdefault(SDL_DRIVER, "dummy")  # otherwise pygame looks for a display, and complains
    try:
        with closing(make_env(env)) as one:
            can_render = _can_render(one)
        with closing(make_env(env, render_mode="rgb_array") if can_render else make_env(env)) as one:
            yield one
    finally:
        if not has_driver:
            os.environ.pop(SDL_DRIVER, None)


def _can_render(env: VectorEnv) -> bool:
    return "rgb_array" in env.metadata.get("render_modes", [])


def record(
    policy: Policy,
    env: str | EnvFactory,
    path: str | PathLike[str],
    settings: PlaySettings,
    *,
    episodes: int | None = None,
    title: str = "",
    fps: int = FRAMES_PER_SECOND,
    value_scale: float | None = 1.0,
    on_frame: OnProgress = ignore_progress,
) -> RecordedVideo:
    """Play whole episodes in sequence and record a video of them; the file appears when it is complete.

    Args:
      policy: the policy.
      env: a name, or a class or function that creates the environment, as in `make_env`.
      path: a file name that ends in .mp4 or .gif, in an existing folder. A GIF is held in memory until it is complete,
        about 0.4 MB per frame; an mp4 is not.
      settings: how they are played.
      episodes: number of episodes; None: as many as take ten seconds or more.
      title: the first line of every frame; empty: the environment's name.
      fps: steps shown per second.
      value_scale: of the policy's value estimates, removed from displayed ones; None: none are displayed.
      on_frame: called with the number of frames so far.

    Raises:
      ValueError: for an invalid path or number, or an environment whose `render` returns no image.
      OSError: if the file cannot be written; nothing is left behind.
    """
    path = Path(path)
    check_target(path)
    checked_int("fps", fps, 1, HIGHEST_FPS)
    if episodes is not None:
        checked_int("episodes", episodes, 1)
    write = write_gif if path.suffix.lower() == ".gif" else write_mp4
    with replacing(path) as temporary, drawn(env) as one:
        lanes = lanes_for(policy, one, settings)
        show = _Show(policy, lanes, settings, title or name_of(env), value_scale)
        frames = write(temporary, show.play(episodes, fps, on_frame), fps)
    return RecordedVideo(path, frames, show.returns, show.cut)


class _Show:
    """Plays and draws episodes in one lane; `returns` and `cut` are those of the episodes so far."""

    def __init__(
        self, policy: Policy, lanes: Lanes, settings: PlaySettings, title: str, value_scale: float | None
    ) -> None:
        self.policy, self.lanes, self.settings, self.title = policy, lanes, settings, title
        self.value_scale = value_scale
        self.actions = action_rows(lanes.env, lanes.spec)
        self._size: tuple[int, int] | None = None  # of the first image, and so of the video
        self.returns: list[float] = []
        self.cut: list[bool] = []

    def play(self, episodes: int | None, fps: int, on_frame: OnProgress) -> Iterator[HeldFrame]:
        """The images of all episodes (see `record`); the last one of each is repeated for `HOLD_SECONDS`."""
        played = frames = 0
        most = episodes_to_play(self.lanes.env, sys.maxsize if episodes is None else episodes)
        while played != most and (episodes is not None or frames < LEAST_SECONDS * fps):
            name = f"episode {played + 1}" + (f" of {episodes}" if episodes else "")
            for frame in self._play_one(name, self.settings.seed + played, fps):
                frames += frame.repeats
                on_frame(frames)
                yield frame
            played += 1

    def _play_one(self, name: str, seed: int, fps: int) -> Iterator[HeldFrame]:
        self.lanes.reset(seed)
        generator = torch.Generator(self.lanes.device).manual_seed(seed)
        state = self.policy.initial_state(1)
        score, step, values, attention = 0.0, 0, [], None
        while not (note := end_note(self.lanes.steps, step, self.settings.max_steps)):
            attention = self._attention(state)
            with torch.no_grad():
                output, state = checked_step(self.policy, self.lanes.spec, self.lanes.steps, state)
            policy = self.lanes.spec.distribution(output.policy_logits)
            action = choose(policy, generator, self.settings.is_greedy(self.lanes))
            values.append(output.value.item() / (self.value_scale or 1.0))
            facts = self._facts(name, score, step, values, attention)
            bars, marks = (each[0].cpu().numpy() for each in (shares(policy), taken(self.lanes.spec, action)))
            yield self._picture(replace(facts, shares=bars, taken=marks), 1)
            self.lanes.step(action)
            score += float(self.lanes.rewards[0])
            step += 1
        self.returns.append(score)
        self.cut.append(not (self.lanes.steps.terminated | self.lanes.steps.truncated).item())
        yield self._picture(
            replace(self._facts(name, score, step, values, attention), note=note), 1 + round(HOLD_SECONDS * fps)
        )

    def _attention(self, state: State) -> NDArray[np.floating] | None:
        """Attention weights of the next step, `[heads, rows, columns]`, of the last block if there are several."""
        attention = look(self.lanes.steps, state) if (look := getattr(self.policy, "attention", None)) else None
        return None if attention is None else attention[0, -1].cpu().numpy()

    def _facts(
        self, name: str, score: float, step: int, values: list[float], attention: NDArray[np.floating] | None
    ) -> FrameInfo:
        return FrameInfo(
            self.title,
            name,
            score,
            step,
            self.actions,
            counters_of(self.lanes),
            values=None if self.value_scale is None else values,
            attention=attention,
            legend=self.lanes.env.metadata.get("legend", {}),
        )

    def _picture(self, facts: FrameInfo, repeats: int) -> HeldFrame:
        views = (newest_image(self.lanes.env, *each) for each in arrays_of(self.lanes))
        image = compose(picture(self.lanes), first_of(views), facts)
        self._size = self._size or image.size
        return HeldFrame(image if image.size == self._size else ImageOps.pad(image, self._size), repeats)


def end_note(steps: TimeStep, number: int, max_steps: int) -> str:
    """Why the episode of one lane ends with this time step, after `number` steps; empty while it continues."""
    if (steps.terminated | steps.truncated).item():
        return "time limit reached" if steps.truncated.item() else "episode over"
    return f"recording ends after {max_steps} steps" if number == max_steps else ""


def counters_of(lanes: Lanes) -> dict[str, float]:
    """What the first lane reports of `COUNTERS`, as far as these are numbers."""
    found = {key: numbers_of(lanes.infos[key], lanes.num_lanes) for key in COUNTERS if key in lanes.infos}
    return {key: float(values[0]) for key, values in found.items() if values is not None and np.isfinite(values[0])}


def arrays_of(lanes: Lanes) -> list[tuple[ArraySpec, NDArray[Any]]]:
    """The arrays of the first lane's observation."""
    obs = lanes.steps.obs
    named = obs if isinstance(obs, dict) else {"": obs}
    return [(array, named[name][0].cpu().numpy()) for name, array in lanes.spec.arrays.items()]


def first_of(found: Iterable[Any]) -> Any:
    """The first that is not None, if there is one."""
    return next((each for each in found if each is not None), None)


def newest_image(env: VectorEnv, array: ArraySpec, obs: NDArray[Any]) -> NDArray[np.uint8] | None:
    """An observation, or the newest of stacked ones, as `[height, width, 3]`, if it is an image, coloured or grey."""
    views = env.num_views if isinstance(env, StackedViews) else 1
    image = obs[..., None] if obs.ndim == 2 else obs
    if array.dtype != "uint8" or image.ndim != 3 or image.shape[2] not in (views, 3 * views):
        return None
    newest = image[..., -(image.shape[2] // views) :] * (array.scale * 255)
    return np.broadcast_to(newest, (*newest.shape[:2], 3)).round().astype(np.uint8)


def picture(lanes: Lanes) -> NDArray[np.uint8]:
    """What the first lane shows, `[height, width, 3]`: rendered, if the environment has the render mode rgb_array; else
    the observation, as an image or as a square for each of its numbers, black for -inf, grey for 0, white for inf."""
    if _can_render(lanes.env) and (rendered := render(lanes.env)) is not None:
        return rendered
    arrays = arrays_of(lanes)
    if len(arrays) == 1 and (image := newest_image(lanes.env, *arrays[0])) is not None:
        return image
    numbers = np.concatenate([array.astype(np.float32).ravel() for _, array in arrays])[:MOST_SQUARES]
    rows = -(-len(numbers) // SQUARES_IN_ROW)
    grey = np.zeros(rows * -(-len(numbers) // rows), np.uint8)
    grey[: len(numbers)] = np.round(255 * (0.5 + np.arctan(numbers) / np.pi))
    squares = grey.reshape(rows, -1).repeat(SQUARE, 0).repeat(SQUARE, 1)
    squares[SQUARE - 1 :: SQUARE] = squares[:, SQUARE - 1 :: SQUARE] = 0  # lines between them
    return np.repeat(squares[..., None], 3, 2)


def render(env: VectorEnv) -> NDArray[np.uint8] | None:
    """The rendered image `[height, width, 3]` of an environment with one lane; None if it has no render mode, and shows
    nothing then.

    Boolean images, and floating-point ones without a value above 1, are read as 0 to 1, as matplotlib does.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # gymnasium's, without a render mode
            frames = env.render()
    except gym.error.Error as error:
        raise ValueError(f"the environment cannot render: {error}") from error
    frame = None if frames is None else frames[0]
    if frame is None and env.render_mode is None:
        return None
    shape = np.shape(frame)  # type: ignore[arg-type]  # some environments ignore render_mode
    if len(shape) != 3 or shape[2] not in (3, 4) or 0 in shape:
        got = f"an array {list(shape)}" if shape else type(frame).__name__
        raise ValueError(f"the environment cannot render: expected an image [height, width, 3], got {got}")
    image = np.asarray(frame)
    if image.dtype == bool or (image.dtype.kind == "f" and image.max(initial=0) <= 1):
        image = image * 255
    return image.astype(np.uint8, copy=False)
