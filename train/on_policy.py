"""A2C and PPO: collect a rollout, learn from it, repeat.

    rollout = collector.collect()             T steps of all lanes
    targets = lambda_targets(rollout)         once, from the values of the agent that acted
    for lanes in minibatches:                 PPO: several passes over shuffled lanes; A2C: all lanes once
        output = agent.unroll(rollout of the lanes)
        loss = clipped_actor_critic(output, targets)
        one step of the optimizer

A minibatch is a subset of the lanes, unrolled over all T steps from their stored initial state: backpropagation through
time is truncated only at the ends of a rollout.

With several learners (see `distributed`), each has its own lanes, and together they compute what one learner with all
lanes would, up to the choice of PPO's minibatches: advantages are normalised over all learners' lanes, and losses and
gradients are averaged over all learners' parts of a minibatch.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from gymnasium.vector import VectorEnv
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from rmc_agents import losses
from rmc_agents.collect import Collector, Share
from rmc_agents.config import LOSSES, Config
from rmc_agents.losses import Metrics, Targets
from rmc_agents.losses.supervised import OF_ANSWERS
from rmc_agents.stream import Lanes, seed_after
from rmc_agents.tree_checks import check_like
from rmc_agents.types import Rollout, at

from . import distributed
from .curriculum import Curriculum
from .distributed import shares
from .learner import Learner, diverged, is_lost, state_norm
from .own_loss import OwnLoss

if TYPE_CHECKING:
    from .reporting.diagnostics import Diagnostics


class OnPolicy(Learner):
    """A run of A2C (Mnih et al., 2016) or PPO (Schulman et al., 2017). A checkpoint holds the whole run,
    with the lanes of all learners, so that any number of learners can continue from it.

    Args:
      config: all settings.
      device: the agent's device.
      env: the environment, with NEXT_STEP autoreset; None: that of the settings.

    Attributes:
      lanes: this learner's.
      shares: the lanes of each learner.
      share: this learner's.
      shuffling: the generator of PPO's minibatches; the same in all learners.
    """

    lanes: Lanes

    def __init__(self, config: Config, device: torch.device, env: VectorEnv | None = None) -> None:
        self._owns_env = env is None
        wanted, learners = config.env, int(config.run.learners)
        self.shares = shares.split_lanes(wanted.num_envs if env is None else env.num_envs, learners)
        self.share = self.shares[distributed.rank()]
        frames = self.share.total * config.train.unroll_length
        if frames < 2 and config.train.normalize_advantages and config.train.algo != "supervised":
            raise ValueError(
                "rollouts: expected at least 2 frames, num_envs * unroll_length, to normalise their advantages, got 1"
            )
        self.curriculum = Curriculum(wanted)
        self.curriculum.check()
        measured = {stage.measure for stage in self.curriculum.stages}
        self._needs_targets = config.train.is_supervised or "accuracy" in measured
        seed = seed_after(config.run.seed, 0) + self.share.first
        made = self.curriculum.make(self.share.lanes, 0) if env is None else env
        with ExitStack() as on_error:
            if self._owns_env:
                on_error.callback(made.close)
            self.lanes = Lanes(made, seed, device, self._needs_targets)
            super().__init__(config, self.lanes.spec, device)
            self.shuffling = torch.Generator()  # its own: callbacks and custom parts may draw from the global one
            self.shuffling.set_state(torch.get_rng_state())
            self._check_lanes()
            self.own_loss = None if self.train.loss in LOSSES else OwnLoss(self.train)
            self.collector = Collector(
                self.agent,
                self.lanes,
                self.train.unroll_length,
                config.run.seed,
                deterministic=self.train.is_supervised,
                share=self.share,
            )
            on_error.pop_all()

    def _check_lanes(self) -> None:
        """Raises ValueError for lanes from which this algorithm cannot learn."""
        if (check_unroll := getattr(self.lanes.env, "check_unroll", None)) is not None:
            check_unroll(self.train.unroll_length, self.share.total)

    def update(self) -> Metrics:
        """Collect one rollout and learn from it. Returns metrics. Raises Diverged if the core's state becomes NaN."""
        earlier = len(self.lanes.episodes)
        with distributed.failing_together():
            rollout = self.collector.collect()
        if distributed.highest(is_lost(self.collector.state, self.agent)):  # in any learner
            raise diverged(f"after {self.frames:,} frames (the core's state is NaN)")
        metrics = self.learn(rollout)
        if not self.curriculum.stages:
            return metrics
        frames = self.train.unroll_length * self.share.total
        if self.curriculum.count(frames, rollout, self.lanes.episodes[earlier:], self.lanes):
            self._begin_next_stage()
        return metrics | {"curriculum/stage": torch.tensor(float(self.stage))}

    def _begin_next_stage(self) -> None:
        """Begin the curriculum's next stage. Until its environment is made, the earlier one stays."""
        with distributed.failing_together():
            lanes = self._new_lanes(self.curriculum.stage + 1)
        lanes.episodes = self.lanes.episodes  # they are not reported yet
        self.curriculum.advance()
        self.close()
        self.lanes = self.collector.lanes = lanes

    def _new_lanes(self, stage: int) -> Lanes:
        seed = seed_after(self.config.run.seed, self.frames) + self.share.first
        env = self.curriculum.make(self.share.lanes, stage)
        try:
            return Lanes(env, seed, self.lanes.device, self._needs_targets)
        except BaseException:
            env.close()
            raise

    def learn(self, rollout: Rollout) -> Metrics:
        """Learn from the last rollout.

        Returns the metrics, averaged over the minibatches that have any steps, and those of answers over minibatches
        that have any.
        """
        every = [self._optimize(*minibatch) for minibatch in self.minibatch_losses(rollout)]
        self.frames += self.train.unroll_length * self.share.total
        self.updates += 1
        stacked = {name: torch.stack([metrics[name] for metrics in every]) for name in (every[0] if every else ())}
        means = {name: all_.nanmean() if name in OF_ANSWERS else all_.mean() for name, all_ in stacked.items()}
        return means | {"charts/recurrent_state_norm": state_norm(self.collector.state)}

    def minibatch_losses(self, rollout: Rollout) -> Iterator[tuple[Tensor, Metrics, Tensor]]:
        """Each minibatch's loss, its metrics, and the number of steps in these means, with the current weights.

        A minibatch of nothing but fillers between episodes is left out: the optimizer's momentum would still move the
        weights.
        """
        targets = self._value_targets(rollout)
        for lanes in self._minibatches():
            part_targets = Targets(*(field[:, lanes] for field in targets))
            steps = part_targets.valid.sum()
            if distributed.total(steps) > 0:
                yield *self._loss(rollout.lanes(lanes), part_targets), steps

    @torch.no_grad()
    def _value_targets(self, rollout: Rollout) -> Targets:
        """The targets, fixed for all minibatches; the last value is that of the rollout's last observation."""
        last = at(rollout.steps, -1)
        bootstrap = self.agent.step(last, self.collector.state)[0].value
        return losses.lambda_targets(
            torch.cat([rollout.value, bootstrap.unsqueeze(0)]),
            rollout.steps,
            discount=self.train.discount,
            trace_lambda=self.train.trace_lambda,
            reward_scale=self.train.reward_scale,
            normalize_advantages=self.train.normalize_advantages,
            over_learners=distributed.total if len(self.shares) > 1 else None,
        )

    def _loss(self, rollout: Rollout, targets: Targets) -> tuple[Tensor, Metrics]:
        """The loss of some lanes and its metrics."""
        if self.own_loss is not None:
            return self.own_loss(self.agent, rollout, targets, self.frames / self.train.total_frames)
        config = self.train
        steps = at(rollout.steps, slice(-1))  # the last one's value is in the targets
        output, _ = self.agent.unroll(steps, rollout.initial_state)
        costs = {name: getattr(config, name) for name in ("value_cost", "entropy_cost", "reward_cost")}
        if config.algo == "a2c":
            return losses.actor_critic(output, rollout, targets, **costs)
        return losses.clipped_actor_critic(output, rollout, targets, clip=config.ppo_clip, **costs)

    def _minibatches(self) -> Iterator[Tensor | slice]:
        """This learner's lanes of each update."""
        if self.train.algo == "a2c":
            return iter([slice(None)])  # views, no copies
        every = minibatches(self.shares, self.train.ppo_epochs, self.train.ppo_minibatches, self.shuffling)
        return (parts[distributed.rank()] for parts in every)

    @property
    def stage(self) -> int:
        """The stage of the curriculum, from 1."""
        return 1 + self.curriculum.stage

    def describe(self) -> list[str]:
        """The first lines that a run prints."""
        return super().describe() + self.curriculum.describe()

    def diagnostics(self, writer: SummaryWriter) -> "Diagnostics | None":
        """As `Trainer.diagnostics`."""
        if not self.config.run.diagnostics:
            return None
        from .reporting.diagnostics import Diagnostics  # matplotlib is slow to load

        return Diagnostics(self.agent, self.collector, writer)

    def close(self) -> None:
        """Close the environments, unless they were passed in."""
        if self._owns_env:
            self.lanes.env.close()

    def resume_notes(self, state: dict[str, Any]) -> list[str]:
        """Reasons why the run does not resume exactly from a checkpoint's tree; empty if it does."""
        notes = []
        if (backend := state["config"].get("backend", "auto")) != self.config.run.backend:
            notes.append(
                f"the backend is {self.config.run.backend} instead of {backend}: unless both select the same one here, "
                "sums are rounded differently, so the resume is not exact"
            )
        for name, number in (("learners", len(self.shares)), ("threads", self.config.run.threads)):
            if (saved := state["config"].get(name, 1)) != number:
                notes.append(
                    f"the number of {name} is {number} instead of {saved}: sums are rounded in another order, so the "
                    "resume is not exact"
                )
        if state["collector"]["device"] != self.lanes.device.type:
            notes.append("the device has changed: action sampling restarts from the seed, so the resume is not exact")
        if not self.lanes.is_savable:
            what = (
                "with env_workers, states of environments"
                if self.config.env.env_workers
                else "this environment's state"
            )
            notes.append(f"{what} cannot be saved: episodes restart, so the resume is not exact")
        elif state["collector"]["lanes"] is None:
            notes.append(
                "the checkpoint has no state of the environment: its episodes restart, so the resume is not exact"
            )
        elif len(self.shares) > 1 and shares.part(state["collector"], self.share)["lanes"] is None:
            notes.append(
                "this environment's state has no axis of lanes, so learners cannot share it: its episodes restart, and "
                "the resume is not exact"
            )
        has_own_parts = self.config.has_own_parts or self.own_loss is not None
        if has_own_parts and (len(self.shares) > 1 or self.lanes.device.type == "cuda"):
            notes.append(
                "the resume is not exact if a custom core, encoder or loss draws random numbers, as dropout does: only "
                "the first learner's CPU generator is saved"
            )
        return notes

    def get_state(self) -> dict[str, Any]:
        """The tree of a checkpoint (see `checkpoint`). Collective: all learners call this together."""
        states = distributed.gather([self.collector.get_state()])
        own = {"collector": states[0] if len(states) == 1 else shares.merged(states)}
        own["shuffling"] = self.shuffling.get_state()
        if self.curriculum.stages:
            own["curriculum"] = self.curriculum.get_state()
        return super().get_state() | own

    def expected_state(self) -> dict[str, Any]:
        """As `Learner.expected_state`."""
        own = {"collector": self.collector.expected_state(), "shuffling": self.shuffling.get_state()}
        if self.curriculum.stages:
            own["curriculum"] = self.curriculum.get_state()
        return super().expected_state() | own

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint's tree: exactly, if the environment can be saved."""
        if self.curriculum.stages:
            saved = dict(state.get("curriculum", {}))
            if (numbers := saved.pop("numbers", None)) is not None and state["collector"]["lanes"] is not None:
                lanes = {"numbers": numbers} | state["collector"]["lanes"]  # older files have them here
                state = state | {"collector": state["collector"] | {"lanes": lanes}}
            if "count" in saved:
                saved.setdefault("episodes", saved["count"])  # older files counted answers or episodes
            check_like(saved, self.curriculum.get_state(), "curriculum")
            self.curriculum.set_state(saved)
            state = state | {"curriculum": saved}
            self.close()
            self.lanes = self.collector.lanes = self._new_lanes(self.curriculum.stage)
        if not self.lanes.is_savable:  # for example in workers, where the checkpoint's run had none
            state = state | {"collector": state["collector"] | dict.fromkeys(shares.BY_LANE)}
        if len(self.shares) > 1:
            state = state | {"collector": shares.part(state["collector"], self.share)}
        state = {"shuffling": state["torch_rng"]} | state  # older files have one generator for all
        self.check_state(state)
        self.shuffling.set_state(state["shuffling"])
        if state["collector"]["lanes"] is None:
            self.lanes.reset(seed_after(self.config.run.seed, state["frames"]) + self.share.first)
            self.curriculum.restart_count()
        self.collector.set_state(state["collector"])
        super().set_state(state)


def minibatches(
    shares: Sequence[Share], epochs: int, parts: int, generator: torch.Generator | None = None
) -> Iterator[tuple[Tensor, ...]]:
    """For each update, the indices of every learner's lanes, counted from its first. Every pass has all its lanes,
    shuffled, in almost equal parts. All learners draw the same.
    """
    parts = min(parts, shares[0].total)
    for _ in range(epochs):
        drawn = (torch.randperm(share.lanes, generator=generator) for share in shares)
        yield from zip(*(lanes.tensor_split(parts) for lanes in drawn), strict=True)
