"""Resuming a run: what files must not do, what is restored, and the notes for the user."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from gymnasium.vector import SyncVectorEnv

from helpers import wandering  # noqa: F401  # registers an environment whose state cannot be saved
from helpers.actors import make_actor
from helpers.runs import (
    FRAMES_PER_UPDATE,
    assert_same,
    events_of,
    find_and_load,
    new_run,
    newest,
    resume,
    save_agent,
    train,
)
from rmc_agents.config import Config
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.recall import RecallEnv
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import export, watch
from rmc_agents.evaluate.statistics import EVALUATION_SEED
from rmc_agents.runs import checkpoint, folder
from rmc_agents.runs.folder import RunFolder, check_resumable
from rmc_agents.stream import Lanes, seed_after
from rmc_agents.train import cli
from rmc_agents.train.resuming import reopen

CPU = torch.device("cpu")
TINY = {"num_envs": 2, "unroll_length": 3, "encoder_sizes": [16], "mem_slots": 3, "head_size": 4, "hidden_size": 16}


# --- modules ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def evil(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run whose settings name a module that can be imported."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "evil-mod.py").write_text("from helpers import wandering")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    tree = find_and_load(run)[1]
    tree["config"]["env"] = "evil-mod:Wanderer-v0-stack2"
    (tmp_path / "evil").mkdir()
    checkpoint.write_numbered(tmp_path / "evil", 1, checkpoint.to_bytes(tree), keep=2)
    (tmp_path / "evil" / "config.yaml").write_text(Config().updated(tree["config"], "test").to_yaml())
    yield tmp_path / "evil"
    sys.modules.pop("evil-mod", None)


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
    assert "evil-mod" not in sys.modules
    assert "add --import evil-mod" in captured.err or command == "init-from"


@pytest.mark.parametrize("flag", [["--import", "evil-mod"], ["--env", "evil-mod:Wanderer-v0-stack2"]])
def test_a_module_that_the_user_names_is_imported(
    flag: list[str], evil: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_cli.main([str(evil), *flag]) == 2  # its observations are others
    assert "does not fit environment" in capsys.readouterr().err
    assert "evil-mod" in sys.modules


def test_the_suggested_commands_open_a_run_in_a_custom_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new_run(tmp_path / "run", "--env", "helpers.wandering:Wanderer-v0")
    output = capsys.readouterr().out
    for command in ("rmc-watch", "rmc-evaluate", "rmc-train --resume"):
        assert next(line for line in output.splitlines() if f"  {command}" in line).endswith(
            " --import helpers.wandering"
        )


# --- what is restored ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", ["memory-s7", "recall"])
def test_restored_lanes_continue_where_they_were(env: str) -> None:
    """Also lanes whose episode ended before the save: they begin one after it."""

    generator = torch.Generator().manual_seed(0)

    def lanes(seed: int) -> Lanes:
        return Lanes(make_vector_env(env, 4), seed, CPU)

    before = lanes(0)
    while not (before.steps.terminated | before.steps.truncated).any():
        before.step(torch.zeros(4, dtype=torch.int64))
    for seed in range(60):
        after = lanes(seed)
        after.set_state(before.get_state())
        action = (torch.rand(4, generator=generator) < 0.15).long()
        assert_same(after.step(action)._asdict(), before.step(action)._asdict())


def test_a_step_that_some_lanes_have_taken_is_not_saved() -> None:
    class Failing(RecallEnv):
        fails = False

        def step(self, action: int) -> Any:
            if self.fails:
                raise OSError("no connection")
            return super().step(action)

    lanes = Lanes(SyncVectorEnv([RecallEnv, Failing]), 0, CPU)
    assert lanes.get_state() is None  # what gymnasium steps cannot be saved
    lanes.env.get_state = dict  # type: ignore[attr-defined]
    assert lanes.get_state() is not None
    Failing.fails = True
    with pytest.raises(EnvError, match="no connection"):
        lanes.step(torch.zeros(2, dtype=torch.int64))
    assert lanes.get_state() is None
    Failing.fails = False
    lanes.reset(0)
    assert lanes.get_state() is not None


def test_lanes_that_restart_play_neither_what_they_have_nor_what_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = EVALUATION_SEED - FRAMES_PER_UPDATE
    new_run(tmp_path, "--env", "Wanderer-v0", "--seed", str(seed))
    seeds: list[int] = []
    original = Lanes.reset
    monkeypatch.setattr(Lanes, "reset", lambda lanes, seed: (seeds.append(seed), original(lanes, seed))[1])
    reopen(tmp_path, lambda config: config, trust=False)[0].close()
    assert seeds == [seed_after(seed, 0), seed_after(seed, FRAMES_PER_UPDATE)]
    assert seed_after(seed, FRAMES_PER_UPDATE) != seed_after(seed, 2 * FRAMES_PER_UPDATE)
    assert 2**31 <= min(seed_after(s, f) for s in range(40) for f in range(40)) < 2**32 - 2**20

    actor = make_actor(env="Wanderer-v0", seed=seed)
    seeds.clear()
    actor.set_state(actor.get_state() | {"sequence": 5})
    assert 2**31 <= seeds[0] < 2**32


# --- the folder ------------------------------------------------------------------------------------------------------


def test_a_summary_that_cannot_be_read_has_no_results(tmp_path: Path) -> None:
    with RunFolder(tmp_path, resuming=False) as run:
        os.mkfifo(tmp_path / folder.SUMMARY)
        assert run.read_results() == {}, "reading a pipe would block"
        (tmp_path / folder.SUMMARY).unlink()
        (tmp_path / folder.SUMMARY).write_text("[" * 100_000)
        assert run.read_results() == {}


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints", "videos/agent.mp4"])
def test_a_link_out_of_a_run_is_not_written_through(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    save_agent(run)
    (run / "videos").mkdir()
    (run / "newest").symlink_to(run / "checkpoints")
    RunFolder(run, resuming=True).__exit__()
    with suppress(FileNotFoundError):
        (run / name).rename(tmp_path / "own")
    (run / name).symlink_to(tmp_path / "own")
    with pytest.raises(ValueError, match=rf"{name} is a link to .*own, which would be written to"):
        RunFolder(run, resuming=True)


def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, resuming=False)
    with first, pytest.raises(ValueError, match="in use by another"):
        RunFolder(tmp_path, resuming=False)
    RunFolder(tmp_path, resuming=False).__exit__()
    assert first.path == tmp_path, "it is still there, but its lock is not"


def test_a_glance_at_the_folder_by_another_process_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "SECONDS_TO_LOOK", 60)
    glance = FileLock(tmp_path / ".lock")
    glance.acquire()
    with ThreadPoolExecutor(1) as other:
        made = other.submit(RunFolder, tmp_path, resuming=False)
        with pytest.raises(TimeoutError):
            made.result(timeout=0.2)
        glance.release()
        other.submit(made.result().__exit__).result()


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected a folder's name in UTF-8, got '.*udce4'"):
        RunFolder(tmp_path / "\udce4", resuming=False)
    assert not list(tmp_path.iterdir())


def test_a_removed_folder_hides_no_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", resuming=False)
    shutil.rmtree(folder.path)
    folder.__exit__(KeyError)  # raises nothing that would replace the error


def test_a_run_that_continues_is_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.slow
def test_a_run_that_ended_before_its_first_checkpoint_is_begun_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "a run"
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(checkpoint, "write_numbered", full)
        assert train("--run-dir", str(run_dir), "--total-frames", "400", "--log-every", "1e-9") == 2
    (run_dir / ".notes.20261130.md").write_text("mine")
    (run_dir / ".best.0123abcd.safetensors").touch()  # as a process leaves that was killed
    events = list((run_dir / "tensorboard").iterdir())
    assert events
    capsys.readouterr()
    assert resume(run_dir) == 2
    assert f"rmc-train --config '{run_dir}/config.yaml' --run-dir '{run_dir}'" in capsys.readouterr().err
    assert cli.main(["--config", str(run_dir / "config.yaml"), "--run-dir", str(run_dir), "--total-frames", "40"]) == 0
    assert not any(path.exists() for path in events), "which would mix with the new run's curve"
    assert (run_dir / ".notes.20261130.md").read_text() == "mine"
    assert not (run_dir / ".best.0123abcd.safetensors").exists()


@pytest.mark.slow
def test_a_chosen_checkpoint_continues_exactly_in_a_new_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--decay-start", "0.9", "--save-every", "1e-9", "--log-every", "1e-9"]
    flags += ["--keep-checkpoints", "9", "--total-frames", str(4 * FRAMES_PER_UPDATE)]
    assert train("--run-dir", str(tmp_path / "run"), *flags) == 0
    chosen = tmp_path / "run" / "checkpoints" / "update-000000002.safetensors"
    (tmp_path / "run" / "tensorboard").chmod(0o555)
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert resume(chosen) == 0
    branch = tmp_path / "run-update-000000002"
    assert f"resumed from {chosen} at 80 frames in a new folder, {branch}" in capsys.readouterr().out
    assert [int(path.stem[7:]) for path in checkpoint.numbered(branch)] == [4, 3, 2]
    assert_same(newest(branch), newest(tmp_path / "run"))
    assert (branch / "tensorboard").stat().st_mode & 0o200, "the curve's copy can be written, though the run's cannot"
    assert before == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    above = ["--run-dir", str(tmp_path)]  # a folder above the run is another one, too
    assert cli.main(["--resume", str(chosen), *above]) == 0
    assert f"at 80 frames in a new folder, {tmp_path}" in capsys.readouterr().out
    curve = events_of(branch).Scalars("losses/entropy")
    assert sorted({event.step for event in curve}) == [40, 80, 120, 160]  # files of one second are read in any order

    assert resume(chosen) == 2
    assert (
        f"{branch} already holds a run; continue it (rmc-train --resume {branch}, rmc.resume)"
        in capsys.readouterr().err
    )
    assert resume(chosen, "--run-dir", str(tmp_path / "other"), "--total-frames", "120") == 0
    assert newest(tmp_path / "other")["updates"] == 3
    assert "learning rate jumps" not in capsys.readouterr().out, "it has not begun to decay"


def test_what_is_not_evaluated_again_keeps_its_evaluation(tmp_path: Path) -> None:
    flags = ["--total-frames", str(FRAMES_PER_UPDATE)]
    assert train("--run-dir", str(tmp_path), *flags, "--eval-episodes", "2") == 0
    evaluation = json.loads((tmp_path / "summary.json").read_text())["evaluation"]
    assert evaluation["episodes"] == 2
    assert resume(tmp_path, *flags, "--eval-episodes", "0") == 0
    assert json.loads((tmp_path / "summary.json").read_text())["evaluation"] == evaluation
    assert resume(tmp_path, "--total-frames", str(2 * FRAMES_PER_UPDATE), "--eval-episodes", "0") == 0
    assert json.loads((tmp_path / "summary.json").read_text())["evaluation"] is None, "of other weights"


# --- notes for the user ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_differs_from_the_run_so_far_is_reported_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--learning-rate", "1e-3", "--learning-rate-schedule", "linear"]
    assert train("--run-dir", str(tmp_path), "--total-frames", str(4 * FRAMES_PER_UPDATE), *flags) == 0
    capsys.readouterr()
    assert resume(tmp_path, "--total-frames", str(2 * FRAMES_PER_UPDATE)) == 0
    output = capsys.readouterr().out
    assert "nothing to train: 160 frames are trained, and total_frames is 160" in output
    assert "warning" not in output
    assert newest(tmp_path)["updates"] == 4

    config = tmp_path / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate: 0.001", "learning_rate: 0.5"))
    assert resume(tmp_path, "--total-frames", str(5 * FRAMES_PER_UPDATE)) == 0
    output = capsys.readouterr().out
    assert f"warning: {config} has learning_rate 0.5, but the run continues with 0.001" in output
    assert output.count("warning") == output.count("\nwarning")
    jump = "the learning rate jumps from 0 to 0.0002: its linear schedule ends at total_frames, now 200 instead of 160"
    assert jump in output
    assert Config().updated_from_yaml(config).train.learning_rate == 0.001


def test_the_start_again_of_a_run_without_checkpoints_imports_its_own_parts(tmp_path: Path) -> None:
    config = Config().updated({"core": "mine:Decay", "env": "recall"}, "test")
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    with pytest.raises(ValueError, match=r"start it again with: .*config.yaml --run-dir .* --import mine:Decay$"):
        check_resumable(tmp_path)
