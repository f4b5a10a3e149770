"""The memory along an episode, and the policy without it."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rmc_agents.agent import ActorCritic
from rmc_agents.cores.inspection import attention_columns, attention_of, gates_of, is_window
from rmc_agents.evaluate.ablation import WindowedMemory
from rmc_agents.evaluate.actions import shares
from rmc_agents.types import AgentOutput, State, TimeStep, at

MAX_ROWS = 64
"""Maximum rows of a strip; of many units, such as an LSTM's, those that vary most are kept."""
MAX_CELLS = 16 * 17  # of a table of attention: 16 slots
MAX_PEAKS, MIN_PEAK = 12, 0.05
SAME_ACTION = 1e-3
"""Most likely actions that are numbers (bounds at -1 and 1) and differ by less are equal."""
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Played:
    """An episode of T steps: time steps, states and outputs `[T, ...]`."""

    steps: TimeStep
    output: AgentOutput
    before: State  # the state before each step
    after: State


def comparisons(agent: ActorCritic, played: Played, window: int) -> list[dict[str, Any]]:
    """The policies with less memory at the steps that were played, and the agent's divergence from each.

    All steps are taken at once, as if each were a lane. `divergence` is the Kullback-Leibler divergence in nats,
    KL(agent ‖ without): 0 where the memory changes nothing. `changed` counts steps with another most likely action.
    """
    steps = len(played.steps.is_first)
    with torch.no_grad():
        reset, _ = WindowedMemory(agent, 1).step(played.steps, ())
        # An episode's first time step resets the core, so repeating it at the front has no effect.
        recent = tuple(_delayed(played.steps, delay) for delay in range(min(window, steps) - 1, 0, -1))
        windowed, _ = WindowedMemory(agent, window).step(played.steps, recent)
    named = {"memory reset": reset, f"last {window} step{'s' if window > 1 else ''} only": windowed}
    own = agent.spec.distribution(played.output.policy_logits)
    compared = []
    for name, output in named.items():
        without = agent.spec.distribution(output.policy_logits)
        compared.append(
            {
                "name": name,
                "shares": rounded(shares(without)),
                "divergence": rounded(own.kl(without).clamp(min=0)),
                "changed": int(
                    ((without.mode() - own.mode()).abs() >= SAME_ACTION).reshape(steps, -1).any(dim=1).sum()
                ),
            }
        )
    return compared


def _delayed(steps: TimeStep, delay: int) -> TimeStep:
    index = (torch.arange(len(steps.is_first)) - delay).clamp(min=0)
    return at(steps, index.to(steps.is_first.device))


def peaks(values: Sequence[float]) -> list[int]:
    """The steps with the largest values, at some distance from each other, in order; none below `MIN_PEAK`."""
    apart = max(3, len(values) // 40)
    found: list[int] = []
    for step in sorted(range(len(values)), key=lambda step: -values[step]):
        if values[step] < MIN_PEAK or len(found) == MAX_PEAKS:
            break
        if all(abs(step - other) >= apart for other in found):
            found.append(step)
    return sorted(found)


@torch.no_grad()
def strips(agent: ActorCritic, played: Played) -> list[dict[str, Any]]:
    """A core's memory as strips along the episode: attention, gates, slots, state."""
    encoded, is_first = agent.encode(played.steps), played.steps.is_first
    attention = attention_of(agent.core, encoded, is_first, played.before)
    found = _attention(attention)
    for name, gate in gates_of(agent.core, encoded, is_first, played.before).items():
        found.append(_per_slot_or_unit(f"{name} gate", gate, "gates", 0.0, 1.0))
    if attention is not None and is_window(*attention.shape[3:]):
        return found  # the state holds the steps themselves
    names = getattr(played.after, "_fields", [f"state {i + 1}" for i in range(len(played.after))])
    for name, before, after in zip(names, map(_real, played.before), map(_real, played.after), strict=True):
        if not after.numel():
            continue
        if after.dim() > 2:
            found += _slots(name, before.flatten(2), after.flatten(2))
        else:
            found.append(_per_slot_or_unit(name, after, "state"))
    return found


def _real(values: Tensor) -> Tensor:
    """Complex numbers `[T, ..., D]` as pairs of real ones, `[T, ..., 2D]`, and `[T]` as `[T, 2]`; others unchanged."""
    if not values.is_complex():
        return values
    pairs = torch.view_as_real(values)
    return pairs.flatten(-2) if pairs.dim() > 2 else pairs


def _attention(weights: Tensor | None) -> list[dict[str, Any]]:
    """One strip per head of the last block; `shape` says that its rows form a table of slots by slots and input."""
    if weights is None:
        return []
    heads, slots, columns = weights.shape[2:]
    to = attention_columns(slots, columns)
    is_table = not is_window(slots, columns)
    labels = [f"{start} → {end}" for start in to[:-1] for end in to] if is_table else to
    most = MAX_CELLS if is_table else MAX_ROWS
    packed = []
    for head in range(heads):
        values = finite(weights[:, -1, head].flatten(1))
        one = strip(f"head {head + 1}", "attention", labels, values, 0.0, 1.0, most)
        packed.append(one | ({"shape": [slots, columns]} if is_table and len(one["labels"]) == len(labels) else {}))
    return packed


def _slots(name: str, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
    """The relative change of each slot, and the similarity of slots; `before` and `after` are `[T, N, D]`."""
    before, after, slots = before.float(), after.float(), after.shape[1]
    change = (after - before).norm(dim=2) / torch.maximum(before.norm(dim=2), after.norm(dim=2)).clamp(min=1e-6)
    packed = [strip(f"{name}: change", "slots", [f"slot {i + 1}" for i in range(slots)], finite(change), 0.0)]
    if pairs := list(combinations(range(slots), 2)):
        first, second = zip(*pairs, strict=True)
        alike = functional.cosine_similarity(after[:, list(first)], after[:, list(second)], dim=2)
        labels = [f"slots {i + 1} and {j + 1}" for i, j in pairs]
        packed.append(strip(f"{name}: similarity (cosine)", "slots", labels, finite(alike)))
    return packed


def _per_slot_or_unit(
    name: str, values: Tensor, group: str, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    kind = "slot" if values.dim() > 2 else "unit"
    if values.dim() > 2:
        values = values.flatten(2).mean(dim=2)
    values = values.reshape(len(values), -1)  # a leaf may be one number
    return strip(name, group, [f"{kind} {i + 1}" for i in range(values.shape[1])], finite(values), low, high)


def strip(
    name: str,
    group: str,
    labels: Sequence[str],
    values: Floats,
    low: float | None = None,
    high: float | None = None,
    most: int = MAX_ROWS,
) -> dict[str, Any]:
    """Pack values `[T, R]` as bytes; if there are many rows, only those that vary most.

    Args:
      name: the strip's name.
      group: the heading it is shown under.
      labels: of the R rows.
      values: the numbers.
      low, high: the values of bytes 0 and 255; None: the minimum and the maximum.
      most: the number of rows that is not too many.
    """
    if len(labels) > most:
        kept = np.sort(np.argsort(-values.std(axis=0), kind="stable")[:most])
        name = f"{name} ({most} of {len(labels)}, those that vary most)"
        labels, values = [labels[i] for i in kept], values[:, kept]
    low = float(values.min()) if low is None else low
    high = max(float(values.max()) if high is None else high, low + 1e-6)
    packed = np.rint((values.clip(low, high) - low) / (high - low) * 255).astype(np.uint8)
    data = b64encode(packed.tobytes()).decode()
    return {"name": name, "group": group, "labels": list(labels), "low": low, "high": high, "data": data}


def finite(values: Tensor) -> Floats:
    """Numbers for display; NaN becomes 0, infinity the largest number."""
    return np.nan_to_num(values.float().cpu().numpy(), posinf=1e6, neginf=-1e6)


def rounded(values: Tensor) -> list:
    """Nested lists of numbers with four decimals, finite for JSON."""
    lists: list = np.round(finite(values).astype(np.float64), 4).tolist()
    return lists
