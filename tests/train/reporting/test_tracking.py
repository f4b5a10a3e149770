"""Trackers: they receive what TensorBoard receives, are imported only on request, and cannot end a run."""

import io
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import rmc_agents as rmc
from helpers.runs import refused
from rmc_agents import plugins
from rmc_agents.train import cli
from rmc_agents.train.run import train

SETTINGS = {"env": "recall", "core": "lstm", "hidden_size": 8, "encoder_sizes": [8], "num_envs": 4, "unroll_length": 5}
SETTINGS |= {"total_frames": 40, "eval_every": 20, "eval_episodes": 2, "video": False}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name.replace('_', '-')}", str(value).strip("[]"))]
FLAGS = [*FLAGS[: FLAGS.index("--video")], "--no-video"]


class Notebook:
    """Records its calls."""

    made: list["Notebook"] = []  # noqa: RUF012

    def __init__(self, run_dir: Path, settings: dict[str, Any]) -> None:
        self.run_dir, self.settings = run_dir, settings
        self.logged: dict[int, dict[str, float]] = {}
        self.finished: list[Any] = []
        Notebook.made.append(self)

    def log(self, scalars: Mapping[str, float], frames: int) -> None:
        self.logged.setdefault(frames, {}).update(scalars)

    def finish(self, scores: Mapping[str, float] | None, video: Path | None) -> None:
        self.finished.append((scores, video))


class Broken(Notebook):
    """Fails at the second point."""

    def log(self, scalars: Mapping[str, float], frames: int) -> None:
        if self.logged:
            raise RuntimeError("no\nconnection")
        super().log(scalars, frames)


def train_with(track: Any, run_dir: Path, **settings: Any) -> tuple[Notebook, str]:
    out = io.StringIO()
    train(SETTINGS | settings, run_dir=run_dir, track=track, console=Console(file=out))
    return Notebook.made[-1], out.getvalue()


def test_a_tracker_receives_what_tensorboard_is(tmp_path: Path) -> None:
    notebook, _ = train_with(Notebook, tmp_path / "run", video=True, log_every=1e-9)
    assert notebook.run_dir == tmp_path / "run"
    assert notebook.settings["hidden_size"] == 8
    assert notebook.logged.keys() == {20, 40}
    assert {"losses/entropy", "charts/SPS", "evaluation/return", "evaluation/success_rate"} <= notebook.logged[
        20
    ].keys()
    ((scores, video),) = notebook.finished
    assert {"final/return", "final/best_return", "final/success_rate", "final/SPS"} == scores.keys()
    assert video.is_file()


def test_a_tracker_that_fails_ends_no_run(tmp_path: Path) -> None:
    notebook, output = train_with(Broken, tmp_path / "run")
    assert output.count("--track Broken failed, and the run continues without it: RuntimeError: no connection\n") == 1
    assert notebook.finished == []
    with pytest.raises(ValueError, match="--track Unmade: KeyError: 'no account'"):
        train_with(type("Unmade", (), {"__init__": lambda *_: {}["no account"]}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_run_that_fails_says_so_to_its_tracker(tmp_path: Path) -> None:
    def fail(progress: object) -> bool:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(SETTINGS, run_dir=tmp_path / "run", track=Notebook, callback=fail, console=Console(quiet=True))
    assert Notebook.made[-1].finished == [(None, None)]


def test_a_custom_tracker_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tracker.py").write_text(
        "class Mine:\n"
        "    def __init__(self, run_dir, settings): self.file = open('tracked', 'w')\n"
        "    def log(self, scalars, frames): print(frames, file=self.file)\n"
        "    def finish(self, scores, video): self.file.close()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert cli.main([*FLAGS, "--run-dir", "run", "--track", "my_tracker:Mine"]) == 0
    assert (tmp_path / "tracked").read_text().split() == ["20", "40", "40"]
    assert cli.main(["--resume", "run", "--total-frames", "60", "--track", "my_tracker:Mine"]) == 0
    assert (tmp_path / "tracked").read_text().split() == ["60", "60"]
    plugins.load([])  # as in a process that has not named the module
    rmc.resume("run", {"total_frames": 80}, track="my_tracker:Mine", console=Console(quiet=True))
    assert (tmp_path / "tracked").read_text().split() == ["80", "80"]


@pytest.fixture
def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The used part of wandb, as a module that records its calls."""
    seen = SimpleNamespace(inits=[], logged=[], summary={}, exit_codes=[])
    run = SimpleNamespace(id="id-1", define_metric=lambda *_, **__: None, log=seen.logged.append, summary=seen.summary)
    run.finish = lambda *, exit_code: seen.exit_codes.append(exit_code)
    module = ModuleType("wandb")
    module.init = lambda **how: seen.inits.append(how) or run  # type: ignore[attr-defined]
    module.Video = lambda path, format: f"video {path} {format}"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setattr(plugins, "is_installed", lambda name: True)
    return seen


@pytest.mark.slow
def test_wandb(tmp_path: Path, fake_wandb: SimpleNamespace) -> None:
    run_dir = tmp_path / "my-run"
    train(SETTINGS | {"video": True}, run_dir=run_dir, track="wandb", console=Console(quiet=True))
    (how,) = fake_wandb.inits
    assert (how["project"], how["name"], how["dir"], how["id"]) == ("rmc-agents", "my-run", str(run_dir), None)
    assert how["config"]["total_frames"] == 40
    assert [entry["frames"] for entry in fake_wandb.logged if "evaluation/return" in entry] == [20, 40]
    assert fake_wandb.logged[-1] == {"video": f"video {next(run_dir.glob('videos/*.mp4'))} mp4"}
    assert "final/return" in fake_wandb.summary
    assert fake_wandb.exit_codes == [0]

    flags = ["--resume", str(run_dir), "--total-frames", "60", "--no-video", "--track", "wandb"]
    assert cli.main(flags) == 0
    assert fake_wandb.inits[1]["id"] == "id-1"

    shutil.rmtree(run_dir / "checkpoints")  # as if it had died before the first
    for result in ("summary.json", "best.safetensors"):
        (run_dir / result).unlink(missing_ok=True)
    train(SETTINGS, run_dir=run_dir, track="wandb", console=Console(quiet=True))
    assert fake_wandb.inits[2]["id"] is None


def test_nothing_is_imported_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    train(SETTINGS, run_dir=tmp_path / "run", console=Console(quiet=True))
    with pytest.raises(ValueError, match="--track wandb: AssertionError: imported"):
        train(SETTINGS, run_dir=tmp_path / "other", track="wandb", console=Console(quiet=True))


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "is_installed", lambda name: False)
    for name, expected in (
        ("wandb", "--track wandb needs a package that is not installed: pip install wandb"),
        ("wanbd", "--track: expected wandb, or module:Class for a custom tracker, got 'wanbd'"),
        ("no_such_module:Mine", "importing no_such_module failed"),
    ):
        assert expected in refused(capsys, cli, *FLAGS, "--run-dir", tmp_path / "run", "--track", name)
    assert not (tmp_path / "run").exists()
