"""Damaged and hostile checkpoints: one error of one line, or no harm."""

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import wandering  # noqa: F401  # registers an environment whose state cannot be saved
from helpers.actors import make_actor
from helpers.runs import FRAMES_PER_UPDATE, find_and_load, newest, resume
from rmc_agents.config import Config
from rmc_agents.runs import checkpoint
from rmc_agents.runs.checkpoint import CheckpointError
from rmc_agents.runs.saved import load_agent
from rmc_agents.train.impala.trainer import Impala
from rmc_agents.train.resuming import reopen

CPU = torch.device("cpu")
TINY = {"num_envs": 2, "unroll_length": 3, "encoder_sizes": [16], "mem_slots": 3, "head_size": 4, "hidden_size": 16}


def places(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in a tree: the keys that lead there."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in children:
        yield (*place, key)
        yield from places(value, (*place, key))


PLAIN = (None, True, -1, 10**30, 1.5, float("nan"), float("inf"), "x", [], {}, [1, "x"], {"a": 1})


def spoiled(value: Any, generator: random.Random) -> Any:
    """Another value in place of a part of a tree: another dtype, shape, sign or type."""
    other = generator.choice(PLAIN)
    if isinstance(value, np.ndarray):
        spoil = generator.choice([lambda x: x[:-1], lambda x: x[None], torch.from_numpy, lambda x: other])
        return spoil(value)
    if not isinstance(value, torch.Tensor):
        return other if type(other) is not type(value) or isinstance(value, int | float) else None
    changes: list[Callable[[torch.Tensor], Any]] = [
        lambda x: x.reshape(-1)[:-1],
        lambda x: x[None],
        lambda x: x.to(torch.int16 if x.dtype != torch.int16 else torch.int32),
        lambda x: x.numpy(),
        lambda x: other,
    ]
    if value.is_floating_point() and value.numel():
        changes += [lambda x: torch.full_like(x, torch.nan), lambda x: torch.full_like(x, torch.inf)]
    return generator.choice(changes)(value)


def damaged(tree: dict[str, Any], generator: random.Random) -> tuple[dict[str, Any], str]:
    """A copy with a part replaced, removed, or added; and what was done."""
    tree = copy.deepcopy(tree)
    possible = [place for place in places(tree) if place[0] != "config" or generator.random() < 0.2]
    *path, last = generator.choice(possible)
    parent = tree
    for key in path:
        parent = parent[key]
    kind = generator.choice(["replace", "replace", "replace", "remove", "add"])
    place = "/".join(map(str, path if kind == "add" else [*path, last]))
    if kind == "remove":
        del parent[last]
    elif kind == "replace":
        parent[last] = spoiled(parent[last], generator)
    elif isinstance(parent, dict):
        parent["unknown"] = torch.zeros(2)
    else:
        parent.append(torch.zeros(2))
    return tree, f"{kind} {place}"


def refusal(open_one: Callable[[], object]) -> str | None:
    """The message of the only exception that opening may raise; None if it went well."""
    try:
        open_one()
    except CheckpointError as error:
        return str(error)
    return None


def is_infinite(state: list[torch.Tensor]) -> bool:
    """Whether some leaf is: a recurrent state may be."""
    return any(isinstance(leaf, torch.Tensor) and bool(leaf.isinf().all()) for leaf in state)


@pytest.mark.slow
def test_damage_anywhere_is_a_checkpoint_error_or_does_no_harm(run: Path, tmp_path: Path) -> None:
    """What older files lack may be missing; further parts at the top and parameters without a step may pass."""
    path, tree = find_and_load(run)
    newest_field = f"spec/{len(tree['spec']) - 1}"
    optional = (newest_field, "shuffling", "collector/lanes/numbers")
    generator, refused = random.Random(0), 0
    file = tmp_path / "checkpoints" / path.name
    file.parent.mkdir()
    for _ in range(50):
        spoiled_tree, what = damaged(tree, generator)
        checkpoint.save(file, spoiled_tree)
        resuming = refusal(partial(reopen, tmp_path, lambda config: config, trust=False))
        playing = refusal(partial(load_agent, tmp_path, CPU))
        for message in filter(None, (resuming, playing)):
            assert str(file) in message, what
            assert "\n" not in message, what
        may_pass = what.startswith("replace config/") or what == "add "
        may_pass |= what.startswith(("remove config/", *(f"remove {place}" for place in optional)))
        may_pass |= what.startswith("replace collector/core/") and is_infinite(spoiled_tree["collector"]["core"])
        may_pass |= what == f"replace {newest_field}" and spoiled_tree["spec"][-1] is True  # it knows action masks
        assert resuming or may_pass or {} in spoiled_tree["optimizer"], what
        refused += resuming is not None
    assert refused > 31


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("negative frames", lambda tree: tree.update(frames=-1), "frames: expected a number of at least 0"),
        ("NaN seconds", lambda tree: tree.update(seconds=float("nan")), "seconds: expected a finite number"),
        ("negative seconds", lambda tree: tree.update(seconds=-1.0), "seconds: expected a number of at least 0"),
        ("truth for a count", lambda tree: tree.update(updates=True), "updates: expected a int"),
        (
            "an action that does not exist",
            lambda tree: tree["collector"]["lanes"]["steps"][2].fill_(99),
            "prev_action: expected 0 to 4, got 99",
        ),
        ("negative lengths", lambda tree: tree["collector"]["lanes"]["lengths"].fill(-1), "lengths: expected numbers"),
        (
            "swapped moments",
            lambda tree: [
                moments.update(exp_avg=moments["exp_avg_sq"], exp_avg_sq=moments["exp_avg"])
                for moments in tree["optimizer"]
                if "exp_avg_sq" in moments
            ],
            "step counts and second moments of at least 0",
        ),
        ("a number too large", lambda tree: tree["config"].update(threads=10**30), "threads: input should be less"),
        ("an impossible game", lambda tree: tree["collector"]["lanes"]["env"]["env"]["power"].fill(99), "'power'"),
        *(
            (f"no {part}", lambda tree, part=part: tree.pop(part), "is damaged or not a checkpoint of this version")
            for part in ("config", "collector", "seconds", "optimizer", "agent")
        ),
    ],
)
def test_what_no_run_can_have_saved_is_named(
    name: str, change: Callable[[dict[str, Any]], object], expected: str, run: Path, tmp_path: Path
) -> None:
    tree = find_and_load(run)[1]
    change(tree)
    checkpoint.write_numbered(tmp_path, 9, checkpoint.to_bytes(tree), keep=2)
    with pytest.raises(CheckpointError, match=expected):
        reopen(tmp_path, lambda config: config, trust=False)


def test_an_older_checkpoint_is_taken_where_the_newest_does_not_fit_its_settings(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = find_and_load(run)[1]
    checkpoint.write_numbered(tmp_path, 1, checkpoint.to_bytes(tree), keep=3)
    checkpoint.write_numbered(tmp_path, 2, checkpoint.to_bytes(tree | {"torch_rng": torch.zeros(3)}), keep=3)
    checkpoint.write_numbered(tmp_path, 3, checkpoint.to_bytes(tree | {"agent": {}}), keep=3)
    assert load_agent(tmp_path, CPU).path.name == "update-000000002.safetensors", "which plays"
    assert resume(tmp_path, "--total-frames", str(3 * FRAMES_PER_UPDATE)) == 0
    output = capsys.readouterr().out
    assert f"resumed from {tmp_path}/checkpoints/update-000000001.safetensors" in output
    assert output.count("renamed") == 2
    assert newest(tmp_path)["updates"] == 3


def test_actors_states_are_looked_at_before_they_are_sent() -> None:
    settings = TINY | {"env": "recall", "algo": "impala", "actors": 1, "lanes_per_actor": 3, "batch_rollouts": 1}
    trainer = Impala(Config().updated(settings | {"core": "gru"}, "test"), CPU)
    actor = make_actor(**settings, core="gru")
    tree = trainer.get_state()
    trainer.set_state(tree | {"actors": [actor.get_state()]})
    for bad in ({"sequence": -1}, {"sequence": 1.5}, {"collector": {}}):
        with pytest.raises(ValueError, match="actors/0"):
            trainer.set_state(tree | {"actors": [actor.get_state() | bad]})
