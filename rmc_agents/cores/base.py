"""The base class of recurrent cores: explicit state, resets and argument checks in one place."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from rmc_agents.kernels import reference
from rmc_agents.kernels.dispatch import check_names
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.kernels.operations import Product
from rmc_agents.types import State, Step, map_leaves

from .checks import (
    check_devices,
    check_inputs,
    check_leaves,
    check_resets,
    check_result,
    check_sizes,
    check_state,
    checked_lengths,
)


class Core(nn.Module, ABC):
    """The memory between the encoder and the heads.

    The state is always passed in and out and never stored. Where `should_reset` is set, the lane's state
    is replaced by the initial state before its input is consumed, in `step`, `unroll` and `forward` alike.

    A custom core defines two methods, `initial_leaves` and `cell`:

        class Decay(Core):
            def initial_leaves(self):
                return (torch.zeros(1, self.output_size),)

            def cell(self, x, state):
                trace = 0.9 * state[0] + 0.1 * x
                return trace, (trace,)

    It may override `gate_values` and `attention_weights`, which the diagnostics and the videos show, and
    `matrix_products`, which `rmc-bench` counts. It computes in the dtype of its parameters, also under autocast.

    Args:
      input_size: width of the inputs.
      output_size: width of the outputs; None: input_size.

    Attributes:
      default_gain: an agent's heads multiply the output by this unless the settings change it.
      backend: the implementation of the scan, one of `kernels.dispatch.Backend`; may be set at any time.
      precision: of the operands in the scan's matrix products, one of `kernels.products.Precision`; may be set at any
        time.

    Raises:
      ValueError: for a size that is not a positive integer.
    """

    default_gain: ClassVar[float] = 1.0
    _like: Tensor  # has the core's device and dtype, even if there are no parameters

    def __init__(self, input_size: int, output_size: int | None = None) -> None:
        super().__init__()
        output_size = input_size if output_size is None else output_size
        check_sizes(input_size=input_size, output_size=output_size)
        self.input_size = input_size
        self.output_size = output_size
        self.backend: str = "auto"
        self.precision: str = "float32"
        self.register_buffer("_like", torch.empty(0), persistent=False)

    @abstractmethod
    def initial_leaves(self) -> State:
        """The initial state of one lane: a named or plain tuple of tensors `[1, ...]`; `()` without memory."""

    @abstractmethod
    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all lanes, after the reset.

        Args:
          x: `[B, D]`.
          state: leaves `[B, ...]`.

        Returns:
          The output, `[B, output_size]`, and the next state.
        """

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step, on the core's device: leaves `[B, ...]`, equal for all lanes."""
        check_sizes(batch_size=batch_size)
        return map_leaves(lambda leaf: leaf.repeat(batch_size, *[1] * (leaf.dim() - 1)), self._initial())

    def step(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all lanes.

        Args:
          inputs: `[B, D]`.
          should_reset: `[B]` bool: reset the lane's state first, because its input starts an episode.
          state: from `initial_state` or the previous step.

        Returns:
          The output, `[B, output_size]`, and the state after the step.

        Raises:
          ValueError: for another shape, dtype or device than these.
        """
        self._check(inputs, should_reset, state, axes=("B",))
        outputs, state = self.scan(inputs.unsqueeze(0), should_reset.unsqueeze(0), state)
        return outputs.squeeze(0), state

    @contextmanager
    def stepping(self, state: State) -> Iterator[Step]:
        """A faster `step` for acting: in this context the weights must not change, and there are no gradients.

        A core may compute once what depends on the weights alone, and skip checks.

        Args:
          state: any state with the number of lanes of the steps.
        """
        yield self.step

    def unroll(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """T steps of all lanes, equal to T calls of `step`.

        Args:
          inputs: `[T, B, D]`.
          should_reset: `[T, B]` bool: reset the lane's state before this step, because its input starts an episode.
          state: before the first step.

        Returns:
          The outputs, `[T, B, output_size]`, and the state after the last step.

        Raises:
          ValueError: for another shape, dtype or device than these.
        """
        self._check(inputs, should_reset, state, axes=("T", "B"))
        return self.scan(inputs, should_reset, state)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        should_reset: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        batch_first: bool = False,
    ) -> tuple[Tensor, State]:
        """`unroll` with defaults: a drop-in replacement for `torch.nn.LSTM`.

        Args:
          x: the inputs, `[T, B, D]`, or `[B, T, D]` with batch_first.
          state: before the first step; None: the initial state.
          should_reset: `[T, B]` bool, or `[B, T]` with batch_first; None: no resets.
          lengths: `[B]`, the length of each sequence, 1 to T; the rest is padding. None: no padding.
          batch_first: the batch is the first axis of x, should_reset and outputs; it always is in states.

        Returns:
          The outputs `[T, B, output_size]`, or `[B, T, output_size]` with batch_first, 0 at padding, and the state
          after each sequence's last step.

        Raises:
          ValueError: for a wrong shape, dtype or length.
        """
        if not isinstance(x, Tensor) or x.dim() != 3:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            axes = "B, T" if batch_first else "T, B"
            raise ValueError(f"x: expected a tensor [{axes}, {self.input_size}], with lengths if padded, got {got}")
        if batch_first:
            if should_reset is not None:
                check_resets(x, should_reset, ("B", "T"))
                should_reset = should_reset.transpose(0, 1)
            x = x.transpose(0, 1)
        if should_reset is None:
            should_reset = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        state = self.initial_state(x.shape[1]) if state is None else self._typed(state)
        if lengths is None:
            outputs, state = self.unroll(x, should_reset, state)
        else:
            outputs, state = self._unroll_padded(x, should_reset, state, lengths)
        return (outputs.transpose(0, 1) if batch_first else outputs), state

    def _after_reset(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """Check a step's arguments; returns the inputs and the state after the reset."""
        self._check(inputs, should_reset, state, axes=("B",))
        state = reference.reset(should_reset, self._initial(), map_leaves(self.cast, state))
        return self.cast(inputs), state

    def class_name(self) -> str:
        """The class's name, for messages; of a wrapped module, the module's."""
        return type(self).__name__

    def chosen_backend(self) -> str:
        """The backend that runs the scan. Raises ValueError if `backend` or `precision` is not supported."""
        check_names(self.backend, self.precision)
        if self.backend not in ("auto", "reference") or self.precision != "float32":
            raise ValueError(
                f"{self.class_name()} has no kernels: expected backend auto or reference and precision float32, got "
                f"{self.backend} and {self.precision}"
            )
        return "reference"

    def scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """`unroll` without argument checks; here a loop over `cell`."""
        self.chosen_backend()
        inputs, state, initial = self.cast(inputs), map_leaves(self.cast, state), self._initial()
        shape = (inputs.shape[1], self.output_size)

        def cell(x: list[Tensor], before: State) -> tuple[Tensor, State]:
            return check_result(self, "cell", self.cell(x[0], before), shape, initial)

        with no_autocast(inputs.device.type):
            return reference.scan(cell, (inputs,), should_reset, state, initial)

    def cast(self, x: Tensor) -> Tensor:
        """Cast x to the core's dtype, because layers under autocast return another one. Integers are unchanged."""
        dtype = self._like.dtype
        return x.to(dtype) if x.is_floating_point() else x.to(dtype.to_complex()) if x.is_complex() else x

    def gate_values(self, inputs: Tensor, should_reset: Tensor, state: State) -> dict[str, Tensor]:
        """The gates of one step by name, `[B, ...]` between 0 and 1; {} without gates. Arguments as in `step`."""
        return {}

    def attention_weights(self, inputs: Tensor, should_reset: Tensor, state: State) -> Tensor | None:
        """The attention weights of one step; None for a core without attention. Arguments as in `step`.

        Returns:
          Softmax weights. Of a memory of N slots `[B, blocks, heads, N, N+1]`: from each slot (axis -2) to the slots
          and, last, the input. Of a window `[B, layers, heads, 1, M+1]`: from a step to the last M and, last, itself.
        """
        return None

    def matrix_products(self, steps: int, lanes: int) -> list[Product] | None:
        """The matrix products of an unroll and its backward pass, for `rmc-bench`; None: not reported."""
        return None

    def extra_repr(self) -> str:
        return f"input_size={self.input_size}, output_size={self.output_size}"

    def __setattr__(self, name: str, value: Any) -> None:
        """As in torch; raises ValueError if it would shadow a method, or `backend` or `precision` is not a name."""
        if name in ("backend", "precision") and not isinstance(value, str):
            raise ValueError(
                f"{type(self).__name__}.{name} selects the implementation: expected a str, or another name for this "
                "attribute"
            )
        hides = isinstance(value, nn.Module | Tensor) or not callable(value)
        if hides and callable(getattr(type(self), name, None)):
            raise ValueError(f"{type(self).__name__}.{name} is a method: expected another name for this attribute")
        super().__setattr__(name, value)

    def _initial(self) -> State:
        """`initial_leaves`, on the core's device and in its dtype."""
        leaves = check_leaves(self, self.initial_leaves())
        return map_leaves(lambda leaf: self.cast(leaf.to(self._like.device)), leaves)

    def _typed(self, state: State) -> State:
        """Convert a plain tuple or list back to the core's state type."""
        initial = self.initial_leaves()
        if type(state) not in (tuple, list) or len(state) != len(initial):
            return state
        return map_leaves(lambda _, leaf: leaf, initial, state)

    def _unroll_padded(
        self, inputs: Tensor, should_reset: Tensor, state: State, lengths: Tensor | Sequence[int]
    ) -> tuple[Tensor, State]:
        """Unroll in segments between sequence ends, each with the sequences that have not ended yet."""
        if torch.jit.is_tracing():
            raise ValueError("lengths: a trace would hard-code them; trace without lengths")
        self._check(inputs, should_reset, state, axes=("T", "B"))
        steps, batch_size = inputs.shape[:2]
        ends = checked_lengths(lengths, steps, batch_size).to(inputs.device)
        state = map_leaves(self.cast, state)
        pieces = []
        for start, stop in pairwise([0, *ends.unique().tolist()]):
            rows = (ends > start).nonzero().squeeze(1)
            part = map_leaves(lambda leaf, rows=rows: leaf[rows], state)
            outputs, part = self.unroll(inputs[start:stop, rows], should_reset[start:stop, rows], part)
            pieces.append(outputs.new_zeros(stop - start, batch_size, self.output_size).index_copy(1, rows, outputs))
            state = map_leaves(lambda leaf, new, rows=rows: leaf.index_copy(0, rows, new), state, part)
        outputs = torch.cat(pieces)
        return functional.pad(outputs, (0, 0, 0, 0, 0, steps - len(outputs))), state

    def _check(self, inputs: Tensor, should_reset: Tensor, state: State, axes: tuple[str, ...]) -> None:
        check_inputs(inputs, self.input_size, axes)
        check_resets(inputs, should_reset, axes)
        check_state(state, self.initial_leaves(), inputs.shape[-2])
        check_devices(self._like.device, inputs, should_reset, state)


def truncated_normal(*shape: int, fan_in: int) -> nn.Parameter:
    """A new weight from a normal distribution with standard deviation 1/√fan_in, truncated at twice that."""
    std = fan_in**-0.5
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std, a=-2 * std, b=2 * std))


def linear(in_features: int, out_features: int) -> nn.Linear:
    """A linear layer with truncated normal weights of standard deviation 1/√in_features, and zero biases."""
    layer = nn.Linear(in_features, out_features, device="meta")  # meta: skips the default initialisation
    layer.weight = truncated_normal(out_features, in_features, fan_in=in_features)
    layer.bias = nn.Parameter(torch.zeros(out_features))
    return layer
