"""Videos of an agent, as mp4 or GIF."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.collect import choose
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.envs.stacking import StackedViews
from rmc_agents.files import replacing
from rmc_agents.stream import Lanes
from rmc_agents.types import AgentOutput, Policy, State

from .file import FRAMES_PER_SECOND, HIGHEST_FPS, MAX_VIDEO_STEPS, Picture, check_target, write_gif, write_mp4
from .panels import FrameInfo, compose

HOLD_SECONDS = 1.0
COUNTERS = ("level", "power")


class RecordedVideo(NamedTuple):
    """A recorded video."""

    path: Path
    frames: int  # including the repeated last ones of each episode
    returns: list[float]  # one per episode; for a cut episode the return so far
    cut: list[bool]  # whether the episode was cut off by the step limit


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
    max_steps: int = MAX_VIDEO_STEPS,
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
    write = write_gif if path.suffix.lower() == ".gif" else write_mp4
    with replacing(path) as temporary, closing(make_env(env, render_mode="rgb_array")) as one:
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

    def play(self, episodes: int, seed: int, max_steps: int, hold: int) -> Iterator[Picture]:
        """The images of all episodes; the last one of each is repeated for `hold` more frames."""
        for i in range(episodes):
            name = f"episode {i + 1} of {episodes}" if episodes > 1 else ""
            yield from self._play_one(name, seed + i, max_steps, hold)

    def _play_one(self, name: str, seed: int, max_steps: int, hold: int) -> Iterator[Picture]:
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
    ) -> FrameInfo:
        infos = self.lanes.infos
        counters = {key: float(infos[key][0]) for key in COUNTERS if key in infos}
        return FrameInfo(
            self.title,
            name,
            score,
            step,
            self.action_names,
            counters,
            values=values,
            attention=attention,
            legend=self.lanes.env.metadata.get("legend", {}),
        )

    def _with_choice(self, facts: FrameInfo, output: AgentOutput, action: Tensor) -> FrameInfo:
        """Add the probabilities of Discrete actions; for others none are shown."""
        if not self.lanes.spec.num_actions:
            return replace(facts, probabilities=np.empty(0))
        probabilities = output.policy_logits[0].softmax(dim=-1).cpu().numpy()
        return replace(facts, probabilities=probabilities, action=int(action.item()))

    def _picture(self, facts: FrameInfo, repeats: int) -> Picture:
        return Picture(compose(render(self.lanes.env), self._view(), facts), repeats)

    def _view(self) -> NDArray[np.uint8] | None:
        """The observation, or the newest of stacked ones, if it is an image `[h, w, 3]`."""
        env, spec = self.lanes.env, self.lanes.spec
        views = env.num_views if isinstance(env, StackedViews) else 1
        if spec.obs_dtype != "uint8" or len(spec.obs_shape) != 3 or spec.obs_shape[2] != 3 * views:
            return None
        obs = self.lanes.steps.obs[0]
        return (obs[..., -3:].cpu().numpy() * (spec.obs_scale * 255)).round().astype(np.uint8)


def render(env: VectorEnv) -> NDArray[np.uint8]:
    """The rendered image `[height, width, 3]` of an environment with one lane.

    Floating-point images without a value above 1 are read as 0 to 1, as matplotlib does.
    """
    try:
        frames = env.render()
    except gym.error.Error as error:
        raise ValueError(f"the environment cannot render: {error}") from error
    frame = None if frames is None else frames[0]
    shape = np.shape(frame)  # type: ignore[arg-type]  # some environments ignore render_mode
    if len(shape) != 3 or shape[2] not in (3, 4):
        got = f"an array {list(shape)}" if shape else type(frame).__name__
        raise ValueError(f"the environment cannot render: expected an image [height, width, 3], got {got}")
    image = np.asarray(frame)
    if image.dtype.kind == "f" and image.max(initial=0) <= 1:
        image = image * 255
    return image.astype(np.uint8, copy=False)


def action_names(env: VectorEnv, num_actions: int) -> list[str]:
    """Names of the actions, from the environment's metadata; their numbers if it does not have a name for each."""
    names = list(env.metadata.get("action_names") or [])
    if len(names) == num_actions:
        return names
    if env.spec is not None and env.spec.id.startswith("MiniGrid-"):
        from minigrid.core.actions import Actions  # takes a while to import

        return [Actions(i).name for i in range(num_actions)]
    return [str(i) for i in range(num_actions)]
