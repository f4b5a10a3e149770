"""Going on with a run: what no checkpoint may do, what is restored, and what a user is told before."""

import copy
import json
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from helpers import wandering  # noqa: F401  # registers an environment whose state cannot be saved
from helpers.actors import make_actor
from helpers.runs import FRAMES_PER_UPDATE, assert_same, newest, resume, train
from rmc_agents.collect import Lanes, seed_after
from rmc_agents.config import Config
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import export, watch
from rmc_agents.evaluate.statistics import EVALUATION_SEED
from rmc_agents.runs import checkpoint
from rmc_agents.runs.checkpoint import CheckpointError
from rmc_agents.runs.folder import RunFolder
from rmc_agents.runs.saved import load_agent
from rmc_agents.train import cli
from rmc_agents.train.impala.learner import Impala
from rmc_agents.train.resuming import reopen

CPU = torch.device("cpu")
TINY = {"num_envs": 2, "unroll_length": 3, "encoder_sizes": [16], "head_size": 8, "hidden_size": 16, "threads": 1}


def new_run(run_dir: Path, *flags: str) -> Path:
    """A run of one update; returns its checkpoint."""
    assert train("--run-dir", str(run_dir), "--total-frames", str(FRAMES_PER_UPDATE), *flags) == 0
    return checkpoint.find_and_load(run_dir)[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one update, with every kind of leaf in its checkpoint; not to be changed."""
    run_dir = tmp_path_factory.mktemp("runs") / "run"
    new_run(run_dir, "--core", "lstm", "--env", "minipacman-stack2")
    return run_dir


# --- damage ----------------------------------------------------------------------------------------------------------


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


@pytest.mark.slow
def test_damage_anywhere_is_a_checkpoint_error_or_does_no_harm(run: Path, tmp_path: Path) -> None:
    """Settings that are left out, parts that are unknown at the top, and parameters without a step may pass, and the
    spec's last fields, which have defaults."""
    path, tree = checkpoint.find_and_load(run)
    generator, refused = random.Random(0), 0
    file = tmp_path / "checkpoints" / path.name
    file.parent.mkdir()
    for _ in range(150):
        spoiled_tree, what = damaged(tree, generator)
        checkpoint.save(file, spoiled_tree)
        resuming = refusal(partial(reopen, tmp_path, lambda config: config, trust=False))
        playing = refusal(partial(load_agent, tmp_path, CPU))
        for message in filter(None, (resuming, playing)):
            assert str(file) in message, what
            assert "\n" not in message, what
        is_setting = what.startswith(("replace config/", "remove config/"))
        is_setting |= what == f"remove spec/{len(tree['spec']) - 1}"  # the newest field, which older files lack
        assert resuming or is_setting or what == "add " or {} in spoiled_tree["optimizer"], what
        refused += resuming is not None
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("negative frames", lambda tree: tree.update(frames=-1), "frames: expected a number of at least 0"),
        ("NaN seconds", lambda tree: tree.update(seconds=float("nan")), "seconds: expected a finite number"),
        ("negative seconds", lambda tree: tree.update(seconds=-1.0), "seconds: expected no negative number"),
        ("truth for a count", lambda tree: tree.update(updates=True), "updates: expected a int"),
        (
            "an action that does not exist",
            lambda tree: tree["collector"]["lanes"]["steps"][2].fill_(99),
            "prev_action: expected 0 to 4, got 99",
        ),
        ("negative lengths", lambda tree: tree["collector"]["lanes"]["lengths"].fill(-1), "lengths: expected no"),
        (
            "swapped moments",
            lambda tree: [
                moments.update(exp_avg=moments["exp_avg_sq"], exp_avg_sq=moments["exp_avg"])
                for moments in tree["optimizer"]
                if "exp_avg_sq" in moments
            ],
            "no negative steps and means of squares",
        ),
        ("another environment's", lambda tree: tree["spec"].__setitem__(2, 0.5), "spec: expected that of the envi"),
        ("a number too large", lambda tree: tree["config"].update(threads=10**30), "threads: input should be less"),
        ("an impossible game", lambda tree: tree["collector"]["lanes"]["env"]["env"]["power"].fill(99), "'power'"),
    ],
)
def test_what_no_run_can_have_saved_is_named(
    name: str, change: Callable[[dict[str, Any]], object], told: str, run: Path, tmp_path: Path
) -> None:
    tree = checkpoint.find_and_load(run)[1]
    change(tree)
    checkpoint.save_numbered(tmp_path, 9, tree, keep=2)
    with pytest.raises(CheckpointError, match=told):
        reopen(tmp_path, lambda config: config, trust=False)


def test_an_older_checkpoint_is_taken_where_the_newest_does_not_fit_its_settings(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = checkpoint.find_and_load(run)[1]
    checkpoint.save_numbered(tmp_path, 1, tree, keep=3)
    checkpoint.save_numbered(tmp_path, 2, tree | {"torch_rng": torch.zeros(3)}, keep=3)
    checkpoint.save_numbered(tmp_path, 3, tree | {"agent": {}}, keep=3)
    assert load_agent(tmp_path, CPU).path.name == "update-000000002.safetensors", "which plays"
    assert resume(tmp_path, "--total-frames", str(3 * FRAMES_PER_UPDATE)) == 0
    said = capsys.readouterr().out
    assert f"resumed from {tmp_path}/checkpoints/update-000000001.safetensors" in said
    assert said.count("set aside") == 2
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


# --- modules ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def evil(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run whose settings name a module that can be imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "evilmod.py").write_text("from helpers import wandering")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    tree = checkpoint.find_and_load(run)[1]
    tree["config"]["env"] = "evilmod:Wanderer-v0-stack2"
    checkpoint.save_numbered(tmp_path / "evil", 1, tree, keep=2)
    (tmp_path / "evil" / "config.yaml").write_text(Config().updated(tree["config"], "test").to_yaml())
    yield tmp_path / "evil"
    sys.modules.pop("evilmod", None)


@pytest.mark.parametrize("command", ["resume", "config", "init-from", "evaluate", "watch", "export"])
def test_no_file_imports_a_module(command: str, evil: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = ["--run-dir", str(tmp_path / "new")]
    status = {
        "resume": lambda: resume(evil),
        "config": lambda: cli.main(["--config", str(evil / "config.yaml"), *new]),
        "init-from": lambda: train("--init-from", str(evil), "--env", "recall", *new),
        "evaluate": lambda: evaluate_cli.main([str(evil)]),
        "watch": lambda: watch.main([str(evil)]),
        "export": lambda: export.main([str(evil), str(tmp_path / "x.safetensors")]),
    }[command]()
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.count("\n") == 1
    assert "evilmod" not in sys.modules
    assert "add --import evilmod" in captured.err or command == "init-from"


@pytest.mark.parametrize("flag", [["--import", "evilmod"], ["--env", "evilmod:Wanderer-v0-stack2"]])
def test_a_module_that_the_user_names_is_imported(
    flag: list[str], evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_cli.main([str(evil), *flag]) == 2  # its observations are others
    assert "does not fit environment" in capsys.readouterr().err
    assert "evilmod" in sys.modules


def test_the_commands_that_are_told_open_a_run_of_ones_own_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_run(tmp_path / "run", "--env", "helpers.wandering:Wanderer-v0")
    said = capsys.readouterr().out
    for command in ("rmc-watch", "rmc-evaluate", "rmc-train --resume"):
        assert next(line for line in said.splitlines() if f"  {command}" in line).endswith(
            " --import helpers.wandering"
        )


# --- what is restored ------------------------------------------------------------------------------------------------


def test_a_lane_whose_episode_ended_before_the_save_begins_one_after_it() -> None:
    def lanes(seed: int) -> Lanes:
        return Lanes(make_vector_env("memory-s7", 4), seed, CPU)

    before = lanes(0)
    while not (before.steps.terminated | before.steps.truncated).any():
        before.step(torch.zeros(4, dtype=torch.int64))
    after = lanes(9)
    after.set_state(before.get_state())
    action = torch.zeros(4, dtype=torch.int64)
    is_first = before.step(action).is_first
    assert is_first.any()
    assert torch.equal(after.step(action).is_first, is_first)


def test_lanes_that_start_anew_play_neither_what_they_have_nor_what_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = EVALUATION_SEED - FRAMES_PER_UPDATE
    new_run(tmp_path, "--env", "Wanderer-v0", "--seed", str(seed))
    seeds: list[int] = []
    original = Lanes.reset
    monkeypatch.setattr(Lanes, "reset", lambda lanes, seed: (seeds.append(seed), original(lanes, seed))[1])
    reopen(tmp_path, lambda config: config, trust=False)[0].close()
    assert seeds == [seed, seed_after(seed, FRAMES_PER_UPDATE)]
    assert seed_after(seed, FRAMES_PER_UPDATE) != seed_after(seed, 2 * FRAMES_PER_UPDATE)
    assert 2**31 <= min(seed_after(s, f) for s in range(40) for f in range(40)) < 2**32 - 2**20

    actor = make_actor(env="Wanderer-v0", seed=seed)
    seeds.clear()
    actor.set_state(actor.get_state() | {"sequence": 5})
    assert 2**31 <= seeds[0] < 2**32


# --- the folder ------------------------------------------------------------------------------------------------------


def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, resuming=False)
    with first, pytest.raises(ValueError, match="in use by another"):
        RunFolder(tmp_path, resuming=False)
    RunFolder(tmp_path, resuming=False).__exit__()
    assert first.path == tmp_path, "it is still there, but its lock is not"


def test_a_run_that_goes_on_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_run(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["frames"] == FRAMES_PER_UPDATE

    def interrupted(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("rmc_agents.train.on_policy.OnPolicy.update", interrupted)
    assert resume(tmp_path, "--total-frames", "4000") == 2
    assert not (tmp_path / "summary.json").exists()


def test_a_new_run_is_saved_after_its_first_update(tmp_path: Path) -> None:
    assert train("--run-dir", str(tmp_path), "--total-frames", str(3 * FRAMES_PER_UPDATE)) == 0
    assert [int(path.stem[7:]) for path in checkpoint.numbered(tmp_path)] == [3, 1]


def test_a_run_that_ended_before_its_first_checkpoint_is_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "a run"
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(checkpoint, "write_numbered", full)
        assert train("--run-dir", str(run_dir), "--total-frames", "400", "--log-every", "1e-9") == 2
    (run_dir / "notes.txt").write_text("mine")
    events = list((run_dir / "tensorboard").iterdir())
    assert events
    capsys.readouterr()
    assert resume(run_dir) == 2
    assert f"rmc-train --config '{run_dir}/config.yaml' --run-dir '{run_dir}'" in capsys.readouterr().err
    assert cli.main(["--config", str(run_dir / "config.yaml"), "--run-dir", str(run_dir), "--total-frames", "40"]) == 0
    assert not any(path.exists() for path in events), "which would mix with the new run's curve"
    assert (run_dir / "notes.txt").read_text() == "mine"


def test_a_chosen_checkpoint_goes_on_exactly_in_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--learning-rate-schedule", "constant", "--save-every", "1e-9", "--log-every", "1e-9"]
    flags += ["--keep-checkpoints", "9", "--total-frames", str(4 * FRAMES_PER_UPDATE)]
    assert train("--run-dir", str(tmp_path / "run"), *flags) == 0
    chosen = tmp_path / "run" / "checkpoints" / "update-000000002.safetensors"
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert resume(chosen) == 0
    branch = tmp_path / "run-update-000000002"
    assert f"resumed from {chosen} at 80 frames in a new folder, {branch}" in capsys.readouterr().out
    assert [int(path.stem[7:]) for path in checkpoint.numbered(branch)] == [4, 3, 2]
    assert_same(newest(branch), newest(tmp_path / "run"))
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    curve = EventAccumulator(str(branch / "tensorboard")).Reload().Scalars("losses/entropy")
    assert sorted({event.step for event in curve}) == [40, 80, 120, 160]  # files of one second are read in any order

    assert resume(chosen) == 2
    assert f"{branch} already holds a run; continue it with --resume {branch}" in capsys.readouterr().err
    assert resume(chosen, "--run-dir", str(tmp_path / "other"), "--total-frames", "120") == 0
    assert newest(tmp_path / "other")["updates"] == 3


# --- what is told ----------------------------------------------------------------------------------------------------


def test_what_differs_from_the_run_so_far_is_told_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--learning-rate", "1e-3", "--learning-rate-schedule", "linear"]
    assert train("--run-dir", str(tmp_path), "--total-frames", str(4 * FRAMES_PER_UPDATE), *flags) == 0
    capsys.readouterr()
    assert resume(tmp_path, "--total-frames", str(2 * FRAMES_PER_UPDATE)) == 0
    said = capsys.readouterr().out
    assert "nothing to train: 160 frames are trained, and total_frames is 80" in said
    assert "warning" not in said
    assert newest(tmp_path)["updates"] == 4

    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: 0.001", "learning_rate: 0.5"))
    assert resume(tmp_path, "--total-frames", str(5 * FRAMES_PER_UPDATE)) == 0
    said = capsys.readouterr().out
    assert f"warning: {config} has learning_rate 0.5, but the run continues with 0.001" in said
    assert said.count("warning") == said.count("\nwarning")
    jump = "the learning rate jumps from 0 to 0.0002: its linear schedule ends at total_frames, now 200 instead of 80"
    assert jump in said
    assert Config().updated_from_yaml(config).train.learning_rate == 0.001
