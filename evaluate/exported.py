"""An agent's step as a program that runs without this package: ONNX, or a torch exported program.

    policy_logits, value, next state = step(obs, is_first, prev_action, prev_reward, state)

| input       | shape and dtype                 | what                                                               |
|-------------|---------------------------------|--------------------------------------------------------------------|
| obs         | `[B, *obs_shape]`, as they come | observations; obs_NAME for each array of a nested observation      |
| is_first    | `[B]` bool                      | an episode begins: the state is replaced by the initial state      |
| prev_action | `[B]` int64, or as `TimeStep`   | the previous action; any value where is_first                      |
| prev_reward | `[B]` float32                   | the unscaled reward that came with obs; any value where is_first   |
| state_NAME  | `[B, ...]` float32              | each leaf of the core's state; any value where is_first            |

| output          | shape and dtype  | what                                                                  |
|-----------------|------------------|-----------------------------------------------------------------------|
| policy_logits   | `[B, P]` float32 | parameters of the policy (`SpaceSpec.distribution`), without a mask   |
| value           | `[B]` float32    | the expected return, scaled as in training                            |
| next_state_NAME | as state_NAME    | the state for the next step                                           |

B is dynamic. These are the names in ONNX. The torch program takes the first four by name, a nested `obs` as a
dictionary by NAME, and `state`, a dictionary by NAME; it returns a dictionary with `policy_logits`, `value` and
`state`.
"""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rmc_agents.agent import ActorCritic
from rmc_agents.distributions import FORBIDDEN, Categorical, Joint, forbid
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import AgentOutput, Distribution, State, TimeStep, map_leaves

TOLERANCE = 1e-5
"""Maximum difference between the probabilities, or means, of a program and its agent, for logits up to 10; for larger
ones it grows with them."""
STEP = ("obs", "is_first", "prev_action", "prev_reward")
ABOUT = "about.json"
"""The file inside a torch program with the metadata that ONNX has in `metadata_props`."""

RunProgram = Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Tensor, ...]]
"""From the step's inputs and the state's leaves to logits, value and the next state's leaves."""


class Program(NamedTuple):
    """An agent's step for another runtime."""

    data: bytes  # the file's content
    run: RunProgram  # runs it in that runtime


def make_program(agent: ActorCritic, format: str, about: dict[str, str]) -> Program:
    """The agent's step in one of the formats 'onnx' and 'torch'.

    Args:
      agent: on the CPU, in eval mode.
      format: 'onnx' needs the extra of that name.
      about: metadata for the file, by name.

    Raises:
      ValueError: for an agent that cannot be exported.
    """
    step, captured = _Step(agent), None
    with _quiet():
        try:
            captured = step.captured()
            return (_to_onnx if format == "onnx" else _to_torch)(captured, step, about)
        except Exception as error:  # a custom core or encoder may raise anything
            failed = "be exported by torch.export" if captured is None else f"be written as {format}"
            core, encoder = agent.core.class_name(), type(agent.encoder).__name__
            raise ValueError(
                f"--format {format}: core {core} with encoder {encoder} cannot {failed}: {_reason(error)}"
            ) from error


def _reason(error: BaseException) -> str:
    """The first paragraph of the error's first cause."""
    if "marked batch as dynamic" in str(error):
        return "its code fixes the number of lanes: use x.shape[0] instead of len(x), and no int() of shapes"
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__


class Compared:
    """Acts like the agent, and checks an exported program against it at every step, from the agent's state: in a state
    of its own, differences of rounding could grow over an episode.

    Args:
      agent: the agent.
      program: its exported program.

    Attributes:
      largest: the largest difference so far between probabilities (or means) of the program and the agent.
    """

    def __init__(self, agent: ActorCritic, program: Program) -> None:
        self.agent, self.program, self.largest = agent, program, 0.0

    def initial_state(self, batch_size: int) -> State:
        """The agent's state, and what the program gets, which starts at 99: its first step has to reset it."""
        state = self.agent.initial_state(batch_size)
        return state, tuple(torch.full_like(leaf, 99) for leaf in state)

    def step(self, steps: TimeStep, state: State) -> tuple[AgentOutput, State]:
        """The agent's step. Raises ValueError if the program's differs."""
        own, leaves = state
        output, own = self.agent.step(steps, own)
        logits, value, *after = self.program.run(tuple(getattr(steps, name) for name in STEP), leaves)
        expected, actual = (
            self.agent.spec.distribution(forbid(each, steps.action_mask)) for each in (output.policy_logits, logits)
        )
        expected.mode()  # raises if the agent has diverged
        largest = output.policy_logits.where(output.policy_logits != FORBIDDEN, 0.0).abs().max().item()
        limit = TOLERANCE * max(1.0, largest / 10)  # rounding grows with the logits
        difference = (expected.canonical() - actual.canonical()).abs().max().nan_to_num(nan=1.0).item()
        self.largest = max(self.largest, difference)
        if difference > limit or not _same_choices(expected, actual, limit):
            raise ValueError(
                f"the exported program differs from the agent: expected the same actions and probabilities "
                f"within {limit:.1e}, got a difference of {difference:.2e} (does its core draw random numbers?)"
            )
        pairs = [("value", output.value, value), *(("state", *leaves) for leaves in zip(own, after, strict=True))]
        for what, wanted, found in pairs:
            if not (error := _relative_error(wanted, found)) <= TOLERANCE:
                raise ValueError(
                    f"the exported program differs from the agent: expected a {what} v within {TOLERANCE:.0e} "
                    f"(1 + |v|), got a difference of {error:.2e} (1 + |v|)"
                )
        return output, (own, tuple(own))


def _relative_error(wanted: Tensor, found: Tensor) -> float:
    """The largest difference, relative to 1 + |wanted|; of flags, 1 is true. Equal infinities do not differ."""
    exact = torch.complex128 if wanted.is_complex() else torch.float64
    wanted, found = wanted.to(exact), found.to(exact)
    if not wanted.numel():
        return 0.0
    error = (found - wanted).abs() / (1 + wanted.abs())
    return error.where(found != wanted, 0.0).max().item()


def _same_choices(expected: Distribution, actual: Distribution, tolerance: float) -> bool:
    """Whether the most likely choices of one are, within the tolerance, those of the other."""
    if isinstance(expected, Joint) and isinstance(actual, Joint):
        return all(_same_choices(*parts, tolerance) for parts in zip(expected.parts, actual.parts, strict=True))
    if not isinstance(expected, Categorical):
        return True  # bits and means have no other to be confused with
    probabilities = actual.canonical()
    likeliest = probabilities.gather(-1, expected.mode().unsqueeze(-1))
    return not (likeliest < probabilities.amax(-1, keepdim=True) - tolerance).any()


class _Step(nn.Module):
    """An agent's step with only named tensors as inputs and outputs."""

    def __init__(self, agent: ActorCritic) -> None:
        super().__init__()
        self.agent = agent
        self._initial = agent.initial_state(1)
        self.names = tuple(getattr(self._initial, "_fields", map(str, range(len(self._initial)))))
        self.parts = [part.name for part in agent.spec.obs_parts]

    def forward(
        self, obs: Any, is_first: Tensor, prev_action: Tensor, prev_reward: Tensor, state: dict[str, Tensor]
    ) -> dict[str, Any]:
        never = torch.zeros_like(is_first)
        steps = TimeStep(obs, is_first, prev_action, prev_reward, terminated=never, truncated=never)
        before = map_leaves(lambda _, leaf: leaf, self._initial, tuple(state.values()))
        output, after = self.agent.step(steps, before)
        return {**output._asdict(), "state": dict(zip(self.names, after, strict=True))}

    @torch.no_grad()
    def captured(self) -> torch.export.ExportedProgram:
        """The step as torch operators, for any number of lanes."""
        lanes, batch = 3, torch.export.Dim("batch")
        arguments = dict(zip(STEP, _zeros(self.agent.spec, lanes), strict=True))
        initial = map_leaves(Tensor.contiguous, self.agent.initial_state(lanes))  # an expanded one would fix the lanes
        state = dict(zip(self.names, initial, strict=True))
        free: dict[str, Any] = {name: {0: batch} for name in STEP}
        free["state"] = {name: {0: batch} for name in self.names}
        if self.parts:
            free["obs"] = {name: {0: batch} for name in self.parts}
        return torch.export.export(self, (), {**arguments, "state": state}, dynamic_shapes=free)


def _zeros(spec: SpaceSpec, lanes: int) -> tuple[Any, ...]:
    arrays = {
        name: torch.zeros(lanes, *array.shape, dtype=getattr(torch, array.dtype)) for name, array in spec.arrays.items()
    }
    obs = arrays if spec.obs_parts else arrays[""]
    return obs, torch.zeros(lanes, dtype=torch.bool), spec.no_action(lanes), torch.zeros(lanes)


def _to_torch(captured: torch.export.ExportedProgram, step: _Step, about: dict[str, str]) -> Program:
    file = io.BytesIO()
    torch.export.save(captured, file, extra_files={ABOUT: json.dumps(about)})
    module = torch.export.load(io.BytesIO(file.getvalue())).module()

    def run(inputs: tuple[Any, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        output = module(**dict(zip(STEP, inputs, strict=True)), state=dict(zip(step.names, state, strict=True)))
        return output["policy_logits"], output["value"], *output["state"].values()

    return Program(file.getvalue(), run)


def _to_onnx(captured: torch.export.ExportedProgram, step: _Step, about: dict[str, str]) -> Program:
    import onnx
    import onnxruntime

    observations = [f"obs_{name}" for name in step.parts] or ["obs"]
    inputs = [*observations, *STEP[1:], *(f"state_{name}" for name in step.names)]
    outputs = [*AgentOutput._fields, *(f"next_state_{name}" for name in step.names)]
    made = torch.onnx.export(captured, input_names=inputs, output_names=outputs, dynamo=True, verbose=False)
    assert made is not None
    model = made.model_proto
    onnx.helper.set_model_props(model, about)
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def run(arguments: tuple[Any, ...], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        obs, *others = arguments
        seen = obs.values() if step.parts else [obs]
        feed = {name: x.numpy() for name, x in zip(inputs, (*seen, *others, *state), strict=True)}
        return tuple(map(torch.from_numpy, session.run(outputs, feed)))

    return Program(data, run)


@contextmanager
def _quiet() -> Iterator[None]:
    """Context without the exporters' messages, and the partial program that they print when they fail."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
