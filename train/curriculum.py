"""A curriculum: a run begins with easier stages of its environment, and leaves each stage once it has learned it."""

import logging
import math
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from rmc_agents.config import EnvConfig
from rmc_agents.config.stages import stages_of
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.episodes import Episode
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes
from rmc_agents.types import Rollout

from . import distributed

logger = logging.getLogger(__name__)

ENOUGH = 500
"""The number of episodes that a mean needs before it is compared with a stage's threshold.

Every lane contributes its first episodes, equally many. Counting whichever end first would favour short episodes, which
are often the successful ones.
"""


class _Spaces(NamedTuple):
    """What must be the same in all stages."""

    spec: SpaceSpec
    has_target: bool  # reports the right actions
    has_mask: bool  # reports which actions are allowed

    def described(self) -> str:
        """In words, for messages."""
        masks, targets = (("with" if has else "without") for has in (self.has_mask, self.has_target))
        return f"{self.spec.described()}, {masks} action masks, {targets} right actions"


class Curriculum:
    """A run's progress through the stages of its settings. The environment itself follows the last stage.

    Args:
      config: with the setting `curriculum`.

    Attributes:
      stages: the stages of the settings.
      stage: the current stage, from 0; `len(stages)` is the environment itself.
    """

    def __init__(self, config: EnvConfig) -> None:
        self.config, self.stages, self.stage = config, stages_of(config.curriculum), 0
        self._frames, self._episodes, self._count, self._sum = 0, 0, 0, 0.0
        self._may_warn = True  # no episode has reported success or failure, and there was no warning
        self._each = math.ceil(ENOUGH / config.num_envs)  # episodes of each lane

    def make(self, lanes: int, stage: int) -> VectorEnv:
        """The environment in a stage, with this number of lanes."""
        stages = [*(stage.env_kwargs for stage in self.stages), {}]
        return self._make(lanes, stages[stage], self.config.env_workers)

    def _make(self, lanes: int, env_kwargs: dict[str, Any], workers: int = 0) -> VectorEnv:
        config = self.config
        kwargs = config.env_kwargs | env_kwargs
        return make_vector_env(config.env, lanes, num_workers=workers, backend=config.env_backend, env_kwargs=kwargs)

    def check(self) -> None:
        """Raises ValueError for a stage that cannot be made, has other spaces, or needs targets that are not there."""
        if not self.stages:
            return
        expected = self._spaces({})
        for number, stage in enumerate(self.stages, 1):
            name = f"curriculum: stage {number}"
            try:
                found = self._spaces(stage.env_kwargs)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if found != expected:
                raise ValueError(
                    f"{name}: expected the spaces of the environment itself, {expected.described()}, got "
                    f"{found.described()}"
                )
            if stage.measure == "accuracy" and not found.has_target:
                raise ValueError(
                    f"{name}: accuracy: expected an environment that reports the right actions in infos['target'], got "
                    f"{self.config.env!r}"
                )

    def _spaces(self, env_kwargs: dict[str, Any]) -> _Spaces:
        """The spaces of the environment with these arguments."""
        with closing(self._make(1, env_kwargs)) as env:
            obs, infos = env.reset(seed=0)
            spec = SpaceSpec.of(env)
            return _Spaces(spec, "target" in infos and spec.num_actions > 0, spec.action_mask(obs, infos) is not None)

    def count(self, frames: int, rollout: Rollout, episodes: Sequence[Episode], lanes: Lanes) -> bool:
        """Count a rollout; returns True if the stage is over. Every learner calls this.

        If the mean is below the threshold, a new sample begins, and the lanes number their episodes anew.

        Args:
          frames: of the rollout, over all learners.
          rollout: this learner's rollout.
          episodes: the episodes that ended in it.
          lanes: this learner's, after it.
        """
        if self.stage == len(self.stages):
            return False
        stage = self.stages[self.stage]
        self._frames += frames
        episodes = [episode for episode in episodes if 0 <= episode.number < self._each]
        if stage.measure == "accuracy":
            values = _answers(rollout, lanes.numbers, self._each)
        elif stage.measure == "success":
            values = torch.tensor([bool(episode.success) for episode in episodes])
        else:
            values = torch.tensor([episode.episode_return for episode in episodes], dtype=torch.float64)
        reported = sum(episode.success is not None for episode in episodes)
        found = [values.sum().item(), len(values), len(episodes), reported]
        totals = distributed.total(torch.tensor(found, dtype=torch.float64))
        self._sum += totals[0].item()
        self._count += int(totals[1])
        self._episodes += int(totals[2])
        if totals[3] > 0:
            self._may_warn = False
        if self._frames >= stage.frames:
            return True
        if self._episodes < self._each * self.config.num_envs:
            return False
        if stage.measure == "success" and self._may_warn:
            self._warn()
        if self._count and self._sum / self._count >= stage.threshold:
            return True
        self.restart_count()
        lanes.restart_numbering()
        return False

    def _warn(self) -> None:
        """Warn once that the environment reports no success."""
        self._may_warn = False
        if distributed.rank() == distributed.FIRST:
            logger.warning(
                "curriculum: none of %d episodes had infos['is_success'], so that the success rate is 0; if the "
                "environment never reports it, give the stage a return or frames",
                self._episodes,
            )

    def advance(self) -> None:
        """Begin the next stage."""
        self.stage, self._frames = self.stage + 1, 0
        self.restart_count()

    def restart_count(self) -> None:
        """Forget the answers and episodes of this stage so far. The caller also calls `Lanes.restart_numbering`."""
        self._episodes, self._count, self._sum = 0, 0, 0.0

    def get_state(self) -> dict[str, Any]:
        """What `set_state` needs to continue exactly."""
        counts = {"episodes": self._episodes, "count": self._count, "sum": self._sum}
        return {"stage": self.stage, "frames": self._frames} | counts

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from what `get_state` returned. Raises ValueError for an unknown stage or negative counts."""
        if (
            not 0 <= state["stage"] <= len(self.stages)
            or min(state[name] for name in ("frames", "episodes", "count")) < 0
        ):
            raise ValueError(f"curriculum: expected a stage from 0 to {len(self.stages)} and counts, got {state}")
        self.stage = state["stage"]
        self._frames, self._episodes = state["frames"], state["episodes"]
        self._count, self._sum = state["count"], state["sum"]

    def describe(self) -> list[str]:
        """The lines about the curriculum at the start of a run."""
        if not self.stages:
            return []
        return [f"curriculum: {', then '.join(map(str, self.stages))}, then the environment itself"]


def _answers(rollout: Rollout, numbers: NDArray[np.int64], each: int) -> Tensor:
    """Whether each answer in a lane's first `each` episodes is right; `numbers` `[B]`, of the episodes after the
    rollout.
    """
    assert rollout.targets is not None
    ends = (rollout.steps.terminated | rollout.steps.truncated)[1:]  # [T, B]: the step ends its episode
    episode = torch.as_tensor(numbers, device=ends.device) - ends.flip(0).cumsum(0).flip(0)
    counts = (rollout.targets >= 0) & (episode >= 0) & (episode < each)
    return (rollout.steps.prev_action[1:] == rollout.targets)[counts]
