"""Policies that come with the project: exported from a run, opened by file and by name, shipped, not resumable."""

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import rmc_agents as rmc
from helpers.runs import refused, save_agent
from rmc_agents import pretrained
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import export, watch
from rmc_agents.evaluate.episodes import check_fits
from rmc_agents.runs import checkpoint
from rmc_agents.runs.saved import load_agent
from rmc_agents.stream import Lanes
from rmc_agents.train import cli as train_cli

ROOT = Path(__file__).parent.parent.parent
CPU = torch.device("cpu")
MAX_SHIPPED = 8_000_000  # bytes


def train(run_dir: Path, *flags: str) -> None:
    """A few updates on recall: enough for an agent that differs from a new one."""
    sizes = "--config recall --num-envs 4 --total-frames 240 --eval-episodes 0 --no-video"
    assert train_cli.main([*sizes.split(), "--run-dir", str(run_dir), *flags]) == 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny trained run."""
    path = tmp_path_factory.mktemp("trained") / "run"
    train(path)
    return path


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    """What rmc-export made of it."""
    path = run.parent / "little.safetensors"
    assert export.main([str(run), str(path), "--episodes", "10", "--seed", "7"]) == 0
    return path


@pytest.fixture
def by_name(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same as the package's only pretrained policy, `little`."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    monkeypatch.setattr(pretrained, "FOLDER", folder)
    return Path(shutil.copy(exported, folder))


def test_an_exported_agent_plays_as_the_runs_does(run: Path, exported: Path) -> None:
    before, after = load_agent(run, CPU), load_agent(exported, CPU)
    assert (after.config, after.spec, after.frames) == (before.config, before.spec, before.frames)
    weights, same = before.agent.state_dict(), after.agent.state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    lanes = Lanes(make_vector_env("recall", 5), 3, CPU)
    states = [saved.agent.initial_state(5) for saved in (before, after)]
    for _ in range(12):  # more than two episodes
        (output, states[0]), (again, states[1]) = (
            saved.agent.step(lanes.steps, state) for saved, state in zip((before, after), states, strict=True)
        )
        assert torch.equal(output.policy_logits, again.policy_logits)
        assert torch.equal(output.value, again.value)
        lanes.step(output.policy_logits.argmax(dim=-1))


def test_an_exported_file_holds_the_agent_and_its_provenance_only(run: Path, exported: Path, tmp_path: Path) -> None:
    assert checkpoint.load(exported).keys() == {"config", "spec", "frames", "agent", "provenance"}
    report = tmp_path / "report.json"
    assert evaluate_cli.main([str(run), "--episodes", "10", "--seed", "7", "--json", str(report)]) == 0
    measured, provenance = json.loads(report.read_text()), load_agent(exported, CPU).provenance
    assert provenance is not None
    assert (provenance.mean_return, provenance.ci95 and list(provenance.ci95)) == (
        measured["mean_return"],
        measured["ci95"],
    )
    assert (provenance.episodes, provenance.seed) == (10, 7)
    assert load_agent(run, CPU).provenance is None


@pytest.mark.slow
def test_answers_are_scored_as_rmc_evaluate_scores_them(tmp_path: Path) -> None:
    sizes = (
        "--env program-copy --algo supervised --core rnn --num-envs 4 --total-frames 400 --eval-episodes 0 --no-video"
    )
    assert train_cli.main([*sizes.split(), "--run-dir", str(tmp_path / "run")]) == 0
    out, report = tmp_path / "answers.safetensors", tmp_path / "report.json"
    assert export.main([str(tmp_path / "run"), str(out), "--episodes", "40"]) == 0
    assert evaluate_cli.main([str(out), "--episodes", "40", "--json", str(report)]) == 0
    saved, written = load_agent(out, CPU), json.loads(report.read_text())
    assert written["env"] == "program-copy (at_maxima=True)"
    assert saved.provenance is not None
    assert saved.provenance.mean_return == written["mean_return"]
    scores = rmc.evaluate(saved, episodes=40)  # at the maxima, and by the likeliest answers
    assert (scores.mean_return, scores.mean_length) == (written["mean_return"], written["mean_length"])
    assert rmc.Player(saved).deterministic


@pytest.mark.slow
def test_the_provenance_has_the_episodes_that_were_played(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(97, 107)) * 200)
    sizes = "--algo supervised --core rnn --num-envs 2 --unroll-length 5 --total-frames 20 --eval-episodes 0 --no-video"
    flags = ["--env", f"text:{tmp_path / 'text'}", *sizes.split(), "--run-dir", str(tmp_path / "run")]
    assert train_cli.main(flags) == 0
    out = tmp_path / "text.safetensors"
    assert export.main([str(tmp_path / "run"), str(out), "--episodes", "9"]) == 0
    provenance = load_agent(out, CPU).provenance
    assert provenance is not None
    assert provenance.episodes == 1  # the held-out part is one passage


@pytest.mark.parametrize(
    ("flags", "env"),
    [
        ([], "minipacman"),
        (["--env", "minipacman-hunt"], "minipacman-hunt"),
        (["--env-kwargs", "mode=rush"], "minipacman (mode=rush)"),
    ],
)
def test_the_provenance_names_the_environment_that_was_played(
    flags: list[str], env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_agent(tmp_path / "run", "minipacman")
    out = tmp_path / "out.safetensors"
    assert export.main([str(tmp_path / "run"), str(out), "--episodes", "2", "--max-steps", "5", *flags]) == 0
    assert f" on {env} over 2 episodes" in " ".join(capsys.readouterr().out.split())
    saved = load_agent(out, CPU)
    assert saved.provenance is not None
    assert (saved.provenance.env, saved.config.env.env) == (env, "minipacman")


def test_evaluate_opens_it_by_file_and_by_name(
    exported: Path, by_name: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = []
    for argv in ([str(exported)], ["--pretrained", "little"], ["little"]):
        target = tmp_path / "result.json"
        assert evaluate_cli.main([*argv, "--episodes", "10", "--seed", "7", "--json", str(target)]) == 0
        results.append(json.loads(target.read_text()))
        output = " ".join(capsys.readouterr().out.split())
        assert "over 10 episodes from seed 7 when it was saved" in output, "with one return and so without an interval"
    assert results[1].pop("checkpoint") == str(by_name)
    assert results[0].pop("checkpoint") == str(exported)
    assert results[0] == results[1]


@pytest.mark.parametrize(("flags", "is_said"), [([], True), (["--env-kwargs", "delay=3"], False)])
def test_the_score_when_it_was_saved_is_not_said_of_another_environment(
    flags: list[str], is_said: bool, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_cli.main([str(exported), "--episodes", "2", *flags]) == 0
    assert ("when it was saved" in capsys.readouterr().out) is is_said


def test_watch_records_into_the_current_folder(
    by_name: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--episodes", "2", "--seed", "5"]
    saved, target = save_agent(tmp_path / "maze", "minipacman"), by_name.with_name("maze.safetensors")
    assert export.main([str(saved), str(target), *flags]) == 0
    monkeypatch.chdir(tmp_path)
    assert watch.main(["--pretrained", "maze", "--max-steps", "4", "--seed", "5"]) == 0
    assert (tmp_path / "maze-seed5.mp4").stat().st_size > 1000
    assert "\nmaze-seed5.mp4" in capsys.readouterr().out
    assert sorted(path.name for path in by_name.parent.iterdir()) == ["little.safetensors", "maze.safetensors"]


@pytest.mark.parametrize("program", [evaluate_cli, watch])
def test_which_agent_is_said_once_and_by_a_name_that_exists(
    program: Any, by_name: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for argv, message in (
        (["litle"], "there is no checkpoint litle, nor a pretrained policy of that name; did you mean 'little'?"),
        (["--pretrained", "Litle"], "there is no pretrained policy 'Litle'; did you mean 'little'?"),
        (["--pretrained", "else"], "there is no pretrained policy 'else'; available: little"),
        ([by_name, "--pretrained", "little"], "expected a RUN or --pretrained NAME, got both"),
        ([], "expected a RUN or --pretrained NAME, got neither (pretrained policies: little)"),
    ):
        assert message in refused(capsys, program, *argv)


def test_a_damaged_policy_is_one_line(by_name: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = by_name.read_bytes()
    for damaged in (content[:-1] + bytes([content[-1] ^ 1]), content[:100], b""):
        by_name.write_bytes(damaged)
        assert "little.safetensors is damaged" in refused(capsys, evaluate_cli, "--pretrained", "little")


def test_an_exported_file_cannot_be_resumed(
    run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_a_run = tmp_path / "run" / checkpoint.FOLDER / "update-000000001.safetensors"
    in_a_run.parent.mkdir(parents=True)
    shutil.copy(exported, in_a_run)
    for path in (exported, tmp_path / "run"):
        line = refused(capsys, train_cli, "--resume", path)
        assert "holds only an agent" in line
        assert "cannot be resumed" in line


@pytest.mark.slow
@pytest.mark.parametrize("source", ["run", "file", "name"])
def test_training_begins_with_the_given_weights(
    source: str, run: Path, exported: Path, by_name: Path, tmp_path: Path
) -> None:
    given = {"run": str(run), "file": str(exported), "name": by_name.stem}[source]
    train(tmp_path / "on", "--init-from", given, "--learning-rate", "1e-12", "--seed", "9")
    before, after = load_agent(run, CPU), load_agent(tmp_path / "on", CPU)
    assert (after.config.run.init_from, after.frames) == (given, before.frames)
    expected = before.agent.state_dict()
    for name, weight in after.agent.state_dict().items():
        torch.testing.assert_close(weight, expected[name], atol=1e-7, rtol=1e-6)
    if source == "name":
        unused = ["--core", "rmc", "--hidden-size", "77"]  # no setting of an rmc, so it may differ
        train(tmp_path / "unused", "--init-from", given, *unused)
        by_name.unlink()  # a continued run no longer needs it
        assert train_cli.main(["--resume", str(tmp_path / "on"), "--total-frames", "480"]) == 0


def test_init_from_refuses_in_one_line(by_name: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["little", "--mem-slots", "3"], "its agent needs other settings: mem_slots 2 (got 3)"),
        (["little", "--env", "minipacman"], "does not fit environment 'minipacman'"),
        (["litle"], "no checkpoint litle, nor a pretrained policy of that name; did you mean 'little'?"),
        ([tmp_path], "holds no checkpoint"),
    ):
        assert message in refused(
            capsys, train_cli, "--config", "recall", "--run-dir", tmp_path / "new", "--init-from", *argv
        )
    assert not (tmp_path / "new").exists()


def test_export_refuses_in_one_line_and_leaves_files_alone(
    run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = load_agent(run, CPU).path
    content = newest.read_bytes()
    for argv, message in (
        ([run, tmp_path / "a.pt"], "ends in .safetensors"),
        ([run, tmp_path / "none" / "a.safetensors"], "there is no folder"),
        ([run, newest], "is the file to export"),
        ([tmp_path, tmp_path / "a.safetensors"], "holds no checkpoint"),
        ([run, tmp_path / "a.safetensors", "--episodes", "0"], "--episodes: expected at least 1"),
    ):
        assert message in refused(capsys, export, *argv)
    assert newest.read_bytes() == content
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", pretrained.names())
def test_shipped_policies_fit_their_environments(name: str) -> None:
    saved = load_agent(pretrained.find(name), CPU)
    check_fits(saved.spec, saved.config.env.env)
    assert saved.provenance is not None


def test_the_shipped_player_of_recall_remembers() -> None:
    saved = load_agent(pretrained.find("recall-rmc"), CPU)
    assert saved.provenance is not None
    assert saved.provenance.ci95 is not None
    low, high = saved.provenance.ci95
    found = rmc.evaluate(saved, episodes=saved.provenance.episodes, seed=saved.provenance.seed)
    assert 0.9 < low <= found.mean_return <= high


@pytest.mark.slow
def test_the_shipped_files_are_packed_and_small(tmp_path: Path) -> None:
    files = {f"rmc_agents/pretrained/{name}{pretrained.SUFFIX}" for name in pretrained.names()}
    assert files
    assert sum((ROOT / file).stat().st_size for file in files) < MAX_SHIPPED

    source = tmp_path / "source"  # a copy: building leaves folders behind
    for folder in ("rmc_agents", "envs", "train", "evaluate", "configs"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = "from setuptools import build_meta as b; b.build_wheel('..'); b.build_sdist('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    assert files <= set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        assert files <= {name.partition("/")[2] for name in packed.getnames()}
