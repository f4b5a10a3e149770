"""Memory ablations: the same episodes with the memory intact, and with it removed in several ways."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from rmc_agents.agent import ActorCritic
from rmc_agents.envs.checks import checked_int
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.types import AgentOutput, Policy, State, TimeStep, at, map_leaves

from .episodes import PlaySettings, concatenated, episodes_to_play, parts_of
from .parallel import Jobs, play_all
from .progress import OnProgress, ignore_progress
from .statistics import Statistics, interval_of_mean

LEAST_LANES = 64


@dataclass
class ShuffledMemory:
    """The agent with its memories permuted between lanes before every step: typical states, but from other episodes.

    Lanes that have finished their episode continue with further ones, so their memories remain useful donors. In N
    lanes, one in N steps takes a memory that began in the same lane.

    Args:
      agent: the agent.
      seed: of the permutations.
      least_lanes: `play` adds lanes up to this number, whose episodes only lend their memories.
    """

    agent: ActorCritic
    seed: int
    least_lanes: int = LEAST_LANES
    mixes_lanes: ClassVar[bool] = True  # all lanes are needed, also those that have finished
    _generator: torch.Generator = field(init=False, repr=False)

    def initial_state(self, batch_size: int) -> State:
        """The agent's initial state; restarts the permutations.

        Raises:
          ValueError: for a single lane, which has no other to swap with.
        """
        if batch_size < 2:
            raise ValueError(f"shuffling memories between lanes: expected at least 2 lanes, got {batch_size}")
        self._generator = torch.Generator().manual_seed(self.seed)
        return self.agent.initial_state(batch_size)

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes, each from another lane's state."""
        taken_from = cyclic_permutation(len(steps.is_first), self._generator).to(steps.is_first.device)
        return self.agent.step(steps, at(state, taken_from))


def cyclic_permutation(size: int, generator: torch.Generator) -> Tensor:
    """A random cyclic permutation `[size]` int64: with 2 or more elements, every one moves."""
    order = torch.randperm(size, generator=generator)
    permutation = torch.empty_like(order)
    permutation[order] = order.roll(1)
    return permutation


@dataclass(frozen=True)
class WindowedMemory:
    """The agent with its core limited to the last time steps, the current one included.

    At every step the core processes all of them from its initial state, which takes `window` times as long as normal
    acting. The core is reset as usual where an episode begins among them, so nothing leaks from the previous episode.

    Args:
      agent: the agent.
      window: number of time steps; with 1, the core is reset before every step.
    """

    agent: ActorCritic
    window: int

    def initial_state(self, batch_size: int) -> State:
        """No time steps yet."""
        return ()

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes; the state is the tuple of the last time steps."""
        present = map_leaves(torch.clone, steps)  # the environment may reuse its arrays
        recent = (*state, present)[-self.window :]
        unrolled = map_leaves(lambda *x: torch.stack(x), *recent)  # [<= window, B, ...]
        output, _ = self.agent.unroll(unrolled, self.agent.initial_state(len(steps.is_first)))
        return AgentOutput(*(x[-1] for x in output[:2])), recent


def variants(
    agent: ActorCritic, windows: Iterable[int], seed: int, least_lanes: int = LEAST_LANES
) -> dict[str, Policy]:
    """The agent and its ablated variants by name, as in the table; `least_lanes`: see `ShuffledMemory`."""
    policies: dict[str, Policy] = {
        "intact": agent,
        "reset at every step": WindowedMemory(agent, 1),
        "shuffled between lanes": ShuffledMemory(agent, seed, least_lanes),
    }
    return policies | {f"last {k} step{'s' if k > 1 else ''}": WindowedMemory(agent, k) for k in windows}


def ablate(
    agent: ActorCritic,
    env: str | EnvFactory,
    episodes: int,
    windows: Iterable[int],
    settings: PlaySettings,
    on_progress: OnProgress = ignore_progress,
    jobs: Jobs = 1,
) -> dict[str, Statistics]:
    """The statistics of each of the `variants` over the same episodes.

    Args: as in `episodes.play`; the numbers that `on_progress` is called with add up to episodes * variants.

    Raises:
      ValueError: for an agent without memory, a window below 1, or an environment with a single episode.
    """
    if not agent.initial_state(1):
        raise ValueError("the agent's core has no memory that could be removed")
    if not isinstance(windows, Iterable):
        raise ValueError(f"windows: expected numbers of steps, such as (1, 8), got {windows!r}")
    windows = [checked_int("windows", window, 1) for window in windows]
    with closing(make_env(env)) as one:
        asked, episodes, lanes = episodes, episodes_to_play(one, episodes), episodes_to_play(one, LEAST_LANES)
    if lanes < 2:
        raise ValueError(
            f"environment {name_of(env)!r}: expected at least 2 different episodes, which swap memories, got one; a "
            "text has more with --env-kwargs steps=N (and, if of words, vocabulary=RUN/vocabulary.json)"
        )
    policies = variants(agent, windows, settings.seed, lanes)
    if episodes < asked:
        on_progress(len(policies) * (asked - episodes))
    parts = {name: parts_of(policy, env, episodes, settings) for name, policy in policies.items()}
    every = [part for variant in parts.values() for part in variant]
    played = iter(play_all(every, env, jobs, settings.device, on_progress))
    sets = [concatenated([next(played) for _ in variant]) for variant in parts.values()]
    intact, *others = Statistics.of_each(sets)
    pairs = [interval_of_mean(each.returns - sets[0].returns) for each in sets[1:]]
    others = [replace(other, difference_ci95=pair) for other, pair in zip(others, pairs, strict=True)]
    return dict(zip(parts, (intact, *others), strict=True))
