"""The one place where the name of an optimizer becomes one."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rmc_agents.agent import ActorCritic
from rmc_agents.config import TrainConfig
from rmc_agents.tree_checks import Either

from . import distributed, muon
from .distributed import rank


def _uncompiled(kind: Any) -> Any:
    """The optimizer without what torch wraps it in for torch.compile, whose import takes two seconds of CPU time."""
    wrapped = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


Adam, Muon = _uncompiled(torch.optim.Adam), _uncompiled(muon.Muon)

MOMENTS: dict[type[torch.optim.Optimizer], Callable[[Tensor], dict[str, Tensor]]] = {
    Adam: lambda p: {"step": torch.tensor(0.0), "exp_avg": p, "exp_avg_sq": p},
    Muon: lambda p: {"momentum_buffer": p},
}
"""What an optimizer keeps of a parameter."""
FEWEST = 16  # rows and columns of a matrix that Muon takes


class Optimizers:
    """Optimizers of different parameters, stepped together.

    Attributes:
      parts: each with parameters of its own. Of several learners, which all have the same gradients, each steps some of
        Muon's matrices and has their momentum, and all of the rest: what one learner does alone is done once.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        groups = [group for part in parts if isinstance(part, Muon) for group in part.param_groups]
        self._matrices: list[Tensor] = [matrix for group in groups for matrix in group["params"]]

    def zero_grad(self) -> None:
        """Forgets all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """One step of every part."""
        others = [matrix for matrix, owner in zip(self._matrices, self._owners(), strict=True) if owner != rank()]
        gradients = [matrix.grad for matrix in others]
        for matrix in others:
            matrix.grad = None  # which an optimizer passes over
        for part in self.parts:
            part.step()
        for matrix, gradient in zip(others, gradients, strict=True):
            matrix.grad = gradient
        distributed.exchange([matrix.detach() for matrix in self._matrices], self._owners())

    def _owners(self) -> list[int]:
        """The learner that steps each of Muon's matrices: the dearest first, to whoever has least to do."""
        costs = [matrix.numel() * min(matrix.shape) for matrix in self._matrices]
        loads, owners = [0] * distributed.size(), [0] * len(costs)
        for job in sorted(range(len(costs)), key=lambda job: -costs[job]):
            owners[job] = loads.index(min(loads))
            loads[owners[job]] += costs[job]
        return owners

    def set_learning_rate(self, learning_rate: float) -> None:
        """For the steps to come, of all parts."""
        for group in self._groups():
            group["lr"] = learning_rate

    def _groups(self) -> Iterator[dict[str, Any]]:
        for part in self.parts:
            yield from part.param_groups

    def get_state(self) -> list[dict[str, Any]]:
        """The state of each parameter, part by part; `{}` where none has been needed yet.

        Of several learners, all call this at the same time.
        """
        if distributed.size() > 1 and self._matrices:
            states = [self.parts[-1].state[matrix] for matrix in self._matrices]
            for matrix, state in zip(self._matrices, states, strict=True):
                state.setdefault("momentum_buffer", torch.zeros_like(matrix))
            distributed.exchange([state["momentum_buffer"] for state in states], self._owners())
        states = []
        for part in self.parts:
            saved = part.state_dict()
            states += [saved["state"].get(i, {}) for group in saved["param_groups"] for i in group["params"]]
        return states

    def expected_state(self) -> list[Either]:
        """What a saved state is like (see `tree_checks`): no parameter's, or moments as large as it is."""
        return [
            Either({}, MOMENTS[type(part)](parameter))
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
        ]

    def set_state(self, states: list[dict[str, Any]]) -> None:
        """Go on from what `get_state` gave.

        Raises:
          ValueError: for another number of parameters, or a negative count of steps or mean of squares.
        """
        if any(name in state and (state[name] < 0).any() for state in states for name in ("step", "exp_avg_sq")):
            raise ValueError("optimizer: expected no negative steps and means of squares")
        sizes = [sum(len(group["params"]) for group in part.param_groups) for part in self.parts]
        if len(states) != sum(sizes):
            raise ValueError(f"expected the optimizer's state of {sum(sizes)} parameters, got {len(states)}")
        remaining = iter(states)
        for part, size in zip(self.parts, sizes, strict=True):
            own = {i: state for i, state in zip(range(size), remaining, strict=False) if state}
            part.load_state_dict({**part.state_dict(), "state": own})


def make_optimizer(agent: ActorCritic, config: TrainConfig) -> Optimizers:
    """The optimizer that `config.optimizer` names, for all of the agent's parameters.

    Muon (Jordan et al., 2024) brings the singular values of a matrix's averaged gradient to about 1 before the step:
    directions in which gradients are always small, such as those that lead through a memory, learn as fast as others.
    Vectors and the heads are Adam's (Kingma & Ba, 2015).
    """
    matrices = list(_hidden_matrices(agent)) if config.optimizer == "muon" else []
    taken = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in agent.parameters() if id(parameter) not in taken]
    parts: list[torch.optim.Optimizer] = [Adam(rest, lr=config.learning_rate, eps=config.adam_epsilon, fused=True)]
    if matrices:
        parts.append(Muon(matrices, lr=config.learning_rate))
    return Optimizers(*parts)


def _hidden_matrices(agent: ActorCritic) -> Iterator[nn.Parameter]:
    """Encoder's and core's, but for embeddings, whose rows are vectors of their own, and for those with few rows or
    columns, whose directions are all of use.
    """
    embeddings = {id(module.weight) for module in agent.encoder.modules() if isinstance(module, nn.Embedding)}
    for module in (agent.encoder, agent.core):
        for parameter in module.parameters():
            if parameter.dim() == 2 and min(parameter.shape) >= FEWEST and id(parameter) not in embeddings:
                yield parameter
