"""rmc-train for users: exact resume, clean stops, a self-explanatory run folder, one-line errors."""

import io
import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from helpers.agents import before_update
from helpers.runs import (
    FRAMES_PER_UPDATE,
    QUIET,
    SMALL,
    assert_same,
    events_of,
    newest,
    resume,
    start_fork,
    train,
    wait_for_checkpoints,
)
from rmc_agents import command_line, configs
from rmc_agents.config import Config
from rmc_agents.runs.folder import FOLDER, RunFolder
from rmc_agents.train import cli
from rmc_agents.train.run import say_unused


@pytest.mark.parametrize(
    "flags",
    [
        ["--core", "rmc", "--algo", "ppo", "--ppo-minibatches", "2", "--optimizer", "muon"],
        ["--core", "lstm", "--algo", "a2c", "--optimizer", "adam"],
        ["--core", "none"],
    ],
    ids=" ".join,
)
def test_resumed_is_bitwise_uninterrupted(flags: list[str], tmp_path: Path) -> None:
    flags = [*flags, "--learning-rate-schedule", "constant"]
    assert train(*flags, "--run-dir", str(tmp_path / "whole"), "--total-frames", str(10 * FRAMES_PER_UPDATE)) == 0
    assert train(*flags, "--run-dir", str(tmp_path / "parts"), "--total-frames", str(5 * FRAMES_PER_UPDATE)) == 0
    assert resume(tmp_path / "parts", "--total-frames", str(10 * FRAMES_PER_UPDATE)) == 0
    whole, parts = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert whole["updates"] == 10
    assert_same(whole, parts)


@pytest.mark.slow
def test_resume_after_kill_is_exact(tmp_path: Path) -> None:
    flags = ["--run-dir", str(tmp_path / "killed"), "--save-every", "1e-9", "--total-frames", "1000000"]
    process = start_fork(tmp_path / "log", *flags, "--learning-rate-schedule", "constant")
    wait_for_checkpoints(tmp_path / "killed", 3, process)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    updates = newest(tmp_path / "killed")["updates"] + 5
    total = str(updates * FRAMES_PER_UPDATE)
    assert resume(tmp_path / "killed", "--total-frames", total) == 0
    flags = ["--run-dir", str(tmp_path / "whole"), "--learning-rate-schedule", "constant", "--total-frames", total]
    assert train(*flags) == 0
    assert_same(newest(tmp_path / "whole"), newest(tmp_path / "killed"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_finishes_the_update_saves_and_says_how_to_continue(
    number: signal.Signals,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    own = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
    request.addfinalizer(lambda: signal.signal(number, own))
    before_update(monkeypatch, 2, lambda: signal.raise_signal(number))
    before = signal.getsignal(number)
    assert train("--run-dir", str(tmp_path / "run"), "--total-frames", "1000000") == 128 + number
    assert signal.getsignal(number) == before
    captured = capsys.readouterr()
    assert f"rmc-train --resume {tmp_path / 'run'}" in captured.out.replace("\n", "")
    assert captured.err == ""
    assert newest(tmp_path / "run")["frames"] == 3 * FRAMES_PER_UPDATE
    monkeypatch.undo()
    assert resume(tmp_path / "run", "--total-frames", str(4 * FRAMES_PER_UPDATE)) == 0
    assert newest(tmp_path / "run")["frames"] == 4 * FRAMES_PER_UPDATE


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_run_whose_output_is_closed_is_saved(
    is_stopped: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its next line, or if it was stopped meanwhile: Ctrl-C also ends `| tee`. That the process then ends in silence
    is a test of all commands."""
    read, write = os.pipe()

    def close() -> None:
        os.close(read)
        if is_stopped:
            os.kill(os.getpid(), signal.SIGINT)

    before_update(monkeypatch, 2, close)
    with open(write, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        flags = ["--log-every", "1000" if is_stopped else "1e-9", "--total-frames", "1000000"]
        assert train(*flags, "--run-dir", str(tmp_path / "run")) == 128 + signal.SIGPIPE
    assert capsys.readouterr().err == ""
    assert newest(tmp_path / "run")["frames"] == 3 * FRAMES_PER_UPDATE


@pytest.mark.slow
def test_the_run_folder_explains_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = ["--env", "recall", "--no-video", "--eval-episodes", "3", "--total-frames", "400"]
    assert cli.main([*SMALL, *flags, "--run-dir", str(run_dir)]) == 0
    config = Config().updated_from_yaml(run_dir / "config.yaml")
    assert (config.env.num_envs, config.core.mem_slots) == (8, 3)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["frames"] == 400
    assert summary["updates"] == 10
    assert summary["frames_per_second"] == pytest.approx(400 / summary["seconds"])
    assert summary["evaluation"]["episodes"] == 3
    versions = json.loads((run_dir / "versions.json").read_text())
    assert versions["torch"] == torch.__version__.split("+")[0] or versions["torch"] == torch.__version__
    assert versions["seed"] == "0"
    events = events_of(run_dir)
    tags = {
        "charts/SPS",
        "time/time_elapsed",
        "charts/learning_rate",
        "charts/recurrent_state_norm",
        "losses/policy_loss",
    }
    tags |= {"losses/value_loss", "losses/entropy", "losses/explained_variance", "losses/grad_norm"}
    assert tags <= set(events.Tags()["scalars"])
    assert events.Scalars("losses/entropy")[-1].step == 400


@pytest.mark.slow
def test_seeds_repeat_and_differ(tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        assert train("--run-dir", str(tmp_path / name), "--total-frames", "80", "--seed", seed) == 0
    trees = {name: newest(tmp_path / name) for name in "abc"}
    assert_same(trees["a"], trees["b"])
    assert not torch.equal(trees["a"]["agent"]["policy.weight"], trees["c"]["agent"]["policy.weight"])


def test_yaml_settings_lose_to_flags(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("core: gru\nlearning_rate: 5e-4\nhidden_size: 12\n")
    flags = [*QUIET, "--config", str(tmp_path / "x.yaml"), "--run-dir", str(tmp_path / "run"), "--num-envs", "2"]
    assert cli.main([*flags, "--total-frames", "40", "--hidden-size", "10"]) == 0
    config = Config().updated_from_yaml(tmp_path / "run" / "config.yaml")
    assert (config.core.core, config.train.learning_rate, config.core.hidden_size) == ("gru", 5e-4, 10)


@pytest.mark.parametrize("name", configs.names())
def test_presets_are_valid(name: str) -> None:
    config = Config().updated_from_yaml(name)
    env, _, core = name.rpartition("-") if "-" in name else (name, "", "rmc")
    assert config.env.env == {"memory": "memory-s13-random", "text": "text:", "popgym": "popgym:"}.get(env, env)
    assert config.core.core == core


def test_flags_without_effect_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"core": "lstm", "mem-slots": 9, "hidden-size": 9, "clip-rho": 2, "total-frames": 1, "eval-episodes": 0}
    flags = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    assert cli.main(["--config", "recall", *QUIET, *flags, "--run-dir", str(tmp_path / "run")]) == 0
    expected = "warning: without effect under the other settings: mem_slots, clip_rho\n"
    assert capsys.readouterr().out.startswith(expected)


WITHOUT_EFFECT = {
    "lanes of actors": {"algo": "impala", "num_envs": 8},
    "a rate that does not fall": {"decay_start": 0.5, "learning_rate_schedule": "constant"},
    "no core": {"core": "none", "core_skip": False, "backend": "reference"},
    "an encoder of one's own": {"encoder": "mine", "encoder_sizes": [9]},
    "no V-trace": {"algo": "impala", "vtrace": False, "clip_rho": 0.5},
    "one gate": {"gate_style": "coupled", "input_bias": 1.0},
    "no gates": {"gate_style": "none", "input_bias": 1.0, "forget_bias": 3.0},
    "another policy": {"algo": "recurrent-ppo", "sb3_policy": "mlp", "core_skip": False, "core_gain": 0.5},
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_settings_without_effect(case: str) -> None:
    settings = WITHOUT_EFFECT[case]
    deciding = {"algo", "core", "encoder", "gate_style", "sb3_policy", "learning_rate_schedule", "vtrace"}
    console = Console(file=(written := io.StringIO()), width=1000)
    say_unused(console, Config(), Config().updated(settings, "test"))
    found = written.getvalue().removeprefix("warning: without effect under the other settings: ")
    assert set(found.strip().split(", ")) == settings.keys() - deciding


def test_the_minipacman_preset_spells_out_the_defaults_except_for_gates_slots_and_lanes() -> None:
    preset = Config().updated_from_yaml("minipacman-rmc").to_mapping()
    own = {"gate_style": "coupled", "slot_embedding": True, "core_gain": 1.0, "num_envs": 512, "learning_rate": 4.5e-3}
    assert preset == Config().to_mapping() | own


@pytest.mark.slow
def test_the_agent_learns_from_gymnasium_and_minigrid_environments(tmp_path: Path) -> None:
    for i, env in enumerate(("CartPole-v1", "MiniGrid-MemoryS7-v0", "minipacman-rush-full", "recall")):
        assert train("--env", env, "--run-dir", str(tmp_path / str(i)), "--total-frames", "40") == 0
        assert resume(tmp_path / str(i), "--total-frames", "80") == 0
        assert newest(tmp_path / str(i))["frames"] == 80


BAD = {
    "unknown environment": (["--env", "minipackman"], "did you mean 'minipacman'?"),
    "unknown core": (["--core", "lstmm"], "did you mean 'lstm'?"),
    "unknown module": (["--env", "nowhere:X-v0"], "importing nowhere failed"),
    "actions without bounds": (["--env", "helpers.zoo:Zoo-Unbounded-v0"], "actions: expected a Box with finite bounds"),
    "observations that cannot be encoded": (
        ["--env", "helpers.zoo:Zoo-Sequence-v0"],
        "observation 'b/1': expected num",
    ),
    "contradictory encoder": (["--encoder", "conv"], "use encoder mlp"),
    "missing config": (["--config", "nowhere.yaml"], "cannot read the config nowhere.yaml"),
    "preset without a task": (
        ["--config", "popgym-rmc"],
        "leaves the environment of popgym to you: add --env popgym:NAME",
    ),
    "module missing": (["--core", "nowhere:Core"], "expected one that is installed or in the current folder"),
    "preset misspelled": (["--config", "memory-lstn"], "there is no such file or preset; did you mean 'memory-lstm'?"),
    "backend that cannot": (
        ["--core", "rmc", "--num-blocks", "2", "--backend", "fused"],
        "an rmc with one block, got 2",
    ),
    "missing run": (["--resume", "nowhere"], "expected a run's folder"),
    "missing checkpoint": (
        ["--resume", "a/b.safetensors", "--run-dir", "c"],
        "there is no such checkpoint",
    ),
    "cuda": (["--device", "cuda"], "finds no such GPU"),
    "run-dir without a name": (["--run-dir", ""], "--run-dir: expected a path, got an empty one"),
    "run_dir without a name": (["--run_dir", ""], "--run_dir: expected a path, got an empty one"),
    "resume and run-dir": (["--resume", ".", "--run-dir", "b"], "leave out"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_status_2(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    monkeypatch.chdir(tmp_path)
    flags, expected = BAD[case]
    assert cli.main(flags) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert os.listdir(tmp_path) == [], "nothing is left behind"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])  # of the terminal, which tyro's boxes depend on
@pytest.mark.parametrize(
    "flags",
    [
        ["--learning-rat", "1"],
        ["--gate-style", "unitt"],
        ["--num-envs", "many"],
        ["--discount", "1.5"],
        ["--threads", "0"],
    ],
)
def test_bad_flags_exit_with_2(
    flags: list[str], encoding: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    with pytest.raises(SystemExit) as exit_info:
        cli.main(flags)
    assert exit_info.value.code == 2
    output = capsys.readouterr().err
    assert flags[0].strip("-") in output
    assert output.count("\n") == 1
    assert "---" not in output
    assert "--learning-rate" in output or flags[0] != "--learning-rat", "the near match"


def test_an_unknown_key_in_a_config_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, expected in (
        ("learning_rat: 1", "did you mean 'learning_rate'?"),
        ("- 1", "expected lines of 'name: value', got a list"),
        ("# core: rmc", "expected lines of 'name: value', got none"),
        ("a: [", "is not valid YAML"),
        ("core: lstmm", "did you mean 'lstm'?"),
    ):
        (tmp_path / "x.yaml").write_text(text)
        assert cli.main(["--config", str(tmp_path / "x.yaml")]) == 2
        assert expected in capsys.readouterr().err


def test_settings_written_by_hand_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("env: recall  # mine\n", "[not, settings"):
        (tmp_path / "config.yaml").write_text(text)
        assert train("--run-dir", str(tmp_path), "--total-frames", "40") == 2
        assert "config.yaml would be replaced by the run's own config.yaml" in capsys.readouterr().err
        assert (tmp_path / "config.yaml").read_text() == text
    (tmp_path / "config.yaml").write_text(Config().to_yaml())  # as rmc-compare writes it
    assert train("--run-dir", str(tmp_path), "--total-frames", "40") == 0


@pytest.mark.slow
def test_a_run_folder_is_not_overwritten_nor_shared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    assert train("--run-dir", str(run_dir), "--total-frames", "40") == 0
    with RunFolder(run_dir, resuming=True):  # as another process would
        assert resume(run_dir) == 2
    assert "in use by another training; wait for it" in capsys.readouterr().err
    assert train("--run-dir", str(run_dir)) == 2
    assert "already holds a run" in capsys.readouterr().err
    (run_dir / FOLDER).rename(tmp_path / "moved")
    assert train("--run-dir", str(run_dir)) == resume(run_dir) == 2
    errors = capsys.readouterr().err
    assert f"{run_dir} already holds summary.json of a run without checkpoints" in errors
    assert f"it holds a run, but no checkpoints in {run_dir / FOLDER}" in errors
    assert (run_dir / "summary.json").exists()
    (tmp_path / "moved").rename(run_dir / FOLDER)
    assert resume(run_dir, "--core", "lstm", "--learning-rate", "0.1") == 2
    assert "cannot change core, learning_rate" in capsys.readouterr().err
    assert resume(run_dir, "--total-frames", "30") == 0
    assert Config().updated_from_yaml(run_dir / "config.yaml").train.total_frames == 40, "what it was trained with"
    assert resume(run_dir, "--backend", "reference", "--total-frames", "80") == 0
    assert "the backend is reference instead of auto: unless both select the same one" in capsys.readouterr().out


def test_a_preset_is_not_taken_for_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--config", str(tmp_path / "recall.yaml")]) == 2
    assert "cannot read the config" in capsys.readouterr().err


def test_impossible_sizes_and_divergence_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--run-dir", str(tmp_path / "a"), "--core", "lstm", "--hidden-size", "1000000000") == 2
    assert "not enough memory" in capsys.readouterr().err

    def fail() -> int:
        raise RuntimeError("its data is not allocated yet")

    with pytest.raises(RuntimeError, match="not allocated yet"):  # a bug, not the sizes
        command_line.run("rmc-train", fail)
    assert train("--run-dir", str(tmp_path / "b"), "--learning-rate", "1e15", "--total-frames", "400") == 2
    assert "diverged" in capsys.readouterr().err


@pytest.mark.slow
def test_resuming_keeps_the_curve_whole(tmp_path: Path) -> None:
    assert train("--run-dir", str(tmp_path / "run"), "--total-frames", "200", "--log-every", "1e-9") == 0
    assert resume(tmp_path / "run", "--total-frames", "400") == 0
    events = events_of(tmp_path / "run")
    steps = sorted(point.step for point in events.Scalars("losses/entropy"))  # two files of one second have no order
    assert steps == list(range(40, 401, 40))


def test_an_unwritable_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert train("--run-dir", str(tmp_path / "file" / "run")) == 2
    assert "Not a directory" in capsys.readouterr().err
