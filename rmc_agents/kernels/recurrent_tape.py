"""Shared by the fused scans of lstm, gru and rnn, whose output is h: all but the arithmetic of a step."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .pointwise import buffer, select_state, view
from .products import product, transposed_product
from .tape import StepwiseTape
from .weights import HiddenState, RecurrentWeights


class RecurrentTape(StepwiseTape):
    """A tape with these buffers, which a subclass makes; G is the number of rows of `RecurrentWeights`.

    Attributes:
      hidden: `[T, B, H]`, h before each step.
      sums: `[T, B, G]`, at first the inputs' part of what is activated, in the end its gradients.
    """

    hidden: Tensor
    sums: Tensor
    _hidden: np.ndarray  # the memory of `hidden`

    @staticmethod
    def sizes_of(initial_state: Any, weights: RecurrentWeights) -> tuple[int, ...]:
        return (weights.hidden.shape[1],)

    def prepare(self, initial_state: Any, weights: RecurrentWeights) -> None:
        super().prepare(initial_state, weights)
        self._initial = tuple(map(view, initial_state))

    def begin(self, state: Any) -> None:
        super().begin(state)
        self.outputs = buffer(self.steps, self.lanes, *self.sizes)
        self._outputs, self._state = view(self.outputs), view(state.hidden)

    def write_inputs(self, inputs: Tensor) -> None:
        """The input's part of the sums."""
        sums = self.sums.flatten(0, 1)
        torch.add(product(inputs.flatten(0, 1), self.factors.input.weight), self.weights.input.bias, out=sums)

    def sums_of_hidden(self, t: int) -> np.ndarray:
        """The part of step t's sums that comes from h, `[B, G]`; writes h, after the step's reset, to `hidden`."""
        before = self._outputs[t - 1] if t else self._state
        select_state(self.should_reset[t], self._initial[0], before, self._hidden[t])
        return view(product(self.hidden[t], self.factors.hidden))

    def final_state(self) -> Any:
        return HiddenState(self.outputs[-1].clone())

    def gradients(self, inputs: Tensor, d_hidden_sums: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Gradients of the inputs `[T, B, I]`, and of the input's weight and bias and of h's weight.

        Args:
          inputs: `[T, B, I]`.
          d_hidden_sums: `[T, B, G]`, the gradients of h's part of the sums; those of the inputs' part are in `sums`.
        """
        x, d_sums = inputs.flatten(0, 1), self.sums.flatten(0, 1)
        d_inputs = product(d_sums, self.factors.input.weight.t()).view_as(inputs)
        d_hidden_weight = transposed_product(self.hidden.flatten(0, 1), d_hidden_sums.flatten(0, 1), self.dtype).t()
        return d_inputs, (transposed_product(x, d_sums, self.dtype).t(), d_sums.sum(0), d_hidden_weight)
