"""A core in the form sb3-contrib needs: with the attributes and the state of an `nn.LSTM`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.cores import Core
from rmc_agents.types import State, map_leaves

PackedState = tuple[Tensor, Tensor]
"""A core's state as a pair, each `[1, B, hidden_size]`, as `nn.LSTM` has h and c.

It is the difference to the initial state, flattened and cut in half: sb3-contrib stores pairs and creates new states as
zeros. For an LSTM, the pair is h and c.
"""


class PackedCore(nn.Module):
    """A core with packed states, and sequences in sb3-contrib's order.

    Args:
      core: the core.

    Attributes:
      input_size, num_layers, hidden_size: those of an `nn.LSTM` large enough for the state. A state with an odd number
        of elements is padded by a zero; a core without memory has hidden_size 0.

    Raises:
      ValueError: if the core's initial state is not finite.
    """

    num_layers = 1

    def __init__(self, core: Core) -> None:
        super().__init__()
        self.core = core
        self.input_size = core.input_size
        initial = [_real(leaf) for leaf in core.initial_state(1)]
        if not all(leaf.isfinite().all() for leaf in initial):
            raise ValueError(
                f"{core.class_name()}.initial_leaves: sb3-contrib's recurrent PPO takes finite numbers, got NaN or "
                "infinity, which --algo ppo takes"
            )
        self._sizes = [leaf.numel() for leaf in initial]
        self.hidden_size = (sum(self._sizes) + 1) // 2

    def forward(self, inputs: Tensor, state: PackedState, episode_starts: Tensor) -> tuple[Tensor, PackedState]:
        """All steps of B sequences in one scan.

        Args:
          inputs: the sequences of length T, concatenated, `[B * T, input_size]`.
          state: before the first steps.
          episode_starts: `[B * T]`, 1 where the core starts from its initial state, else 0.

        Returns:
          The outputs, `[B * T, output_size]`, and the state after the last steps. Padding at the end of a sequence, as
          in RecurrentPPO's minibatches, does not change the outputs before it.

        Raises:
          ValueError: for a state of another core.
        """
        unpacked, lanes = self.unpack(state), state[0].shape[1]
        by_time = inputs.unflatten(0, (lanes, -1)).transpose(0, 1).contiguous()  # [T, B, I]
        should_reset = episode_starts.reshape(lanes, -1).t() > 0.5  # [T, B]
        outputs, unpacked = self.core.unroll(by_time, should_reset, unpacked)
        return outputs.transpose(0, 1).flatten(0, 1), self.pack(unpacked) if self._sizes else state

    def pack(self, state: State) -> PackedState:
        """A core's state as a pair."""
        initial: Any = self.core.initial_state(1)
        rows = [
            (_real(leaf) - _real(start)).reshape(len(leaf), size)
            for leaf, start, size in zip(state, initial, self._sizes, strict=True)
        ]
        row = functional.pad(torch.cat(rows, dim=-1), (0, 2 * self.hidden_size - sum(self._sizes)))
        first, second = row.unsqueeze(0).chunk(2, dim=-1)
        return first, second

    def unpack(self, state: PackedState) -> State:
        """The core's state from a pair. Raises ValueError for the state of another core."""
        shapes = [list(half.shape) for half in state]
        if any(shape[0] != self.num_layers or shape[2:] != [self.hidden_size] for shape in shapes):
            expected = f"[{self.num_layers}, lanes, {self.hidden_size}]"
            raise ValueError(
                f"state: expected two arrays {expected}, as predict gives it, got {shapes[0]}, {shapes[1]}"
            )
        initial: Any = self.core.initial_state(1)
        parts = torch.cat(state, dim=-1).squeeze(0)[:, : sum(self._sizes)].split(self._sizes, dim=-1)
        return map_leaves(_moved, initial, parts)


def _moved(initial: Tensor, difference: Tensor) -> Tensor:
    """An initial leaf `[1, ...]` plus the flattened difference `[B, n]`, in the leaf's dtype."""
    start = _real(initial)
    leaf = start + difference.reshape(len(difference), *start.shape[1:])
    if initial.is_complex():
        return torch.view_as_complex(leaf)
    return leaf if initial.is_floating_point() else leaf.round().to(initial.dtype)


def _real(leaf: Tensor) -> Tensor:
    """A leaf as real numbers; of complex ones both parts, `[..., 2]`."""
    return torch.view_as_real(leaf) if leaf.is_complex() else leaf.float()
