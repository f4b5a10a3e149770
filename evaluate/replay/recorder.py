"""Plays one episode and records everything that a replay shows, as plain values for JSON."""

from typing import Any

import numpy as np
import torch
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.agent import ActorCritic
from rmc_agents.collect import checked_step, choose
from rmc_agents.envs.making import EnvFactory
from rmc_agents.evaluate.actions import action_rows, shares, taken, text_of
from rmc_agents.evaluate.episodes import PlaySettings, lanes_for
from rmc_agents.evaluate.video.recording import arrays_of, counters_of, drawn, end_note, first_of, picture
from rmc_agents.formatting import plain_number, significant
from rmc_agents.stream import Lanes
from rmc_agents.types import AgentOutput, Policy, State, TimeStep, map_leaves

from .frames import Frames
from .grids import CellGrid, Film
from .memory import Played, comparisons, finite, peaks, rounded, strips
from .scenes import scene_of, view_of


def record(
    policy: Policy,
    env: str | EnvFactory,
    settings: PlaySettings,
    *,
    name: str,
    facts: str = "",
    window: int,
    value_scale: float | None = 1.0,
) -> dict[str, Any]:
    """Record one episode for the page (see `page.write`).

    Args:
      policy: the policy; only an `ActorCritic` shows its memory.
      env: a name, or a class or function that creates the environment, as in `make_env`.
      settings: how the episode is played.
      name: the agent's name, above its episode.
      facts: a line below the name.
      window: compare with the policy that only knows this many last steps.
      value_scale: of the policy's value estimates, removed from displayed ones; None: none are displayed.

    Raises:
      ValueError: for an environment whose `render` returns no image.
    """
    with drawn(env) as one:
        episode = _Episode(policy, lanes_for(policy, one, settings), value_scale)
        episode.play(settings)
    memory = _memory(policy, episode.played(), window)
    return {"name": name, "facts": facts, "seed": settings.seed, **episode.packed(), **memory}


def _memory(policy: Policy, played: Played, window: int) -> dict[str, Any]:
    if not isinstance(policy, ActorCritic):
        return {"note": "The memory of this kind of agent cannot be inspected."}
    if not played.before:
        return {"note": "This agent has no memory: it only knows its observation, last action and last reward."}
    compared = comparisons(policy, played, window)
    return {"compared": compared, "peaks": peaks(compared[0]["divergence"]), "strips": strips(policy, played)}


def summary(run: dict[str, Any]) -> str:
    """A summary of the episode, with the steps at which memory matters most."""
    line = f"{run['name']}: return {plain_number(sum(run['rewards']))} in {run['length']} steps, {run['end']}"
    if run["compared"]:
        reset, recent = run["compared"]
        line += f"; resetting the memory changes the most likely action at {reset['changed']} of them"
        line += f", keeping only the {recent['name'].removesuffix(' only')} at {recent['changed']}"
    if run["peaks"]:
        steps = "steps" if len(run["peaks"]) > 1 else "step"
        line += f"; memory matters most at {steps} {', '.join(map(str, run['peaks']))}"
    return line


class _Episode:
    """The episode being played, and its records."""

    def __init__(self, policy: Policy, lanes: Lanes, value_scale: float | None) -> None:
        self.policy, self.lanes, self.value_scale = policy, lanes, value_scale
        self.steps: list[TimeStep] = []
        self.outputs: list[AgentOutput] = []
        self.states: list[State] = []
        self.actions: list[Tensor] = []
        self.rewards: list[float] = []
        self.counters: dict[str, list[float]] = {}
        self.mission, self.note = "", ""
        self.camera = _Camera(lanes)

    def play(self, settings: PlaySettings) -> None:
        """Play from the seed to the end, or to `max_steps`."""
        lanes, generator = self.lanes, torch.Generator(self.lanes.device).manual_seed(settings.seed)
        lanes.reset(settings.seed)
        self.mission = _mission(lanes.env)
        self.states.append(self.policy.initial_state(1))
        self._look()
        while not self.note:
            self.steps.append(map_leaves(torch.clone, lanes.steps))
            with torch.no_grad():
                output, state = checked_step(self.policy, lanes.spec, lanes.steps, self.states[-1])
            self.outputs.append(output)
            self.states.append(state)
            policy = lanes.spec.distribution(output.policy_logits)
            self.actions.append(choose(policy, generator, settings.is_greedy(self.lanes)))
            after = lanes.step(self.actions[-1])
            self.rewards.append(float(lanes.rewards[0]))
            self._look()
            self.note = end_note(after, len(self.steps), settings.max_steps)

    def _look(self) -> None:
        self.camera.shoot()
        for key, value in counters_of(self.lanes).items():
            self.counters.setdefault(key, []).append(value)

    def played(self) -> Played:
        """All steps, stacked."""
        before, after = self.states[:-1], self.states[1:]
        is_known = isinstance(self.policy, ActorCritic)
        return Played(
            map_leaves(lambda *x: torch.cat(x), *self.steps),
            AgentOutput(*map(torch.cat, zip(*self.outputs, strict=True))),
            map_leaves(lambda *leaves: torch.cat(leaves), *before) if is_known else (),
            map_leaves(lambda *leaves: torch.cat(leaves), *after) if is_known else (),
        )

    def packed(self) -> dict[str, Any]:
        """For T steps: T of each number, T + 1 images."""
        played, spec, scale = self.played(), self.lanes.spec, self.value_scale
        rows, policy = action_rows(self.lanes.env, spec), spec.distribution(played.output.policy_logits)
        chosen = taken(spec, torch.cat(self.actions)).cpu() * torch.tensor([row.bounds is None for row in rows])
        return {
            "note": "",
            "end": self.note,
            "mission": self.mission,
            "length": len(self.steps),
            "rows": [{"name": row.name, "bounds": row.bounds} for row in rows],
            "actions": [text_of(action, rows, spec) for action in self.actions],
            "chosen": [one.nonzero().flatten().tolist() for one in chosen],
            "shares": rounded(shares(policy)),
            "values": None if scale is None else significant(finite(played.output.value / scale).tolist()),
            "rewards": significant(self.rewards),
            "counters": {key: values for key, values in self.counters.items() if len(values) == len(self.steps) + 1},
            **self.camera.packed(),
            "compared": [],
            "peaks": [],
            "strips": [],
        }


def _mission(env: VectorEnv) -> str:
    """The mission text of an environment, if it has one."""
    base = env.unwrapped
    return str(getattr(base.envs[0].unwrapped, "mission", "")) if isinstance(base, SyncVectorEnv) else ""


class _Camera:
    """Records the environment and the observation at every step, each as cells or as frames."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.draw = lanes, scene_of(lanes.env)
        self.scene: Film | Frames | None = None
        self.view: Film | Frames | None = None

    def shoot(self) -> None:
        self.scene = _added(self.scene, picture(self.lanes) if self.draw is None else self.draw())
        view = first_of(view_of(self.lanes.env, *each) for each in arrays_of(self.lanes))
        self.view = None if view is None else _added(self.view, view)

    def packed(self) -> dict[str, Any]:
        reels = {"scene": self.scene, "view": self.view}
        return {name: None if reel is None else reel.packed() for name, reel in reels.items()}


def _added(reel: Film | Frames | None, picture: CellGrid | NDArray[np.uint8]) -> Film | Frames:
    """Append a picture to the reel, creating it if necessary."""
    if isinstance(picture, np.ndarray):
        frames = reel if isinstance(reel, Frames) else Frames()
        frames.add(picture)
        return frames
    film = reel if isinstance(reel, Film) else Film()
    film.add(picture)
    return film
