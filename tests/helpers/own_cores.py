"""Cores as users write them: with two methods, with all, and modules that are not a `Core`."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rmc_agents.cores import Core
from rmc_agents.types import State


class Trace(NamedTuple):
    trace: Tensor  # [B, D]


class Decay(Core):
    def initial_leaves(self) -> Trace:
        return Trace(torch.zeros(1, self.output_size))

    def cell(self, x: Tensor, state: Trace) -> tuple[Tensor, Trace]:
        trace = 0.9 * state.trace + 0.1 * x
        return trace, Trace(trace)


class Odd(Core):
    """Leaves of all shapes and dtypes in a plain tuple, a learned initial state, attributes with obvious names."""

    def __init__(self, input_size: int, *, width: int = 2) -> None:
        super().__init__(input_size, output_size=width)
        self.gates = nn.Linear(input_size, width)
        self.attention = nn.Linear(width, width)
        self.first = nn.Parameter(torch.randn(1, 2, width, 3))

    def initial_leaves(self) -> State:
        return torch.zeros(1, dtype=torch.int64), self.first, torch.full((1, 5), 0.5)

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        count, cube, row = state
        cube = torch.tanh(cube + self.gates(x)[:, None, :, None])
        output = self.attention(cube.sum((1, 3))) + count[:, None] + row.sum(1, keepdim=True)
        return output, (count + 1, cube, 0.5 * row)

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: State) -> dict[str, Tensor]:
        return {"open": torch.sigmoid(self.gates(inputs))}

    def attention_weights(self, inputs: Tensor, should_reset: Tensor, state: State) -> Tensor:
        return torch.softmax(state[2][:, None, None, None, :3] + torch.zeros(1, 1, 1, 2, 3), -1)


class Module(nn.Module):
    """Not a `Core`: an LSTM's cell with the three methods."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.lstm = nn.LSTMCell(input_size, 5)

    def initial_state(self, batch_size: int) -> State:
        return torch.zeros(batch_size, 5), torch.zeros(batch_size, 5)

    def step(self, x: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        keep = (~should_reset)[:, None].float()
        state = self.lstm(x, tuple(leaf * keep for leaf in state))
        return state[0], state

    def unroll(self, x: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = []
        for x_t, should_reset_t in zip(x, should_reset, strict=True):
            output, state = self.step(x_t, should_reset_t, state)
            outputs.append(output)
        return torch.stack(outputs), state


class InPlace(nn.Module):
    """Not a `Core`: a sum of its inputs, changed in place."""

    def __init__(self, input_size: int) -> None:
        super().__init__()
        self.width = input_size

    def initial_state(self, batch_size: int) -> State:
        return (torch.zeros(batch_size, self.width),)

    def step(self, x: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        state[0][should_reset] = 0.0
        state[0].add_(x)
        return state[0].clone(), state

    def unroll(self, x: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        outputs = [self.step(*each, state)[0] for each in zip(x, should_reset, strict=True)]
        return torch.stack(outputs), state


class Counter(Core):
    """Counts the steps, by a whole number for each lane."""

    def initial_leaves(self) -> State:
        return (torch.zeros(1, dtype=torch.int64),)

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return x + state[0][:, None], (state[0] + 1,)
