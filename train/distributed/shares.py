"""The distribution of lanes over learners, and the states of their collectors as one."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rmc_agents.collect import Share
from rmc_agents.envs.saving import EACH_LANE

BY_LANE = ("lanes", "core")
"""The parts of a collector's state whose tensors and arrays have lanes as their first axis; the others are equal in all
learners."""


def split_lanes(lanes: int, learners: int) -> list[Share]:
    """Distribute lanes over learners in order, almost equally."""
    bounds = [lanes * learner // learners for learner in range(learners + 1)]
    return [Share(first, end - first, lanes) for first, end in pairwise(bounds)]


def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The states of all learners' collectors, in order, as that of one collector with all lanes.

    A custom environment's state without a lane axis cannot be split again, and one that has failed is not saved: the
    episodes then restart.
    """
    lanes = [state["lanes"] for state in states]
    if not all(each and _is_by_lane(each, len(each["returns"])) for each in lanes):
        return states[0] | dict.fromkeys(BY_LANE)
    return states[0] | {name: _merged([state[name] for state in states]) for name in BY_LANE}


def part(state: dict[str, Any], share: Share) -> dict[str, Any]:
    """One learner's part of a collector state for all lanes; without the lanes if they cannot be told apart."""
    if state["lanes"] and not _is_by_lane(state["lanes"], share.total):
        return state | dict.fromkeys(BY_LANE)
    return state | {name: _part(state[name], slice(share.first, share.first + share.lanes)) for name in BY_LANE}


def _is_by_lane(tree: Any, lanes: int) -> bool:
    if isinstance(tree, dict) and tree.keys() == {EACH_LANE}:
        return len(tree[EACH_LANE]) == lanes
    if isinstance(tree, dict | list):
        return all(_is_by_lane(branch, lanes) for branch in (tree.values() if isinstance(tree, dict) else tree))
    return isinstance(tree, Tensor | np.ndarray) and tree.shape[:1] == (lanes,)


def _merged(trees: Sequence[Any]) -> Any:
    first = trees[0]
    if isinstance(first, dict) and first.keys() == {EACH_LANE}:
        return {EACH_LANE: [lane for tree in trees for lane in tree[EACH_LANE]]}
    if isinstance(first, dict):
        return {name: _merged([tree[name] for tree in trees]) for name in first}
    if isinstance(first, list):
        return [_merged(parts) for parts in zip(*trees, strict=True)]
    return torch.cat(list(trees)) if isinstance(first, Tensor) else np.concatenate(_padded(trees))


def _padded(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Pad arrays `[N, ...]` with zeros to the same shape per lane."""
    shape = np.max([array.shape[1:] for array in arrays], axis=0, initial=0)
    return [
        np.pad(array, [(0, 0), *((0, room - size) for room, size in zip(shape, array.shape[1:], strict=True))])
        for array in arrays
    ]


def _part(tree: Any, lanes: slice) -> Any:
    if isinstance(tree, dict) and tree.keys() == {EACH_LANE}:
        return {EACH_LANE: tree[EACH_LANE][lanes]}
    if isinstance(tree, dict):
        return {name: _part(branch, lanes) for name, branch in tree.items()}
    if isinstance(tree, list):
        return [_part(branch, lanes) for branch in tree]
    return tree[lanes] if isinstance(tree, Tensor | np.ndarray) else tree
