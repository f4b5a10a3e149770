"""Actions as rows, each with a name and a bar, for videos and pages."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor
from torch.nn import functional

from rmc_agents.distributions import Gaussian, Joint
from rmc_agents.envs.nested import path_name
from rmc_agents.envs.warn_once import warn_once
from rmc_agents.formatting import plain_number
from rmc_agents.spaces import SpaceSpec
from rmc_agents.spaces.parts import ActionPart
from rmc_agents.types import Distribution


class ActionRow(NamedTuple):
    """A choice of a discrete action, a bit, or a continuous number."""

    name: str
    bounds: tuple[float, float] | None = None
    """The ends of a continuous number's bar, in the environment's units; None: the bar is a probability."""

    def label(self, share: float) -> str:
        """What a bar of this length, from 0 to 1, says."""
        if self.bounds is None:
            return f"{share:.0%}"
        low, high = self.bounds
        return plain_number(low + share * (high - low))


def action_rows(env: VectorEnv, spec: SpaceSpec) -> list[ActionRow]:
    """The R rows of an environment's actions, one for each choice, bit and continuous number.

    They have the names in `metadata["action_names"]`, if there is one for each row, else numbers.
    """
    rows = [row for part in spec.action_parts for row in _rows_of(part)]
    rows = rows or [ActionRow(str(action)) for action in range(spec.num_actions)]
    names = env.metadata.get("action_names")
    if spec.num_actions and env.spec is not None and env.spec.id.startswith("MiniGrid-"):
        from minigrid.core.actions import Actions  # takes a while to import

        names = [Actions(action).name for action in range(spec.num_actions)]
    if isinstance(names, list | tuple) and len(names) == len(rows):
        return [row._replace(name=str(name)) for row, name in zip(rows, names, strict=True)]
    if names is not None:
        warn_once(f"metadata['action_names'] is ignored: expected a list of {len(rows)} names, got {names!r}")
    return rows


def _rows_of(part: ActionPart) -> list[ActionRow]:
    rows = []
    for column, (low, high) in enumerate(zip(part.low, part.high, strict=True)):
        name = path_name((*part.path, *([str(column)] if len(part.low) > 1 else [])))
        if part.kind == "discrete":
            rows += [ActionRow(f"{name}: {value}" if name else str(value)) for value in range(int(low), int(high) + 1)]
        else:
            rows.append(ActionRow(name or "action", (low, high) if part.kind == "box" else None))
    return rows


def shares(policy: Distribution) -> Tensor:
    """The bars of T steps, `[T, R]` from 0 to 1: probabilities, and the places of means between their bounds."""
    parts = policy.parts if isinstance(policy, Joint) else [policy]
    bars = [_place(part.mean) if isinstance(part, Gaussian) else part.canonical() for part in parts]
    return torch.cat(bars, dim=-1)


def taken(spec: SpaceSpec, actions: Tensor) -> Tensor:
    """Actions `[T]` or `[T, W]` as `[T, R]`: 1 for what was chosen, else 0; the places of continuous numbers."""
    kinds = ["discrete"] if spec.num_actions else [part.kind for part in spec.action_parts for _ in part.low]
    bars = []
    for kind, size, column in zip(kinds, spec.action_limits, actions.reshape(len(actions), -1).unbind(1), strict=True):
        if size is not None and kind == "discrete":
            bars.append(functional.one_hot(column.long(), size))
        else:
            bars.append((_place(column) if size is None else column).unsqueeze(1))
    return torch.cat(bars, dim=-1)


def _place(numbers: Tensor) -> Tensor:
    """From an agent's numbers, with bounds at -1 and 1, to 0 at the lower bound and 1 at the upper one."""
    return (numbers.clamp(-1, 1) + 1) / 2


def text_of(action: Tensor, rows: Sequence[ActionRow], spec: SpaceSpec) -> str:
    """An action `[1]` or `[1, W]`: its name, or the environment's numbers."""
    if spec.num_actions:
        return rows[int(action.item())].name
    parts = spec.to_env(action.cpu().numpy())
    numbers = np.concatenate([np.ravel(part) for part in (parts if isinstance(parts, tuple) else (parts,))])
    return ", ".join(plain_number(float(number)) for number in numbers)
