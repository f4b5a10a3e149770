"""Supervised learning of sequences: the environment reports the correct action, and the agent learns to take it.

    rollout = collector.collect()              T steps of all lanes, with the agent's most likely actions
    output = agent.unroll(rollout)             from the last state of the previous rollout, detached
    loss = cross_entropy(output, rollout.targets)
    one step of the optimizer

This is truncated backpropagation through time: a lane is a stream of sequences, and the core's state is carried from
rollout to rollout and reset at the start of a sequence. The loss is the mean over the steps with a target, however few
they are.
"""

from collections.abc import Iterator

from torch import Tensor

from rmc_agents import losses
from rmc_agents.losses import Metrics
from rmc_agents.types import Rollout, at

from . import distributed
from .learner import state_norm
from .on_policy import OnPolicy


class Supervised(OnPolicy):
    """A run of supervised learning. The value head learns nothing.

    Args: as in `OnPolicy`; the environment reports the correct actions, as those in `envs.sequences` do.

    Raises:
      ValueError: if the environment reports no correct actions, or its text is shorter than one rollout.
    """

    def minibatch_losses(self, rollout: Rollout) -> Iterator[tuple[Tensor, Metrics, Tensor]]:
        """The loss, its metrics, and how many answers they are means of."""
        assert rollout.targets is not None
        output, _ = self.agent.unroll(at(rollout.steps, slice(-1)), rollout.initial_state)
        yield *losses.cross_entropy(output.policy_logits, rollout.targets), (rollout.targets >= 0).sum()

    def learn(self, rollout: Rollout) -> Metrics:
        """Learn from the last rollout. Without any targets in it, no optimizer step is taken."""
        ((loss, metrics, asked),) = self.minibatch_losses(rollout)
        frames, every = self.train.unroll_length * self.share.total, distributed.total(asked)
        if every > 0:
            metrics = self._optimize(loss, metrics, asked)
        self.frames += frames
        self.updates += 1
        extra = {
            "charts/target_fraction": every / frames,
            "charts/recurrent_state_norm": state_norm(self.collector.state),
        }
        return metrics | extra

    def _check_lanes(self) -> None:
        if self.lanes.targets is None:
            env = self.config.env.env
            if "target" in self.lanes.infos and self.lanes.spec.num_actions:
                self.lanes.read_targets()  # says what is wrong with them
            if "target" in self.lanes.infos:
                spaces = self.lanes.spec.described()
                raise ValueError(f"--algo supervised: expected Discrete actions for targets, in {env!r} got {spaces}")
            raise ValueError(
                "--algo supervised: expected an environment that reports targets in infos['target'], from the reset "
                f"on, such as nth-farthest, program or text:PATH, got {env!r}"
            )
        super()._check_lanes()
