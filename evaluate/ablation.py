"""What an agent's memory buys: the same episodes with the memory intact, and with it taken away in several ways."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rmc_agents.agent import ActorCritic
from rmc_agents.evaluate.episodes import MOST_LANES
from rmc_agents.types import AgentOutput, Policy, State, TimeStep, map_leaves


@dataclass(frozen=True)
class ResetMemory:
    """Plays as the agent, whose core begins every step from its initial state: it knows the present time step alone."""

    agent: ActorCritic

    def initial_state(self, batch_size: int) -> State:
        """The agent's."""
        return self.agent.initial_state(batch_size)

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes, whatever the state. What the encoder reads is left as it is."""
        return self.agent.step(steps, self.initial_state(len(steps.is_first)))


@dataclass
class ShuffledMemory:
    """Plays as the agent, whose lanes all swap their memories before every step: states as usual, of other episodes.

    Lanes whose own episode has ended go on in the next ones, and are as good to take a memory from.

    Args:
      agent: who plays.
      seed: of the permutations.
    """

    agent: ActorCritic
    seed: int
    _generator: torch.Generator = field(init=False, repr=False)

    def initial_state(self, batch_size: int) -> State:
        """The agent's; the permutations start again.

        Raises:
          ValueError: for one lane, which has none to swap with.
        """
        if batch_size < 2:
            raise ValueError(f"shuffling memories between lanes: expected at least 2 lanes, got {batch_size}")
        self._generator = torch.Generator().manual_seed(self.seed)
        return self.agent.initial_state(batch_size)

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes, each from another's state."""
        taken_from = cyclic_permutation(len(steps.is_first), self._generator).to(steps.is_first.device)
        return self.agent.step(steps, map_leaves(lambda leaf: leaf[taken_from], state))


def cyclic_permutation(size: int, generator: torch.Generator) -> Tensor:
    """A random permutation `[size]` int64 of one cycle: from 2 elements on, every one of them moves."""
    order = torch.randperm(size, generator=generator)
    permutation = torch.empty_like(order)
    permutation[order] = order.roll(1)
    return permutation


@dataclass(frozen=True)
class WindowedMemory:
    """Plays as the agent, whose core knows the last time steps alone, the present one included.

    At every step the core consumes all of them from its initial state, which takes `window` times as long as playing.
    Where an episode begins among them the core is reset as usual, so nothing comes from the episode before.

    Args:
      agent: who plays.
      window: how many time steps; 1 is `ResetMemory`.
    """

    agent: ActorCritic
    window: int

    def initial_state(self, batch_size: int) -> State:
        """No time steps yet."""
        return ()

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """One step of all lanes; the state is the tuple of the last time steps."""
        present = TimeStep(*(x.clone() for x in steps))  # an environment may write into the same array again
        recent = (*state, present)[-self.window :]
        unrolled = TimeStep(*(torch.stack(fields) for fields in zip(*recent, strict=True)))  # [<= window, B, ...]
        output, _ = self.agent.unroll(unrolled, self.agent.initial_state(len(steps.is_first)))
        return AgentOutput(*(x[-1] for x in output)), recent


def variants(agent: ActorCritic, windows: Iterable[int], seed: int) -> dict[str, Policy]:
    """The agent and what is left of it, by name, as the table shows them."""
    policies: dict[str, Policy] = {
        "intact": agent,
        "reset at every step": ResetMemory(agent),
        "shuffled between lanes": ShuffledMemory(agent, seed),
    }
    return policies | {f"last {k} step{'s' if k > 1 else ''}": WindowedMemory(agent, k) for k in windows}


def check(agent: ActorCritic, windows: Iterable[int], episodes: int) -> None:
    """Find out before anything is played whether there is something to take away.

    Raises:
      ValueError: for an agent without memory, a window below 1, or a lane that is alone.
    """
    if not agent.initial_state(1):
        raise ValueError("--ablate-memory: this agent's core has no memory; evaluate it without --ablate-memory")
    for window in windows:
        if window < 1:
            raise ValueError(f"--windows: expected at least 1 step, got {window}")
    if episodes % MOST_LANES == 1:
        raise ValueError(
            f"--episodes: {MOST_LANES} play side by side and swap memories, and of {episodes} one is left alone: "
            "take one more"
        )
