"""The commands that evaluate and record: what they write, and one line for bad input."""

import json
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from helpers import wandering  # noqa: F401  # registers an environment that cannot render
from helpers.runs import refused, save_agent
from rmc_agents import evaluate, load, record_video
from rmc_agents.config import EnvConfig
from rmc_agents.evaluate import cli, watch
from rmc_agents.evaluate.episodes import PlaySettings, UniformPolicy, env_spec, evaluate_beside_random
from rmc_agents.evaluate.progress import shown, status
from rmc_agents.evaluate.tables import print_result
from rmc_agents.runs.texts import keep_text

CPU = torch.device("cpu")


def test_command_writes_what_it_measures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = save_agent(tmp_path), tmp_path / "evaluation.json"
    assert cli.main([str(tmp_path), "--episodes", "12", "--seed", "5", "--json", str(target)]) == 0
    result = json.loads(target.read_text())
    keys = {"mean_return", "ci95", "median", "min", "max", "mean_length", "episodes", "random_mean_return"}
    assert keys | {"success_rate", "checkpoint", "frames", "seed"} <= result.keys()
    assert (result["episodes"], result["frames"], result["checkpoint"]) == (12, 1200, str(path))
    assert "uniform random" in capsys.readouterr().out
    assert cli.main([str(path), "--episodes", "12", "--seed", "5", "--json", str(target)]) == 0
    assert json.loads(target.read_text()) == result


def test_a_text_that_has_changed_since_the_training_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is held out of it now may have been trained on."""
    run, text, other = tmp_path / "run", tmp_path / "text", tmp_path / "other"
    for file in (text, other):
        file.write_bytes(bytes(range(100)))
    save_agent(run, f"text:{text}")
    keep_text(EnvConfig(env=f"text:{text}"), run)
    assert cli.main([str(run), "--episodes", "1", "--max-steps", "5"]) == 0
    text.write_bytes(bytes(range(50, 100)) + bytes(range(50)))
    capsys.readouterr()
    other_name = f"text-heldout:{tmp_path}/te?t"
    for flags in ([], ["--env", f"text-heldout:{text}"], ["--env", other_name], ["--ablate-memory"]):
        assert f"is not the one that the run in {run} has read; put that back, or name" in refused(
            capsys, cli, run, *flags
        )
    with pytest.raises(ValueError, match="what is held out now may have been trained on"):
        evaluate(load(run), episodes=1)
    for flags in (["--env", f"text:{other}", "--episodes", "1"], ["--sample", "1"]):
        assert cli.main([str(run), *flags]) == 0


@pytest.mark.parametrize(
    ("name", "flags", "most"),
    [
        ("text", ["--env-kwargs", "held_out=0.1", "steps=5"], "0.05"),
        ("text", ["--env-kwargs", "steps=5"], "0.05"),
        ("text-all", ["--env-kwargs", "part=heldout"], "0.0"),
    ],
)
def test_no_more_of_a_text_is_evaluated_than_its_training_held_out(
    name: str, flags: list[str], most: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = tmp_path / "run", tmp_path / "text"
    text.write_bytes(bytes(range(200)))
    save_agent(run, f"{name}:{text}", env_kwargs={"held_out": 0.05})
    assert f"held_out: expected at most {most}, as in the training of" in refused(capsys, cli, run, *flags)
    assert cli.main([str(run), "--episodes", "1", "--env-kwargs", "held_out=0.05", "steps=5"]) == 0


def test_evaluate_is_plain_json() -> None:
    result = evaluate_beside_random(UniformPolicy(env_spec("recall")), "recall", 30, PlaySettings(0, CPU))
    assert json.loads(json.dumps(result, allow_nan=False))["mean_return"] == result["random_mean_return"]


def test_a_name_with_brackets_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluate_beside_random(UniformPolicy(env_spec("recall")), "recall", 2, PlaySettings(0, CPU))
    named = {"env": "text:[/b].txt", "core": "none", "frames": 0, "checkpoint": "[/b]"}
    print_result(result | named, Console(width=200))
    assert "text:[/b].txt · none" in capsys.readouterr().out
    with shown(Console(force_terminal=True, file=StringIO()), "playing [/b]", 2):
        pass


def test_a_notebook_is_not_asked_for_ipywidgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich asks from a thread, a moment after its status begins."""
    console = Console(force_jupyter=True, file=StringIO())
    monkeypatch.setattr(console, "status", pytest.fail)
    with status(console, "recording") as show:
        show("recording: 1 s")


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, foreign, damaged = tmp_path / "run", tmp_path / "foreign", tmp_path / "damaged.safetensors"
    (program := tmp_path / "policy.onnx").write_bytes(b"made by rmc-export")
    saved = save_agent(run)
    foreign.write_text("no checkpoint")
    content = bytearray(saved.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    for argv, message in (
        ([tmp_path / "none"], "there is no checkpoint"),
        ([tmp_path], "holds no checkpoint"),
        ([foreign], "not a checkpoint"),
        ([damaged], "is damaged"),
        ([program], "is a program for other runtimes"),
        ([run, "--json", tmp_path], "is a folder"),
        ([run, "--json", tmp_path / "none" / "x.json"], "there is no folder"),
        ([run, "--env", "minipacman"], "does not fit environment 'minipacman'"),
        ([run, "--env", "minipackman"], "did you mean 'minipacman'"),
        ([run, "--episodes", "0"], "--episodes: expected at least 1"),
        ([run, "--max-steps", "0"], "--max-steps: expected at least 1"),
        ([run, "--seed", "-1"], "--seed: expected at least 0"),
        ([run, "--seed", str(2**64)], "--seed: expected less than 4,294,967,296"),
        ([run, "--sample", "9", "--json", tmp_path / "x.json"], "--json: has no effect with --sample"),
        ([run, "--sample", "9", "--episodes", "5"], "--episodes: has no effect with --sample"),
        ([run, "--sample", "9", "--max-steps", "5"], "--max-steps: has no effect with --sample"),
        ([run, "--sample", "9", "--jobs", "2"], "--jobs: has no effect with --sample"),
        ([run, "--sample", "0"], "--sample: expected at least 1, got 0"),
        ([run, "--prompt", "It was"], "--prompt: has no effect without --sample N"),
        ([run, "--windows", "4"], "--windows: has no effect without --ablate-memory"),
        (
            [run, "--env-kwargs", "a=1", "--env-kwargs", "b=2"],
            "--env-kwargs: expected once, followed by all its values",
        ),
    ):
        line = refused(capsys, cli, *argv)
        assert message in line
        assert line.startswith("rmc-evaluate: ")
    assert "--bogus" in refused(capsys, cli, run, "--bogus")
    assert ".mp4, .gif, .html or .png" in refused(capsys, watch, run, "--out", tmp_path / "a.avi")


def test_watch_records_into_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_agent(tmp_path, "minipacman")
    assert watch.main([str(tmp_path), "--max-steps", "5", "--seed", "4"]) == 0
    assert (tmp_path / "videos" / "update-000000003-seed4.mp4").stat().st_size > 1000
    output = capsys.readouterr().out
    assert "seed 4: return" in output
    assert "update-000000003-seed4.mp4" in output


def test_options_of_a_video_are_refused_without_effect_or_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in ("html", "png"):
        line = refused(capsys, watch, "recall-rmc", "--out", str(tmp_path / f"x.{suffix}"), "--fps", "3")
        assert "--fps: has no effect without a video" in line
    for scale in (0, "x"):
        with pytest.raises(ValueError, match="reward_scale: expected a number above 0, got"):
            record_video(load("recall-rmc"), None, tmp_path / "x.gif", reward_scale=scale)
    assert not list(tmp_path.iterdir())
