"""What every recurrent core is: state in, state out, and one place for resets and checks."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rmc_agents.kernels.dispatch import Scan, choose
from rmc_agents.kernels.modes import no_autocast
from rmc_agents.types import State


class Core(nn.Module, ABC):
    """The memory between the encoder and the heads.

    The state is always passed in and handed out; nothing of it stays inside. Where `should_reset` is set, the
    lane's state is replaced by the initial state before its input is consumed, in `step` and `unroll` alike.

    A subclass gives `initial_leaves`, the name of its scan in `rmc_agents.kernels`, and its `weights`.

    Attributes:
      backend: which code runs the scan, one of `kernels.dispatch.Backend`; may be set at any time.
      precision: of the operands of the scan's matrix products, one of `kernels.dispatch.Precision`; likewise.
    """

    kernel: ClassVar[str]
    default_gain: ClassVar[float] = 1.0
    """What the heads of an agent multiply the outputs by, unless they are told otherwise."""

    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        check_sizes(input_size=input_size, output_size=output_size)
        self.input_size = input_size
        self.output_size = output_size
        self.backend: str = "auto"
        self.precision: str = "float32"

    @abstractmethod
    def initial_leaves(self) -> State:
        """The initial state of one lane: a NamedTuple of tensors `[1, ...]`; `()` if there is no memory."""

    @abstractmethod
    def weights(self) -> Any:
        """The parameters, as the kernels take them."""

    def chosen_scan(self) -> Scan:
        """The scan on `backend`. Raises ValueError if that cannot run this core where it is."""
        return choose(self.kernel, self.backend, self.precision, self.weights(), self.initial_leaves())

    def scan(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """`unroll` on arguments that have been checked; in the core's dtype, autocast or not."""
        inputs, state = self.cast(inputs), type(state)(*map(self.cast, state))
        with no_autocast(inputs.device.type):
            return self.chosen_scan().unroll(inputs, should_reset, state, self.initial_leaves(), self.weights())

    def cast(self, x: Tensor) -> Tensor:
        """x in the core's dtype: what comes from layers under autocast has another."""
        leaves = self.initial_leaves()
        return x.to(leaves[0].dtype) if leaves else x

    def record(self, steps: int, state: State) -> "Recording":
        """Begin an unroll whose inputs come one step at a time, and whose gradient is wanted afterwards.

        Args:
          steps: T, how many.
          state: before the first step.
        """
        self._check_state(state, batch_size=len(state[0]) if state else 0)
        return Recording(self, steps, state)

    def initial_state(self, batch_size: int) -> State:
        """The state before the first step, on the core's device: leaves `[B, ...]`, all lanes the same."""
        check_sizes(batch_size=batch_size)
        leaves = self.initial_leaves()
        return type(leaves)(*(leaf.repeat(batch_size, *[1] * (leaf.dim() - 1)) for leaf in leaves))

    def step(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all lanes.

        Args:
          inputs: `[B, D]`.
          should_reset: `[B]` bool: the lane's input is the first of an episode.
          state: from `initial_state` or from the step before.

        Returns:
          The output, `[B, output_size]`, and the state after the step.

        Raises:
          ValueError: for a shape or a dtype other than these.
        """
        self._check(inputs, should_reset, state, axes=("B",))
        outputs, state = self.scan(inputs.unsqueeze(0), should_reset.unsqueeze(0), state)
        return outputs.squeeze(0), state

    def unroll(self, inputs: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
        """T steps of all lanes, one after the other, as `step` would do them.

        Args:
          inputs: `[T, B, D]`.
          should_reset: `[T, B]` bool: the lane's input at that step is the first of an episode.
          state: before the first step.

        Returns:
          The outputs, `[T, B, output_size]`, and the state after the last step.

        Raises:
          ValueError: for a shape or a dtype other than these.
        """
        self._check(inputs, should_reset, state, axes=("T", "B"))
        return self.scan(inputs, should_reset, state)

    def _check(self, inputs: Tensor, should_reset: Tensor, state: State, axes: tuple[str, ...]) -> None:
        if inputs.dim() != len(axes) + 1 or inputs.shape[-1] != self.input_size or 0 in inputs.shape:
            axes_in_words = ", ".join([*axes, str(self.input_size)])
            raise ValueError(f"inputs: expected [{axes_in_words}], got {list(inputs.shape)}")
        if not isinstance(should_reset, Tensor) or should_reset.dtype != torch.bool:
            got = getattr(should_reset, "dtype", type(should_reset).__name__)
            raise ValueError(f"should_reset: expected a tensor of torch.bool, got {got}")
        if should_reset.shape != inputs.shape[:-1]:
            raise ValueError(
                f"should_reset: expected {list(inputs.shape[:-1])} [{', '.join(axes)}], as of inputs, "
                f"got {list(should_reset.shape)}"
            )
        self._check_state(state, batch_size=inputs.shape[-2])

    def _check_state(self, state: State, batch_size: int) -> None:
        initial = self.initial_leaves()
        if type(state) is not type(initial) or len(state) != len(initial):
            expected = type(initial).__name__ if initial else "()"
            got = repr(state) if state is None or state == () else type(state).__name__
            raise ValueError(f"state: expected {expected}, as initial_state gives it, got {got}")
        for name, leaf, one in zip(getattr(initial, "_fields", ()), state, initial, strict=True):
            shape = [batch_size, *one.shape[1:]]
            if list(leaf.shape) != shape:
                raise ValueError(f"state.{name}: expected {shape}, got {list(leaf.shape)}")


class Recording:
    """An unroll in the making: `step` T times, without gradient, then `replay` or `discard`.

    Where the backend keeps a tape, the steps are the forward pass of the replay, which costs nothing more; elsewhere
    the replay is an unroll. The core's weights must not change in between.

    Attributes:
      state: after the steps taken so far.
    """

    def __init__(self, core: Core, steps: int, state: State) -> None:
        self.core, self.state = core, state
        self._initial_state = state
        self._steps = steps
        self._should_reset: list[Tensor] = []
        take = core.chosen_scan().take_tape
        self._tape = None if take is None else take(steps, state, core.initial_leaves(), core.weights())

    @torch.no_grad()
    def step(self, inputs: Tensor, should_reset: Tensor) -> Tensor:
        """The next step; arguments and output as of `Core.step`."""
        self._should_reset.append(should_reset)
        if self._tape is None:
            output, self.state = self.core.step(inputs, should_reset, self.state)
            return output
        self.core._check(inputs, should_reset, self._initial_state, axes=("B",))
        recorded: Tensor = self._tape.step(self.core.cast(inputs), should_reset)
        if self._tape.length == self._steps:
            self.state = self._tape.final_state()
        return recorded

    def discard(self) -> None:
        """Instead of `replay`: the next recording takes the buffers."""
        if self._tape is not None:
            self._tape.put_back()
            self._tape = None

    def replay(self, inputs: Tensor) -> Tensor:
        """The outputs `[T, B, H]` of all T steps, with their gradient.

        Args:
          inputs: `[T, B, D]`, as they were, now with their own gradient.
        """
        tape, self._tape = self._tape, None  # it can be read once only
        if tape is not None:
            outputs: Tensor = tape.replay(self.core.cast(inputs))[0]
            return outputs
        return self.core.unroll(inputs, torch.stack(self._should_reset), self._initial_state)[0]


def check_sizes(**sizes: int) -> None:
    """Raises ValueError unless every size is a positive integer."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{name}: expected a positive integer, got {size!r}")


def truncated_normal(*shape: int, fan_in: int) -> nn.Parameter:
    """A new weight, drawn with standard deviation 1/√fan_in and cut at twice that."""
    std = fan_in**-0.5
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=std, a=-2 * std, b=2 * std))


def linear(in_features: int, out_features: int) -> nn.Linear:
    """A linear map with truncated normal weights of standard deviation 1/√in_features, and biases 0."""
    layer = nn.utils.skip_init(nn.Linear, in_features, out_features)
    layer.weight = truncated_normal(out_features, in_features, fan_in=in_features)
    nn.init.zeros_(layer.bias)
    return layer
