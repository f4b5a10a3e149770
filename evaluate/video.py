"""Videos of an agent, as mp4 or GIF."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import IO, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from rmc_agents.collect import choose
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.envs.stacking import StackedViews
from rmc_agents.evaluate.panels import Facts, compose
from rmc_agents.evaluate.video_file import FRAMES_PER_SECOND, HIGHEST_FPS, MOST_STEPS, check_target
from rmc_agents.stream import Lanes
from rmc_agents.types import AgentOutput, Policy, State

HOLD_SECONDS = 1.0
COUNTERS = ("level", "power")
ACTION_NAMES = {
    "MiniPacman-v0": ["stay", "right", "up", "left", "down"],
    "BoxWorld-v0": ["up", "down", "left", "right"],
}
LEGENDS = {
    "MiniPacman-v0": {
        "wall": (255, 255, 255),
        "food": (0, 0, 255),
        "pill": (0, 255, 255),
        "Pacman": (0, 255, 0),
        "ghost": (255, 0, 0),
        "edible": (255, 255, 0),
    }
}
"""The meaning of colours in image observations."""


class RecordedVideo(NamedTuple):
    """A recorded video."""

    path: Path
    frames: int  # including the repeated last ones of each episode
    returns: list[float]  # one per episode; for a cut episode the return so far
    cut: list[bool]  # whether the episode was cut off by the step limit


class _Picture(NamedTuple):
    image: Image.Image
    repeats: int  # number of frames


def can_render(env: str | EnvFactory) -> bool:
    """Whether the environment can be recorded."""
    with closing(make_env(env)) as one:
        return "rgb_array" in one.metadata.get("render_modes", [])


def record(
    policy: Policy,
    env: str | EnvFactory,
    path: str | PathLike[str],
    *,
    episodes: int = 1,
    seed: int = 0,
    device: torch.device,
    deterministic: bool = False,
    title: str = "",
    max_steps: int = MOST_STEPS,
    fps: int = FRAMES_PER_SECOND,
    reward_scale: float = 1.0,
) -> RecordedVideo:
    """Play whole episodes in sequence and record a video of them; the file appears when it is complete.

    Args:
      policy: the policy.
      env: a name, or a class or function that creates the environment, as in `make_env`.
      path: a file name that ends in .mp4 or .gif, in an existing folder. A GIF is held in memory until it is complete,
        about 0.4 MB per frame; an mp4 is not.
      episodes: number of episodes; episode i starts from seed + i.
      seed: of the environment and of action sampling.
      device: the policy's device.
      deterministic: take the most likely action instead of sampling.
      title: the first line of every frame; empty: the environment's name.
      max_steps: maximum steps of an episode.
      fps: steps shown per second.
      reward_scale: of the policy's training, removed from displayed values.

    Raises:
      ValueError: for an invalid path or number, or an environment that cannot render.
      OSError: if the file cannot be written; nothing is left behind.
    """
    path = Path(path)
    check_target(path)
    for name, number in {"episodes": episodes, "max_steps": max_steps, "fps": fps}.items():
        if number < 1:
            raise ValueError(f"{name}: expected at least 1, got {number}")
    if fps > HIGHEST_FPS:
        raise ValueError(f"fps: expected at most {HIGHEST_FPS}, got {fps}")
    if not can_render(env):
        raise ValueError(f"environment {name_of(env)!r} cannot be recorded: it has no render mode rgb_array")
    write = _write_gif if path.suffix.lower() == ".gif" else _write_mp4
    with _replacing(path) as temporary, closing(make_env(env, render_mode="rgb_array")) as one:
        show = _Show(policy, Lanes(one, seed, device), title or name_of(env), deterministic, reward_scale)
        frames = write(temporary, show.play(episodes, seed, max_steps, round(HOLD_SECONDS * fps)), fps)
    return RecordedVideo(path, frames, show.returns, show.cut)


class _Show:
    """Plays and draws episodes in one lane; `returns` and `cut` are those of the episodes so far."""

    def __init__(self, policy: Policy, lanes: Lanes, title: str, deterministic: bool, reward_scale: float) -> None:
        self.policy, self.lanes, self.title, self.deterministic = policy, lanes, title, deterministic
        self.reward_scale = reward_scale
        self.action_names = action_names(lanes.env, lanes.spec.num_actions)
        self.returns: list[float] = []
        self.cut: list[bool] = []

    def play(self, episodes: int, seed: int, max_steps: int, hold: int) -> Iterator[_Picture]:
        """The images of all episodes; the last one of each is repeated for `hold` more frames."""
        for i in range(episodes):
            name = f"episode {i + 1} of {episodes}" if episodes > 1 else ""
            yield from self._play_one(name, seed + i, max_steps, hold)

    def _play_one(self, name: str, seed: int, max_steps: int, hold: int) -> Iterator[_Picture]:
        self.lanes.reset(seed)
        generator = torch.Generator(self.lanes.device).manual_seed(seed)
        state = self.policy.initial_state(1)
        score, step, values, attention = 0.0, 0, [], None
        while not (note := self._end_note(step, max_steps)):
            attention = self._attention(state)
            with torch.no_grad():
                output, state = self.policy.step(self.lanes.steps, state)
            policy = self.lanes.spec.distribution(output.policy_logits)
            action = choose(policy, generator, self.deterministic)
            values.append(output.value.item() / self.reward_scale)
            facts = self._facts(name, score, step, values, attention)
            yield self._picture(self._with_choice(facts, output, action), 1)
            score += self.lanes.step(action).prev_reward.item()
            step += 1
        self.returns.append(score)
        self.cut.append(not self._is_over())
        yield self._picture(replace(self._facts(name, score, step, values, attention), note=note), 1 + hold)

    def _attention(self, state: State) -> NDArray[np.floating] | None:
        """Attention weights of the next step, `[heads, N, N+1]`, of the last block if there are several."""
        attention = look(self.lanes.steps, state) if (look := getattr(self.policy, "attention", None)) else None
        return None if attention is None else attention[0, -1].cpu().numpy()

    def _is_over(self) -> bool:
        return bool((self.lanes.steps.terminated | self.lanes.steps.truncated).item())

    def _end_note(self, step: int, max_steps: int) -> str:
        if self._is_over():
            return "time limit reached" if self.lanes.steps.truncated.item() else "episode over"
        return f"recording ends after {max_steps} steps" if step == max_steps else ""

    def _facts(
        self, name: str, score: float, step: int, values: list[float], attention: NDArray[np.floating] | None
    ) -> Facts:
        infos = self.lanes.infos
        counters = {key: float(infos[key][0]) for key in COUNTERS if key in infos}
        env_id = self.lanes.env.spec.id if self.lanes.env.spec is not None else ""
        return Facts(
            self.title,
            name,
            score,
            step,
            self.action_names,
            counters,
            values=values,
            attention=attention,
            legend=LEGENDS.get(env_id, {}),
        )

    def _with_choice(self, facts: Facts, output: AgentOutput, action: Tensor) -> Facts:
        """Add the probabilities of Discrete actions; for others none are shown."""
        if not self.lanes.spec.num_actions:
            return replace(facts, probabilities=np.empty(0))
        probabilities = output.policy_logits[0].softmax(dim=-1).cpu().numpy()
        return replace(facts, probabilities=probabilities, action=int(action.item()))

    def _picture(self, facts: Facts, repeats: int) -> _Picture:
        return _Picture(compose(render(self.lanes.env), self._view(), facts), repeats)

    def _view(self) -> NDArray[np.uint8] | None:
        """The observation, or the newest of stacked ones, if it is an image `[h, w, 3]`."""
        env, spec = self.lanes.env, self.lanes.spec
        views = env.num_views if isinstance(env, StackedViews) else 1
        if spec.obs_dtype != "uint8" or len(spec.obs_shape) != 3 or spec.obs_shape[2] != 3 * views:
            return None
        obs = self.lanes.steps.obs[0]
        return (obs[..., -3:].cpu().numpy() * (spec.obs_scale * 255)).round().astype(np.uint8)


def render(env: VectorEnv) -> NDArray[np.uint8]:
    """The rendered image `[height, width, 3]` of an environment with one lane."""
    try:
        frames = env.render()
    except gym.error.Error as error:
        raise ValueError(f"the environment cannot render: {error}") from error
    frame = None if frames is None else frames[0]
    if np.ndim(frame) != 3:  # type: ignore[arg-type]  # some environments ignore render_mode
        raise ValueError(f"the environment cannot render: expected an image, got {type(frame).__name__}")
    return np.asarray(frame, np.uint8)


def action_names(env: VectorEnv, num_actions: int) -> list[str]:
    """Names of the actions, from the environment's metadata; their numbers if no names are known."""
    if (names := env.metadata.get("action_names")) is not None:
        return list(names)
    env_id = env.spec.id if env.spec is not None else ""
    if env_id in ACTION_NAMES:
        return ACTION_NAMES[env_id]
    if env_id.startswith("MiniGrid-"):
        from minigrid.core.actions import Actions  # takes a while to import

        return [Actions(i).name for i in range(num_actions)]
    if env_id == "Recall-v0":
        return ["wait", *(f"cue {i}" for i in range(1, num_actions))]
    return [str(i) for i in range(num_actions)]


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`; renamed to `path` on success, otherwise deleted."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(descriptor)
    try:
        yield Path(name)
        with open(name, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            os.unlink(name)


def _write_mp4(path: Path, pictures: Iterator[_Picture], fps: int) -> int:
    """Encode the images as they arrive, with the ffmpeg of imageio-ffmpeg; returns the number of frames."""
    first = next(pictures)
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            _ffmpeg_command(path, first.image.size, fps),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,  # so that only this process receives Ctrl-C
        )
        try:
            assert process.stdin is not None
            frames = _feed(process.stdin, chain([first], pictures))
            status = process.wait()
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        problem = log.read().decode(errors="replace").strip() or f"exit status {status}"
    if status != 0 or frames is None:
        raise OSError(f"ffmpeg: {problem.splitlines()[0].split('] ')[-1]}")
    return frames


def _feed(stdin: IO[bytes], pictures: Iterator[_Picture]) -> int | None:
    """Write all frames and close; returns their number, or None if ffmpeg has ended."""
    frames = 0
    for picture in pictures:
        raw = picture.image.tobytes()
        for _ in range(picture.repeats):
            try:
                stdin.write(raw)
            except BrokenPipeError:
                return None
        frames += picture.repeats
    try:
        stdin.close()
    except BrokenPipeError:
        return None
    return frames


def _ffmpeg_command(path: Path, size: tuple[int, int], fps: int) -> list[str]:
    """The command for H.264 that browsers play: even sizes, yuv420p, the index before the data."""
    from imageio_ffmpeg import get_ffmpeg_exe

    try:
        program = get_ffmpeg_exe()
    except RuntimeError as error:
        raise OSError(f"no ffmpeg: {error}; reinstall imageio-ffmpeg, or record a .gif") from None
    source = f"-f rawvideo -pix_fmt rgb24 -s {size[0]}x{size[1]} -r {fps} -i pipe:0"
    output = "-vf pad=ceil(iw/2)*2:ceil(ih/2)*2 -c:v libx264 -crf 20 -pix_fmt yuv420p -movflags +faststart -f mp4"
    return [program, "-loglevel", "error", "-y", *source.split(), *output.split(), str(path)]


def _write_gif(path: Path, pictures: Iterator[_Picture], fps: int) -> int:
    """Encode with Pillow, which merges equal frames; returns the number of frames."""
    shown = 0

    def paletted() -> Iterator[Image.Image]:
        nonlocal shown
        for picture in pictures:
            image = picture.image.quantize(256, dither=Image.Dither.NONE)
            begins = round(100 * shown / fps)  # hundredths of a second, the unit of a GIF
            shown += picture.repeats
            image.info["duration"] = 10 * (round(100 * shown / fps) - begins)
            yield image

    images = paletted()
    next(images).save(path, format="GIF", save_all=True, append_images=images, loop=0)
    return shown
