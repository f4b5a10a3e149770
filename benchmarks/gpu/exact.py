"""Whether training on a device continues exactly: after a resume, and from the CPU to the device and back."""

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from rmc_agents.config import Config
from rmc_agents.runs import checkpoint
from rmc_agents.train.on_policy import OnPolicy


def check_resume(config: Config, device: str, updates: int = 6) -> dict[str, Any]:
    """Whether a resumed run is bitwise equal to an uninterrupted one, and whether two uninterrupted ones are."""

    def trained(count: int, path: Path | None = None) -> OnPolicy:
        """One after the other: the order of minibatches comes from torch's own generator."""
        trainer = OnPolicy(config, torch.device(device))
        if path is not None:
            trainer.set_state(checkpoint.load(path))
        train(trainer, count)
        return trainer

    with tempfile.TemporaryDirectory() as folder:
        whole, again, after = Path(folder, "whole"), Path(folder, "again"), Path(folder, "after")
        checkpoint.save(after, trained(updates).get_state())
        ends = [(trained(2 * updates), whole), (trained(2 * updates), again), (trained(updates, after), after)]
        expected, *others = (leaves_of(trainer, path) for trainer, path in ends)
    differing = [[name for name, leaf in expected.items() if not same(leaf, other[name])] for other in others]
    equal = [not names for names in differing]
    return {"updates": updates, "repeatable": equal[0], "exact": equal[1], "differing": differing[1]}


def check_move(config: Config, device: str, updates: int = 2) -> dict[str, Any]:
    """Whether a run continues from a checkpoint of the CPU on the device, and back, with the same weights."""
    trainers = [OnPolicy(config, torch.device(name)) for name in ("cpu", device, "cpu")]
    with tempfile.TemporaryDirectory() as folder:
        train(trainers[0], updates)
        for number, (before, after) in enumerate(pairwise(trainers)):
            path = Path(folder, str(number))
            checkpoint.save(path, before.get_state())
            after.set_state(checkpoint.load(path))
            weights = zip(before.agent.parameters(), after.agent.parameters(), strict=True)
            if not all(torch.equal(a.cpu(), b.cpu()) for a, b in weights):
                return {"exact": False}
            train(after, updates)
    return {"exact": True, "frames": trainers[-1].frames}


def train(trainer: OnPolicy, updates: int) -> None:
    """Train for a number of updates."""
    for _ in range(updates):
        trainer.update()


def leaves_of(trainer: OnPolicy, path: Path) -> dict[str, Any]:
    """All leaves of a checkpoint, by path."""
    checkpoint.save(path, trainer.get_state())
    return dict(leaves(checkpoint.load(path)))


def leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of dicts and lists."""
    if not isinstance(tree, dict | list):
        yield name, tree
        return
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(value, f"{name}/{key}")


def same(a: Any, b: Any) -> bool:
    """Whether two leaves are bitwise equal."""
    if hasattr(a, "shape"):
        return torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    return bool(a == b)
