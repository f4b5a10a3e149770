"""Optimizers by name: Adam, and Muon with Adam."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rmc_agents.agent import ActorCritic
from rmc_agents.config import TrainConfig
from rmc_agents.tree_checks import Either

from . import distributed, muon


def _uncompiled(kind: Any) -> Any:
    """The optimizer without torch's wrapper for torch.compile, which takes two seconds of CPU time to import."""
    wrapped = ("add_param_group", "state_dict", "load_state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


Adam, Muon = _uncompiled(torch.optim.Adam), _uncompiled(muon.Muon)

MOMENTS: dict[type[torch.optim.Optimizer], Callable[[Tensor], dict[str, Tensor]]] = {
    Adam: lambda p: {"step": torch.tensor(0.0), "exp_avg": p, "exp_avg_sq": p},
    Muon: lambda p: {"momentum_buffer": p},
}
"""The per-parameter state of the optimizers."""
MIN_SIDE = 16  # minimum rows and columns of a matrix for Muon


class Optimizers:
    """Optimizers of different parameters, stepped together.

    Attributes:
      parts: each with its own parameters. With several learners, which all have the same gradients, each learner steps
        some of Muon's matrices, and holds their momentum, and all other parameters.
    """

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        groups = [group for part in parts if isinstance(part, Muon) for group in part.param_groups]
        self._matrices: list[Tensor] = [matrix for group in groups for matrix in group["params"]]

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        """One step of every part."""
        owners = self._owners()
        others = [matrix for matrix, owner in zip(self._matrices, owners, strict=True) if owner != distributed.rank()]
        gradients = [matrix.grad for matrix in others]
        for matrix in others:
            matrix.grad = None  # the optimizer then skips it
        for part in self.parts:
            part.step()
        for matrix, gradient in zip(others, gradients, strict=True):
            matrix.grad = gradient
        distributed.exchange([matrix.detach() for matrix in self._matrices], owners)

    def _owners(self) -> list[int]:
        """The learner that steps each of Muon's matrices: the most expensive first, to the least loaded learner."""
        costs = [matrix.numel() * min(matrix.shape) for matrix in self._matrices]
        loads, owners = [0] * distributed.size(), [0] * len(costs)
        for job in sorted(range(len(costs)), key=lambda job: -costs[job]):
            owners[job] = loads.index(min(loads))
            loads[owners[job]] += costs[job]
        return owners

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of all parts."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = learning_rate

    def get_state(self) -> list[dict[str, Any]]:
        """The state of each parameter, part by part; `{}` where there is none yet.

        Collective: all learners call this together.
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
        """The structure of a saved state (see `tree_checks`): per parameter none, or moments of its shape."""
        return [
            Either({}, MOMENTS[type(part)](parameter))
            for part in self.parts
            for group in part.param_groups
            for parameter in group["params"]
        ]

    def set_state(self, states: list[dict[str, Any]]) -> None:
        """Restore a state from `get_state`.

        Raises:
          ValueError: for another number of parameters, or a negative step count or second moment.
        """
        if any(name in state and (state[name] < 0).any() for state in states for name in ("step", "exp_avg_sq")):
            raise ValueError("optimizer: expected step counts and second moments of at least 0")
        sizes = [sum(len(group["params"]) for group in part.param_groups) for part in self.parts]
        if len(states) != sum(sizes):
            raise ValueError(f"expected the optimizer's state of {sum(sizes)} parameters, got {len(states)}")
        remaining = iter(states)
        for part, size in zip(self.parts, sizes, strict=True):
            own = {i: state for i, state in zip(range(size), remaining, strict=False) if state}
            part.load_state_dict({**part.state_dict(), "state": own})
            for parameter, state in part.state.items():  # in the parameter's memory layout, as a fused step expects
                for name, moment in state.items():
                    if name != "step":
                        state[name] = torch.empty_like(parameter).copy_(moment)


def make_optimizer(agent: ActorCritic, config: TrainConfig) -> Optimizers:
    """Create the optimizer that `config.optimizer` names, for all of the agent's parameters.

    Muon (Jordan et al., 2024) sets the singular values of a matrix's averaged gradient to about 1 before the step:
    directions with small gradients, such as those through a memory, learn as fast as others. Everything else, such as
    vectors and the heads, uses Adam (Kingma & Ba, 2015).

    Raises:
      ValueError: for complex parameters.
    """
    for name, parameter in agent.named_parameters():
        if parameter.is_complex():
            raise ValueError(
                f"{name}: expected real parameters, got {parameter.dtype}; torch.view_as_real(z) has both parts"
            )
    matrices = list(_hidden_matrices(agent)) if config.optimizer == "muon" else []
    taken = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in agent.parameters() if id(parameter) not in taken]
    parts: list[torch.optim.Optimizer] = [Adam(rest, lr=config.learning_rate, eps=config.adam_epsilon, fused=True)]
    if matrices:
        parts.append(Muon(matrices, lr=config.learning_rate, weight_decay=config.weight_decay))
    return Optimizers(*parts)


def _hidden_matrices(agent: ActorCritic) -> Iterator[nn.Parameter]:
    """The matrices of encoder, core and the layers before the heads, each once, except matrices with fewer than
    `MIN_SIDE` rows or columns, and those whose rows are independent vectors: weights of `nn.Embedding`, and parameters
    named `...embedding`.
    """
    embeddings = {id(module.weight) for module in agent.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in nn.ModuleList([agent.encoder, agent.core, agent.head_layers]).named_parameters():
        is_embedding = id(parameter) in embeddings or name.endswith("embedding")
        if parameter.dim() == 2 and min(parameter.shape) >= MIN_SIDE and not is_embedding:
            yield parameter
