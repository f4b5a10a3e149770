"""CUDA graphs for A2C: one step of acting, the gradients and the optimizer's step are captured once, then replayed.

A small network keeps a GPU waiting for the CPU, which launches its kernels one by one; a graph launches them all at
once. A replay runs the captured kernels on the memory that they were captured with, and none of the Python around
them. So whatever goes in or comes out lies in tensors that stay where they are: the time steps, the core's state, the
rollout, the gradients, the optimizer's state and its learning rate.

What is computed is what runs without graphs: the same rollouts from the same generator, the same losses.
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from rmc_agents.agent import ActorCritic
from rmc_agents.collect import Collector, Lanes, draw
from rmc_agents.config import TrainConfig
from rmc_agents.types import AgentOutput, Rollout, State, TimeStep, map_leaves

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

WARM_UP = 3  # calls before a capture: they compile kernels, and allocate workspaces and the optimizer's state
ALIGNMENT = 16  # bytes: the widest load of a kernel


class Graphed(Generic[Parameters, Result]):
    """A function on the GPU that is called `WARM_UP` times as it is, captured at the next call, then replayed.

    Every call does the function's work exactly once. The arguments must be the same tensors each time, and so must be
    all others that the function reads or writes; what it returned is overwritten by the next call.

    Args:
      function: to be captured; it must not wait for the GPU.
      generator: on the GPU; what the function draws from, if anything.
    """

    def __init__(self, function: Callable[Parameters, Result], generator: torch.Generator | None = None) -> None:
        self._function, self._generator = function, generator
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Result

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if self._graph is None:
            if self._calls < WARM_UP:
                self._calls += 1
                return self._warm_up(*args, **kwargs)
            self._graph = self._capture(*args, **kwargs)
        self._graph.replay()
        return self._result

    def _warm_up(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Calls the function on the stream of the capture, where its workspaces belong."""
        here, side = torch.cuda.current_stream(), _side_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This instance was constructed with capturable")  # Adam, not yet captured
            result = self._function(*args, **kwargs)
        here.wait_stream(side)
        return result

    def _capture(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        if self._generator is not None:
            graph.register_generator_state(self._generator)
        with torch.cuda.graph(graph, stream=_side_stream()):
            self._result = self._function(*args, **kwargs)
        return graph


def graphed(
    function: Callable[Parameters, Result], generator: torch.Generator | None = None
) -> Callable[Parameters, Result]:
    """The one place where a function becomes a graph; see `Graphed`."""
    return Graphed(function, generator)


@functools.cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def check_device(device: torch.device) -> None:
    """Raises ValueError where there are no graphs."""
    if device.type != "cuda":
        raise ValueError(f"cuda_graphs: expected device cuda, got {device.type}; leave out --cuda-graphs")


def check_settings(config: TrainConfig) -> None:
    """Raises ValueError for an algorithm or an optimizer that cannot be captured."""
    if (config.algo, config.optimizer) != ("a2c", "adam"):
        raise ValueError(
            f"cuda_graphs: expected algo a2c with optimizer adam, got {config.algo} with {config.optimizer}; add "
            "--algo a2c --optimizer adam, or leave out --cuda-graphs"
        )


class StagedLanes(Lanes):
    """`Lanes` whose time step is one row of bytes: written on the host, and brought to the device by one copy.

    Attributes:
      row: the bytes on the device; `steps` are views of them, which the next step overwrites.
    """

    row: Tensor  # [bytes] uint8
    _host_row: Tensor | None = None  # [bytes] uint8, pinned

    def _to_steps(self, obs: np.ndarray, *fields: np.ndarray) -> TimeStep:
        if self._host_row is None:
            self._allocate(super()._to_steps(obs, *fields))
        assert self._host_row is not None
        wait(self.device)  # the copy before may still be reading the host's row
        for place, field in zip(self._host_fields, (obs, *fields), strict=True):
            place[...] = field
        self.row.copy_(self._host_row, non_blocking=True)
        return self._fields

    def _allocate(self, like: TimeStep) -> None:
        self._host_row = empty_on_host(row_size(like), torch.uint8, self.device)
        self._host_fields = [field.numpy() for field in views(self._host_row, like)]
        self.row = torch.empty(row_size(like), dtype=torch.uint8, device=self.device)
        self._fields = views(self.row, like)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        _copy(self._fields, self.steps)
        self.steps = self._fields


class GraphedCollector(Collector):
    """A `Collector` whose step of acting is a graph; its state and its rollout are always the same tensors.

    Args:
      lanes: `StagedLanes`; else as `Collector`.
    """

    lanes: StagedLanes

    def __init__(self, agent: ActorCritic, lanes: Lanes, unroll_length: int, generator: torch.Generator) -> None:
        assert isinstance(lanes, StagedLanes)
        super().__init__(agent, lanes, unroll_length, generator)
        self._rows = lanes.row.new_empty(unroll_length + 1, len(lanes.row))  # one time step after the other
        self._steps = views(self._rows, lanes.steps)
        initial_state = map_leaves(torch.clone, self.state)
        self.rollout = Rollout(self._steps, self._policy_logits, self._value, initial_state)
        self._host_action = empty_on_host(lanes.num_lanes, torch.int64, lanes.device)
        self._act = graphed(self._act_as_it_is, generator)

    def collect(self) -> Rollout:
        """As `Collector.collect`, but into the same rollout, its initial state included, each time."""
        _copy(self.rollout.initial_state, self.state)
        self._record(0)
        for t in range(self.unroll_length):
            action, output = self._act()
            self._host_action.copy_(action, non_blocking=True)
            self._policy_logits[t], self._value[t] = output
            wait(self.lanes.device)
            self.lanes.step(self._host_action)
            self._record(t + 1)
        return self.rollout

    @torch.no_grad()
    def _act_as_it_is(self) -> tuple[Tensor, AgentOutput]:
        """Actions `[B]` and what the agent says, at the current time step; brings the state on.

        Where logits are not finite the actions mean nothing, and the update says so: here nothing waits to look.
        """
        output, state = self.agent.step(self.lanes.steps, self.state)
        _copy(self.state, state)
        cumulative = output.policy_logits.softmax(dim=-1).cumsum(dim=-1)
        return draw(cumulative, self.generator), output

    def _record(self, t: int) -> None:
        self._rows[t] = self.lanes.row

    def set_state(self, state: dict[str, Any]) -> None:
        """As `Collector.set_state`."""
        kept = self.state
        super().set_state(state)
        _copy(kept, self.state)
        self.state = kept


def row_size(like: TimeStep) -> int:
    """Bytes of a row that holds the time step of all lanes, `[B, ...]`."""
    return sum(_aligned(field.nbytes) for field in like)


def views(rows: Tensor, like: TimeStep) -> TimeStep:
    """Time steps `[..., B, ...]` that lie in rows of bytes `[..., row_size]`, of the shapes and dtypes of `like`'s."""
    fields, begin = [], 0
    for field in like:
        part = rows[..., begin : begin + field.nbytes]
        fields.append(part.view(field.dtype).unflatten(-1, field.shape))
        begin += _aligned(field.nbytes)
    return TimeStep(*fields)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def empty_on_host(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor that copies from and to the device need not wait for."""
    return torch.empty(size, dtype=dtype, pin_memory=device.type == "cuda")


def wait(device: torch.device) -> None:
    """Until all copies so far are done."""
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def _copy(to: State, source: State) -> None:
    for place, leaf in zip(to, source, strict=True):
        place.copy_(leaf)
