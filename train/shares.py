"""Which lanes each of several learners plays, and the states of their lanes as one."""

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


def deal(lanes: int, learners: int) -> list[Share]:
    """Lanes dealt out to learners in order, almost equally."""
    bounds = [lanes * learner // learners for learner in range(learners + 1)]
    return [Share(first, end - first, lanes) for first, end in pairwise(bounds)]


def joined(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The states of all learners' collectors, in order, as that of one collector with all lanes."""
    first = states[0]
    return first | {name: _joined([state[name] for state in states]) for name in BY_LANE}


def part(state: dict[str, Any], share: Share) -> dict[str, Any]:
    """The state that one learner's collector has in a state of all lanes."""
    return state | {name: _part(state[name], slice(share.first, share.first + share.lanes)) for name in BY_LANE}


def _joined(trees: Sequence[Any]) -> Any:
    first = trees[0]
    if isinstance(first, dict) and first.keys() == {EACH_LANE}:
        return {EACH_LANE: [lane for tree in trees for lane in tree[EACH_LANE]]}
    if isinstance(first, dict):
        return {name: _joined([tree[name] for tree in trees]) for name in first}
    if isinstance(first, list):
        return [_joined(parts) for parts in zip(*trees, strict=True)]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, np.ndarray):
        return np.concatenate(_padded(trees))
    return first


def _padded(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Arrays `[N, ...]`, some of which have room for more in a lane than others, filled up with zeros."""
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
