"""Shared by the fused scans: a tape, written forward and read backward, and its autograd function."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from rmc_agents.types import Step, map_leaves

from .modes import check_backward, undisturbed
from .products import DTYPES, Precision

KEPT = 4  # spare tapes


class Tape(ABC):
    """Everything that an unroll's backward pass needs from its forward pass, in buffers for T steps of B lanes.

    Use: as in `unroll`. Buffers of hundreds of megabytes are slow to allocate, so a used tape is kept for the next
    unroll of the same sizes, in any thread. Only the outputs are new each time. The caller owns them, so `backward`
    must not read them.

    A subclass names its buffers in `__init__` and gives the arithmetic of one core.

    Attributes:
      outputs: `[T, B, H]`.
      factors: the weights as the matrix products take them, in `dtype`.
    """

    outputs: Tensor
    dtype: torch.dtype
    buffer_names: set[str]  # attributes that `__init__` set
    _spare: ClassVar[dict[tuple[Any, ...], "Tape"]] = {}
    _lock: ClassVar[Lock] = Lock()  # of `_spare`

    def __init__(self, steps: int, lanes: int, sizes: tuple[int, ...]) -> None:
        self.steps, self.lanes, self.sizes = steps, lanes, sizes
        self.should_reset = np.empty((steps, lanes), np.bool_)

    @classmethod
    def take(cls, steps: int, state: Any, initial_state: Any, weights: Any, precision: Precision = "float32") -> Self:
        """A tape at step 0, before which the state is `state` (leaves `[B, ...]`; initial_state's are `[1, ...]`).

        precision is that of the operands of matrix products; all else is float32.
        """
        lanes, sizes = len(state[0]), cls.sizes_of(initial_state, weights)
        with Tape._lock:
            tape: Any = Tape._spare.pop((cls, steps, lanes, sizes), None)
        with undisturbed():
            if tape is None:
                tape = cls(steps, lanes, sizes)
                tape.buffer_names = {*vars(tape), "buffer_names"}
            tape.dtype = DTYPES[precision]
            tape.prepare(initial_state, weights)
            tape.begin(state)
        return tape

    def put_back(self) -> None:
        """Return the buffers, and nothing else, to the pool: it must not keep a model alive."""
        self.__dict__ = {name: value for name, value in vars(self).items() if name in self.buffer_names}
        with Tape._lock:
            while len(Tape._spare) >= KEPT:
                Tape._spare.pop(next(iter(Tape._spare)))
            Tape._spare[(type(self), self.steps, self.lanes, self.sizes)] = self

    @staticmethod
    @abstractmethod
    def sizes_of(initial_state: Any, weights: Any) -> tuple[int, ...]:
        """The sizes, besides T and B, that the buffers' shapes depend on."""

    def prepare(self, initial_state: Any, weights: Any) -> None:
        """Prepare what depends on these alone."""
        self.initial_state, self.weights = initial_state, weights
        self.factors = weights if self.dtype == torch.float32 else _rounded(weights, self.dtype)

    def begin(self, state: Any) -> None:
        """Go to step 0, before which the state is `state`; a subclass makes new `outputs`."""
        self.state = state

    @abstractmethod
    def write(self, inputs: Tensor) -> None:
        """Run all T steps, from inputs `[T, B, I]` and `self.should_reset` to `self.outputs`."""

    @abstractmethod
    def final_state(self) -> Any:
        """The state after the last step, in new tensors."""

    @abstractmethod
    def backward(self, inputs: Tensor, d_outputs: Tensor, d_final: Any) -> tuple[Tensor, Any, Any, Any]:
        """Gradients of inputs, state, initial state and weights; weights' as tensors in the order of `tensors`.

        Overwrites buffers, so it runs once per forward pass. d_outputs and d_final are contiguous and must not change.
        """


@contextmanager
def stepping(
    kind: type[Tape], state: Any, initial_state: Any, weights: Any, precision: Precision = "float32"
) -> Iterator[Step]:
    """Single steps of a scan with the current weights. What depends on the weights alone is computed once.

    In this context the weights must not change, and there are no gradients.

    Args:
      kind: the scan's tape.
      state: any state with the number of lanes of the steps.
      initial_state, weights, precision: as of `Tape.take`.
    """
    tape = kind.take(1, state, initial_state, weights, precision)

    def step(inputs: Tensor, should_reset: Tensor, state: Any) -> tuple[Tensor, Any]:
        if len(inputs) != tape.lanes:  # a single lane would be broadcast
            raise ValueError(f"stepping: expected {tape.lanes} lanes, as its state has, got {len(inputs)}")
        with undisturbed():
            tape.begin(map_leaves(Tensor.float, state))
            tape.should_reset[0] = should_reset.numpy()
            tape.write(inputs.float().unsqueeze(0))
            return tape.outputs[0], tape.final_state()

    try:
        yield step
    finally:
        tape.put_back()


class StepwiseTape(Tape):
    """The tape of a scan that must run step by step, because each step multiplies the state by a matrix.

    `begin` sets two arrays, of the memory of `outputs` and of the state before step 0.
    """

    _outputs: np.ndarray
    _state: np.ndarray

    def write(self, inputs: Tensor) -> None:
        self.write_inputs(inputs)
        for t in range(self.steps):
            self.forward(t)

    @abstractmethod
    def write_inputs(self, inputs: Tensor) -> None:
        """Everything that depends only on the inputs `[T, B, I]`."""

    @abstractmethod
    def forward(self, t: int) -> None:
        """Step t, from `self.should_reset[t]` and the state after step t - 1, to `self.outputs[t]`."""


class _Attached(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.tape = tape
        weights = leaves[len(tape.state) + len(tape.initial_state) :]
        ctx.save_for_backward(inputs, *weights)  # detects in-place changes before the backward pass
        return tape.outputs.detach(), *tape.final_state()

    @staticmethod
    def backward(ctx: Any, d_outputs: Tensor, *d_final: Tensor) -> tuple[Tensor | None, ...]:
        check_backward(d_outputs)
        inputs, *_ = ctx.saved_tensors
        if ctx.tape is None:
            raise RuntimeError(
                "the fused backend goes backward once for every unroll: set the core's attribute backend = 'reference'"
            )
        with undisturbed():
            gradients = ctx.tape.backward(inputs, d_outputs.contiguous(), tuple(d.contiguous() for d in d_final))
        ctx.tape.put_back()
        ctx.tape = None
        d_inputs, d_state, d_initial, d_weights = gradients
        return None, d_inputs, *d_state, *d_initial, *d_weights


def unroll(
    kind: type[Tape],
    inputs: Tensor,
    should_reset: Tensor,
    state: Any,
    initial_state: Any,
    weights: Any,
    precision: Precision = "float32",
) -> tuple[Tensor, Any]:
    """Run the scan of a core on its tape; arguments as in `kernels.reference`, precision as in `Tape.take`."""
    tape = kind.take(len(inputs), state, initial_state, weights, precision)
    with undisturbed():
        tape.should_reset[...] = should_reset.numpy()
        tape.write(inputs)
    leaves = [*state, *initial_state, *tensors(weights)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in (inputs, *leaves)):
        outputs, *final = _Attached.apply(tape, inputs, *leaves)
        return outputs, map_leaves(lambda _, leaf: leaf, state, final)
    outputs, final = tape.outputs, tape.final_state()
    tape.put_back()
    return outputs, final


def tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors of nested tuples, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for branch in tree:
            yield from tensors(branch)


def _rounded(tree: Any, dtype: torch.dtype) -> Any:
    """Nested tuples, with all matrices in them converted to dtype."""
    if isinstance(tree, Tensor):
        return tree.to(dtype) if tree.dim() == 2 else tree
    if isinstance(tree, tuple):
        branches = [_rounded(branch, dtype) for branch in tree]
        return type(tree)(*branches) if hasattr(tree, "_fields") else tuple(branches)
    return tree
