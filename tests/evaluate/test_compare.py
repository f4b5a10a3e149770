"""The comparison of agents: what it keeps of runs, how it continues after a kill, and what its table says."""

import json
import math
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from torch.utils.tensorboard import SummaryWriter

import rmc_agents as rmc
from helpers import forked
from helpers.runs import wait_for_checkpoints
from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.evaluate import compare, comparison, report, scheduler
from rmc_agents.evaluate.curves import MAX_POINTS, Curve, at_frames, read_curve, thinned
from rmc_agents.evaluate.plot import check_marks, plot
from rmc_agents.evaluate.scheduler import Job, Training
from rmc_agents.evaluate.statistics import Episodes, Statistics
from rmc_agents.runs.folder import TENSORBOARD, TIME_TAG, InUse, RunFolder
from rmc_agents.train.loop import Run

pytestmark = pytest.mark.usefixtures("forked_trainings")
COMMAND = f"{forked.TRAININGS}; from rmc_agents.evaluate.compare import main; sys.exit(main())"
SMALL = ["--episodes", "3", "--jobs", "2"]
FLAGS = ["--", "--num-envs", "8", "--unroll-length", "5", "--hidden-size", "16", "--encoder-sizes", "16"]


def make_run(agent: str = "a", seed: int = 0, score: float = 10.0, speed: float = 50.0, **settings: Any) -> Any:
    """A run over 6,000 frames whose return is frames / 1000."""
    frames = list(range(60, 6001, 60))
    points = comparison.Points(frames, [f / speed for f in frames], [f / 1000 for f in frames])
    statistics = Statistics.of(Episodes(np.full(5, score), np.full(5, 3), None, None, np.zeros(5, bool)))
    config = Config().updated(settings | {"seed": seed}, "test").to_mapping()
    return comparison.ComparedRun(agent, seed, ["abc"], {}, 1234, 6000, 6000 / speed, statistics, 2.5, config, points)


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """A Markdown table by its first column and its head."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]
    assert len({len(row) for row in cells}) == 1
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


def test_different_frames_are_shown() -> None:
    runs = [make_run("a"), make_run("b")]
    assert "frames" not in [column.header for column in report.overview(runs).columns]
    runs[1] = replace(runs[1], frames=60)
    (cells,) = [list(column.cells) for column in report.overview(runs).columns if column.header == "frames"]
    assert cells[:2] == ["6,000", "60"]


def test_table_known_values() -> None:
    runs = [make_run("fast", seed, score, 100.0) for seed, score in enumerate((10.0, 12.0, 14.0))]
    groups = comparison.grouped([*runs, make_run("slow", 4, 9.0), *(make_run("twice", seed, 9.0) for seed in (0, 1))])
    rows = rows_of(report.table(groups, frame_marks=[3000, 7000], minute_marks=[0.5, 1.5]))
    fast, slow, random = rows["fast"], rows["slow"], rows["uniform random play"]
    assert (fast["3000 frames"], fast["7000 frames"], fast["0.5 min"], fast["1.5 min"]) == ("3.0", "", "3.0", "")
    assert (slow["0.5 min"], slow["1.5 min"]) == ("1.5", "4.5")
    # Student's 0.975 quantile at 2 degrees of freedom is 4.3027; the standard error is 2 / sqrt(3).
    assert fast["mean (95 % interval)"] == "12.0 (7.0 to 17.0)"
    assert (fast["evaluation, by seed"], fast["frames/s"], fast["seconds"]) == ("10.0, 12.0, 14.0", "100", "60")
    assert (slow["mean (95 % interval)"], slow["parameters"]) == ("9.0", "1,234")
    assert random["mean (95 % interval)"] == "2.5"
    # The agent "twice" does not vary, so the difference has fast's standard error and degrees of freedom.
    difference = "difference from the first (95 % interval)"
    assert [row[difference] for row in rows.values()] == ["", "-3.0", "-3.0 (-8.0 to 2.0)", ""]
    assert difference not in report.table({"fast": runs})
    shown = report.overview([*runs, make_run("slow", 4, 9.0)]).columns
    assert [list(column.cells) for column in shown] == [
        ["fast", "slow", "uniform random play"],
        ["3", "1", ""],
        ["12.0 (7.0 to 17.0)", "9.0", "2.5"],
        ["", "-3.0", ""],
        ["100", "50", ""],
    ]


def test_a_published_comparison_of_an_earlier_version_is_read() -> None:
    assert len(comparison.read(Path(__file__).parents[2] / "benchmarks/results/learning-50M.json")) == 15


def test_agents_that_differ_in_more_than_the_seed_are_distinguished_and_no_seed_counts_twice() -> None:
    runs = [make_run(seed=1), make_run(seed=0), make_run(seed=1, score=99.0), make_run(seed=0, core="lstm")]
    groups = comparison.grouped(runs)
    assert list(groups) == ["a, core=rmc", "a, core=lstm"]
    assert [(run.seed, run.evaluation.mean_return) for run in groups["a, core=rmc"]] == [(0, 10.0), (1, 10.0)]


def test_scores_of_other_evaluations_are_neither_pooled_nor_subtracted() -> None:
    runs = [make_run(seed=seed) for seed in (0, 1)]
    runs += [make_run(seed=2, score=99.0, eval_max_steps=5), make_run("b", score=4.0), make_run("c", env="recall")]
    rows = rows_of(report.table(comparison.grouped(runs)))
    difference = {name: row["difference from the first (95 % interval)"] for name, row in rows.items()}
    assert rows["a, eval_max_steps=10000"]["evaluation, by seed"] == "10.0, 10.0"
    assert difference["a, eval_max_steps=5"] == difference["c"] == ""
    assert difference["b"] == "-6.0"
    assert "difference" not in report.table({"a": runs[:2], "c": runs[4:]}).partition("\n")[0]


def test_settings_without_effect_do_not_distinguish_agents() -> None:
    one, other = make_run(core="lstm"), make_run(seed=1, core="lstm", mem_slots=9, clip_rho=2.0)
    assert list(comparison.grouped([one, other])) == ["a"]
    assert compare.differing(one.config, other.config) == []
    assert compare.differing(one.config, make_run(core="rmc", mem_slots=9).config) == ["core", "mem_slots"]


def test_random_play_of_other_arguments_has_its_own_row() -> None:
    runs = [
        replace(make_run(env="recall", env_kwargs={"delay": delay}), random_mean_return=score)
        for delay, score in ((3, 0.1), (20, -0.7))
    ]
    assert report.random_play(comparison.grouped(runs), "return") == {
        "uniform random play, recall delay=3": 0.1,
        "uniform random play, recall delay=20": -0.7,
    }


def test_the_order_of_arguments_makes_no_other_environment() -> None:
    one, other = {"delay": 3, "num_cues": 2}, {"num_cues": 2, "delay": 3}
    runs = [make_run(env="recall", env_kwargs=arguments) for arguments in (one, other)]
    assert report.evaluated_in(runs[0]) == report.evaluated_in(runs[1])


def test_environments_of_one_name_that_differ_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make_run(), make_run(seed=1)]
    compare.note_environments(runs)
    assert capsys.readouterr().out == ""
    compare.note_environments([*runs, replace(make_run(seed=2), random_mean_return=270.0)])
    assert "uniform random play has mean returns from 2.5 to 270" in capsys.readouterr().out


def test_a_folder_is_of_the_agent_that_has_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "collect", lambda name, folder: name)
    written, folders = tmp_path / "a.json", [tmp_path / core for core in ("rmc", "lstm", "gru")]
    comparison.write([make_run("mine", core="rmc")], written)
    for seed, folder in enumerate(folders):
        folder.mkdir()
        (folder / "config.yaml").write_text(Config().updated({"core": folder.name, "seed": seed}, "").to_yaml())
    jobs = [Job("wanted", tmp_path, Config().updated({"core": "lstm"}, ""))]
    names = [
        run if isinstance(run, str) else "result" for run in compare.read_all([folders[0], written, *folders[1:]], jobs)
    ]
    assert names == ["mine", "result", "wanted", "gru"], "in the given order"


def test_random_play_within_other_step_limits_has_its_own_row() -> None:
    runs = [replace(make_run(eval_max_steps=limit), random_mean_return=limit / 10) for limit in (100, 2000)]
    assert report.random_play(comparison.grouped(runs), "return") == {
        f"uniform random play, {runs[0].config.env.env}, 100 steps at most": 10.0,
        f"uniform random play, {runs[0].config.env.env}, 2,000 steps at most": 200.0,
    }


def test_random_play_that_one_environment_lacks_is_that_of_the_other() -> None:
    runs = [replace(make_run(env="recall"), chance=0.5), make_run(env="minipacman")]
    assert report.random_play(comparison.grouped(runs), "accuracy") == {"uniform random play, recall": 0.5}


def test_a_run_without_success_fails_where_another_succeeds(tmp_path: Path) -> None:
    success, nothing = make_run(), make_run(seed=1)
    success = replace(
        success,
        evaluation=replace(success.evaluation, success_rate=0.5),
        random_success_rate=0.0,
        curve=replace(success.curve, successes=[0.5] * len(success.curve.frames)),
    )
    report.write_report([success, nothing], tmp_path / "c", (), (), {})
    row = rows_of((tmp_path / "c.md").read_text())["a"]
    assert row["evaluation, by seed"] == "0.500, 0.000"
    assert [run.random_success_rate for run in comparison.read(tmp_path / "c.json")] == [0.0, 0.0]


def test_a_mark_before_a_curve_begins_has_no_value() -> None:
    assert [report.mean_at([make_run()], "return", "frames", mark) for mark in (59, 3000, 6001)] == [None, 3.0, None]


def test_intervals_of_shares_stay_within_their_range() -> None:
    few, many = [0.4, 0.9], [0.05, 1.0]
    assert report.mean_with_interval(few, 3, are_shares=True) == "0.650 (0.000 to 1.000)"
    assert report.mean_with_interval(few, 3) == "0.650 (-2.527 to 3.827)"
    assert report.difference_with_interval(few, many, 3, are_shares=True) == "0.125 (-1.000 to 1.000)"


def test_rows_survive_the_file(tmp_path: Path) -> None:
    runs = [make_run(seed=seed) for seed in (0, 1)]
    comparison.write(runs, tmp_path / "a.json")
    again = comparison.read(tmp_path / "a.json")
    assert [run.config for run in again] == [run.config for run in runs]
    assert [replace(run, settings={}) for run in again] == [replace(run, settings={}) for run in runs]


def test_success_rates_begin_with_the_first_success() -> None:
    late = Curve(np.array([30, 40]), np.array([0.5, 1.0]), np.array([3.0, 4.0]))
    assert at_frames(late, np.array([10, 20, 30, 35, 40])).tolist() == [0, 0, 0.5, 0.75, 1.0]


def test_updates_that_ask_nothing_are_no_points(tmp_path: Path) -> None:
    with closing(SummaryWriter(tmp_path / TENSORBOARD)) as writer:
        for frames, accuracy in ((10, float("nan")), (20, 0.5)):
            writer.add_scalar("charts/accuracy", accuracy, frames)
            writer.add_scalar(TIME_TAG, frames / 10, frames)
    assert [field.tolist() for field in read_curve(tmp_path, "accuracy")] == [[20], [0.5], [2.0]]


def test_a_curve_of_nothing_asked_is_refused(tmp_path: Path) -> None:
    with closing(SummaryWriter(tmp_path / TENSORBOARD)) as writer:
        writer.add_scalar("charts/accuracy", float("nan"), 10)
        writer.add_scalar(TIME_TAG, 1.0, 10)
    with pytest.raises(ValueError, match="events have only NaN as charts/accuracy"):
        read_curve(tmp_path, "accuracy")


def test_runs_without_a_common_score_are_refused() -> None:
    run = make_run()
    asked = replace(run, curve=replace(run.curve, returns=None, accuracies=run.curve.returns))
    with pytest.raises(ValueError, match="expected runs with a common score"):
        report.metric_of([run, asked])


def test_what_decides_a_score_is_compared(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(Config().updated({"learners": 2, "core": "lstm"}, "test").to_yaml())

    def job(**settings: Any) -> Job:
        return Job("a", tmp_path, Config().updated({"learners": "auto", "core": "lstm"} | settings, "test"))

    compare.check_folder(job(), trust=False)
    compare.check_folder(job(learners=2), trust=False)
    for settings in ({"learners": 1}, {"eval_max_steps": 2}, {"eval_every": 9}, {"eval_episodes": 3}, {"core": "gru"}):
        with pytest.raises(ValueError, match=f"holds a run that differs in {next(iter(settings))}:"):
            compare.check_folder(job(**settings), trust=False)


def test_thinned_keeps_the_ends_and_the_mean() -> None:
    frames = np.arange(1, 1001) * 10
    points = thinned(Curve(frames, np.sin(frames), frames / 7.0))
    assert len(points.frames) == MAX_POINTS
    assert (points.frames[-1], points.seconds[-1]) == (10_000, 10_000 / 7)
    assert points.values.mean() == pytest.approx(np.sin(frames).mean(), abs=0.01)
    few = Curve(frames[:3], np.array([1.0, 2.0, 3.0]), frames[:3] / 10.0)
    for kept, before in zip(thinned(few), few, strict=True):
        np.testing.assert_array_equal(kept, before)


SEEN = "env: recall-stack2\ncore: none\nencoder_sizes: [16]\n"


def arguments(place: Path, *flags: str, frames: int = 800) -> list[str]:
    own = ["--folder", str(place / "runs"), "--out", str(place / "out"), "--total-frames", str(frames), *SMALL]
    seeds = [] if "--seeds" in flags else ["--seeds", "0", "1"]
    return [*own, *seeds, *flags, *FLAGS]


@pytest.mark.slow
def test_a_killed_comparison_continues_and_then_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SEEN)
    agents = ["--agents", str(tmp_path / "small.yaml"), "--seeds", "0"]
    run, frames = tmp_path / "runs" / "small-seed0", 4_000
    flags = [*arguments(tmp_path, *agents, frames=frames), "--save-every", "1e-9"]
    process = forked.Program(COMMAND, flags, tmp_path / "log")
    wait_for_checkpoints(run, 1, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert "the same command continues them" in (tmp_path / "log").read_text()
    assert not (run / "summary.json").exists()
    assert compare.main(again := arguments(tmp_path, *agents, frames=frames)) == 0
    assert "resumed from" in (run / "output.log").read_text()
    result = (tmp_path / "out.json").read_text()
    rows = json.loads(result)
    assert [(row["agent"], row["seed"]) for row in rows] == [("small", 0)]
    row = rows[0]
    assert row["settings"]["total_frames"] == row["frames"] == frames
    assert row["evaluation"]["episodes"] == 3
    assert row["commits"]
    assert 0 < row["curve"]["seconds"][-1] <= row["seconds"] + 0.1
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert compare.main(again) == 0
    assert (tmp_path / "out.json").read_text() == result


@pytest.mark.slow
def test_results_are_merged_and_redrawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "seen.yaml").write_text(SEEN)
    agent = ["--agents", str(tmp_path / "seen.yaml")]
    first, second = tmp_path / "first", tmp_path / "second"
    assert compare.main(arguments(first, *agent, "--seeds", "0")) == 0
    assert compare.main([str(first / "out.json"), *arguments(second, *agent)]) == 0
    assert sorted(path.name for path in (second / "runs").iterdir() if path.is_dir()) == ["seen-seed1"]
    assert [run.seed for run in comparison.read(second / "out.json")] == [0, 1]
    result, table = (second / "out.json").read_text(), (second / "out.md").read_text()
    (second / "out.md").unlink()
    assert compare.main([str(second / "out.json"), "--out", str(second / "out"), "--mark", "RMC (paper)=677"]) == 0
    assert ((second / "out.json").read_text(), (second / "out.md").read_text()) == (result, table)
    output = capsys.readouterr().out
    assert f"seen-seed0 begins, see {first / 'runs' / 'seen-seed0' / 'output.log'}\n" in output
    assert f"written to {first / 'out.json'}, {first / 'out.md'}, {first / 'out.png'}: the runs" in output
    assert output.count("no interval, because of one seed") == 1  # in the first comparison only
    assert compare.main(arguments(first, *agent, frames=840)) == 2
    assert "holds a run that differs in total_frames" in capsys.readouterr().err
    assert compare.main([str(first / "runs" / ".." / "out.json"), *arguments(first, *agent, frames=840)]) == 2
    assert "out.json would lose the runs that are left out: choose another --out" in capsys.readouterr().err
    with pytest.raises(ValueError, match="agents: a: expected runs with different seeds, got seed 0 twice"):
        compare.compare({"a": 2 * [first / "runs" / "seen-seed0"]}, tmp_path / "twice")
    run = first / "runs" / "seen-seed0"
    row, summary = comparison.collect("a", run), (run / "summary.json").read_text()
    (run / "summary.json").write_text(json.dumps(json.loads(summary) | {"parameters": None}))  # as in older runs
    assert comparison.collect("a", run) == row
    (run / "summary.json").write_text(summary)
    shutil.rmtree(run / "checkpoints")
    assert comparison.collect("a", run) == row


def test_runs_of_other_settings_are_not_merged(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job("a", Path("a-seed0"), Config().updated({"mem_slots": 8}, "test"))]
    runs = [make_run(seed=1), make_run(seed=2, mem_slots=8, eval_max_steps=9), make_run("b"), make_run(mem_slots=8)]
    assert compare.fitting(runs, jobs) == runs[2:]
    assert capsys.readouterr().out == (
        "left out: a, seed 1, which differs in mem_slots\nleft out: a, seed 2, which differs in eval_max_steps\n"
    )


def test_a_resume_command_has_the_flags_that_the_run_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "flags_text", lambda: " --import mine")
    for settings, flags in (
        ("env: recall", ""),
        ("env: recall\nalgo: impala\nactor_engine: ray\nray_address: a:1", " --ray-address a:1"),
        ("env: recall\nalgo: recurrent-ppo", " --trust"),
    ):
        (tmp_path / "config.yaml").write_text(settings)
        with pytest.raises(ValueError, match=rf"continue it with rmc-train --resume {tmp_path}{flags} --import mine$"):
            comparison.collect("a", tmp_path)


def test_a_resume_command_imports_the_runs_own_parts(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: recall\ncore: decay:Decay\nloss: my:loss")
    with pytest.raises(ValueError, match=f"--resume {tmp_path} --import decay:Decay --import my:loss$"):
        comparison.collect("a", tmp_path)


@pytest.mark.parametrize(
    ("out", "marks", "expected"),
    [
        (".", [], "out: expected the name of a file, without a suffix, got '.'"),
        ("..", [], "out: expected the name"),
        ("c.json", [], "out: expected the name of a file, without a suffix, got 'c.json'"),
        ("c", [1.0, math.nan], "marks of columns: expected numbers above 0, got nan"),
        ("c", [-5.0], "marks of columns: expected numbers above 0, got -5"),
        ("c", ["1e6"], "marks of columns: expected numbers above 0, got '1e6'"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused(out: str, marks: list[float], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        report.check_report(Path(out), marks)


def test_a_mark_of_a_figure_is_a_number() -> None:
    with pytest.raises(ValueError, match="marks: paper: expected a number, got '677'"):
        check_marks({"paper": "677"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"marks: expected scores by name, such as .*, got .*paper"):
        plot("run", "a.png", marks=[("paper", 677)])  # type: ignore[arg-type]


def test_a_run_that_is_given_twice_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job("a", Path("a-seed0"), Config())]
    runs = [make_run(seed=1, eval_max_steps=9), make_run("b"), make_run(seed=1), make_run("b")]
    assert compare.fitting(runs, jobs) == runs[1:3]
    assert capsys.readouterr().out == (
        "left out: a, seed 1, which differs in eval_max_steps\n"
        "left out: b, seed 0, which was given before with the same settings\n"
    )


def test_a_training_is_told_its_cluster_by_a_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[str] = []
    monkeypatch.setattr(scheduler.trainings, "start", lambda given, log: flags.extend(given))
    on_cluster = Config().updated({"algo": "impala", "actor_engine": "ray", "ray_address": "a:1"}, "test")
    scheduler.start(Job("a", tmp_path / "a-seed0", on_cluster), trust=False)
    assert flags[-2:] == ["--ray-address", "a:1"]


def test_a_folder_in_use_is_waited_for_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job("a", tmp_path / "a-seed0", Config())
    training = Training(job, Console(), trust=False)
    with RunFolder(job.folder, resuming=False):
        assert not training.has_ended()
        assert not training.has_ended()
        evaluation = asdict(make_run().evaluation) | {"random_mean_return": 1.0, "random_success_rate": None}
        summary = {"frames": 1, "seconds": 1.0, "frames_per_second": 1.0, "evaluation": evaluation}
        (job.folder / "summary.json").write_text(json.dumps(summary))
    assert training.has_ended(), "what the other one trained is taken"
    assert capsys.readouterr().out == f"a-seed0 waits: {InUse(job.folder)}\n"


def test_a_training_that_finds_another_in_its_folder_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has taken the folder before this one was started, or after that and before it could."""
    statuses = iter([None, 2, 0])

    def start(*_: object) -> SimpleNamespace:
        if (status := next(statuses)) is None:
            raise InUse(job.folder)
        return SimpleNamespace(poll=lambda: 0, returncode=status)

    monkeypatch.setattr(scheduler, "start", start)
    job = Job("a", tmp_path / "a-seed0", Config())
    training = Training(job, Console(), trust=False)
    is_in_use = iter([False, False, True, True, False])
    monkeypatch.setattr(scheduler, "is_in_use", lambda folder: next(is_in_use))
    assert [training.has_ended() for _ in range(4)] == [False, False, False, True]
    assert training.status == 0
    assert "a-seed0 waits: " in capsys.readouterr().out


def test_what_another_trained_meanwhile_is_taken_only_if_it_has_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job("a", tmp_path, Config())

    def train_jobs(*_: object) -> Iterator[Training]:
        (tmp_path / "config.yaml").write_text(Config().updated({"core": "lstm"}, "test").to_yaml())
        yield Training(job, Console(), trust=False)

    monkeypatch.setattr(compare, "train_jobs", train_jobs)
    monkeypatch.setattr(compare, "check_success", lambda training: None)
    with pytest.raises(ValueError, match="holds a run that differs in core:"):
        list(compare.train_all([job], 1, Console()))


@pytest.mark.parametrize(
    ("algo", "command"), [("ppo", "the same command"), ("sb3-ppo", "the same command with --trust")]
)
def test_whoever_interrupts_is_told_at_once_that_the_trainings_save(
    algo: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said_before_the_end = []

    class Busy:
        def __init__(self, job: Job, console: Console, trust: bool) -> None:
            self.job = job

        def has_ended(self) -> bool:
            raise KeyboardInterrupt

        def stop(self) -> None:
            pass

        def wait(self) -> None:
            said_before_the_end.append(capsys.readouterr().out)

    monkeypatch.setattr(scheduler, "Training", Busy)
    jobs = iter([Job("a", tmp_path / "a-seed0", Config().updated({"algo": algo}, ""))])
    with pytest.raises(KeyboardInterrupt):
        list(scheduler.train_jobs(jobs, 1, Console(width=200), trust=False))
    assert said_before_the_end == [f"the running trainings save; {command} continues them\n"]


DECIDED = {
    "preset": (["--config", "x.yaml"], "--config cannot come after --: name presets and files by --agents"),
    "core": (["--core", "lstm"], "--core cannot come after --: name cores by --cores"),
    "seed": (["--num-envs", "8", "--seed=3"], "--seed=3 cannot come after --: name seeds by --seeds"),
    "episodes": (["--eval_episodes", "9"], "--eval_episodes cannot come after --: give --episodes before --"),
    "video": (["--video"], "--video cannot come after --: a comparison records none"),
    "frames": (["--total-frames", "9"], "--total-frames cannot come after --: it is given before -- already"),
}


def test_a_flag_of_training_in_the_wrong_place_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.main(["--cores", "rmc", "--learning-rate", "1"])
    assert "flags of rmc-train go after --" in capsys.readouterr().err


@pytest.mark.parametrize("case", DECIDED)
def test_flags_that_the_grid_decides_are_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = DECIDED[case]
    own = ["--agents", "minipacman-rmc", "--total-frames", "800", "--folder", str(tmp_path / "runs")]
    assert compare.main([*own, "--", *flags]) == 2
    assert capsys.readouterr().err == f"rmc-compare: {expected}\n"
    assert not (tmp_path / "runs").exists()


def test_the_flag_of_what_happens_anyway_is_allowed() -> None:
    compare._check_left_to_flags(compare.Arguments(), ["--no-video"])
    with pytest.raises(ValueError, match="a comparison records none"):
        compare._check_left_to_flags(compare.Arguments(), ["--video"])


SUMMARY = {"frames": 100, "seconds": 2.0, "frames_per_second": 50.0, "evaluation": None}
DAMAGED = {
    "no JSON": ("summary.json", "{", "summary.json is not a summary of rmc-train: content: Invalid JSON"),
    "a list": ("summary.json", "[]", "summary.json is not a summary of rmc-train: content: "),
    "no evaluation": ("summary.json", "{}", "summary.json is not a summary of rmc-train: frames: Field required"),
    "deep": ("summary.json", "[" * 10_000, "summary.json is not a summary of rmc-train: content: Invalid JSON"),
    "no time": ("summary.json", json.dumps(SUMMARY | {"seconds": 0}), "seconds: Input should be greater than 0"),
    "no end": ("summary.json", '{"frames": 10, "seconds": Infinity}', "seconds: Input should be a finite number"),
    "endless": (
        "summary.json",
        json.dumps(SUMMARY | {"frames": 10**30}),
        "frames: Input should be less than 922337",
    ),
    "no score": ("summary.json", json.dumps(SUMMARY | {"evaluation": {}}), "evaluation.mean_return: Field required"),
    "not evaluated": ("summary.json", json.dumps(SUMMARY), "was not evaluated at its end"),
    "no curve": ("result.json", "", "0.curve: Value error, expected as many frames as seconds"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_summary_or_result_is_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, content, expected = DAMAGED[case]
    row = asdict(make_run())
    row["curve"]["seconds"].pop()
    (tmp_path / name).write_text(content or json.dumps([row]))
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    given = tmp_path if name == "summary.json" else tmp_path / name
    assert compare.main([str(given), "--out", str(tmp_path / "out")]) == 2
    output = capsys.readouterr().err
    assert expected in output
    assert output.count("\n") == 1


@pytest.mark.parametrize("name", ["result.json", "run/tensorboard/events.out.tfevents.1"])
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    if name.startswith("run/tensorboard"):
        with pytest.raises(ValueError, match="holds no TensorBoard events"):
            read_curve(tmp_path / "run")
        return
    assert compare.main([str(path), "--out", str(tmp_path / "out")]) == 2
    assert "not a regular file" in capsys.readouterr().err


def test_a_damaged_summary_is_no_finished_run(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("{")
    assert not scheduler.is_finished(tmp_path)


@pytest.mark.slow
def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.json").write_text('[{"core": "rmc"}]')
    (tmp_path / "half.json").write_text('[{"agent')
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text("seed: 1\n")
    train = ["--cores", "none"]
    for flags, expected in (
        ([str(tmp_path / "none.json"), *train], "No such file"),
        ([str(tmp_path / "old.json"), *train], "is not a result of rmc-compare: 0.agent"),
        ([str(tmp_path / "half.json"), *train], "is not a result"),
        ([str(tmp_path), *train], "holds no run (expected"),
        ([str(tmp_path / "half"), *train], "is not finished: continue it with rmc-train --resume"),
        (["--agents", "minipacman-none", "minipacman-none"], "expected agents and seeds that differ"),
        (["--agents", "recall", "Recall.yaml"], "expected agents and seeds that differ, not in case alone, got Recall"),
        (["--agents", "nobody"], "cannot read the config nobody"),
        (["minipacman-rmc", *train], "expected runs, got presets: to train them, --agents minipacman-rmc"),
        ([*train, "--mark", "paper"], "expected NAME=VALUE"),
        ([], "flags of rmc-train need --agents or --cores"),
    ):
        assert compare.main([*flags, *arguments(tmp_path)]) == 2
        output = capsys.readouterr().err
        assert expected in output
        assert output.count("\n") == 1
    assert compare.main(arguments(tmp_path, "--agents", "recall", "--seeds")) == 2
    assert "--seeds: expected at least one, got none" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare.main([*arguments(tmp_path, *train), "--run-dir", "x"])
    assert "rmc-compare: Unrecognized options: --run-dir, x; after -- go rmc-train's" in capsys.readouterr().err
    assert compare.main([str(tmp_path / "half"), "--total-frames", "9"]) == 2
    assert "--total-frames: has no effect without --agents or --cores" in capsys.readouterr().err
    assert compare.main([*arguments(tmp_path, "--agents", "minipacman-none", "--seeds", "0"), "--encoder", "conv"]) == 2
    output = capsys.readouterr().err
    assert "training of minipacman-none-seed0 failed: rmc-train: encoder conv: expected images" in output


@pytest.mark.slow
def test_finished_runs_are_compared_by_success_where_it_is_reported(tmp_path: Path) -> None:
    grid = ["--cores", "none", "--seeds", "0", "--folder", str(tmp_path), "--out", str(tmp_path / "a")]
    flags = ["--env", "recall", "--num-envs", "8"]
    assert compare.main([*grid, "--total-frames", "800", "--episodes", "10", "--", *flags]) == 0
    rows = rows_of((tmp_path / "a.md").read_text())
    assert list(rows) == ["none", "uniform random play"]
    assert compare.main([str(tmp_path / "none-seed0"), "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a.json").read_text() == (tmp_path / "b.json").read_text()
    rmc.compare({"none": [Run(tmp_path / "none-seed0", {}, agent=None)]}, tmp_path / "c")
    assert (tmp_path / "a.json").read_text() == (tmp_path / "c.json").read_text()
    assert r"| 8\|9 |" in rmc.compare({"8|9": [tmp_path / "none-seed0"], 10: [tmp_path / "none-seed0"]}, tmp_path / "c")
    for wrong in ({"marks": {"paper": "677"}}, {"marks": [3]}, {"frame_marks": 1000}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}: .*expected"):
            rmc.compare({"none": [tmp_path / "none-seed0"]}, tmp_path / "d", **wrong)
    assert not (tmp_path / "d.json").exists()
    for run in comparison.read(tmp_path / "a.json"):
        assert 0 <= run.evaluation.success_rate <= 1
        assert len(run.curve.successes) == len(run.curve.frames)
        assert f"{run.evaluation.success_rate:.3f}" == rows[run.agent]["mean (95 % interval)"]


@pytest.mark.slow
def test_texts_are_compared_by_their_right_answers(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"to be or not to be " * 300)  # no document ends within the training
    settings = {"algo": "supervised", "core": "gru", "hidden_size": 8, "num_envs": 2, "unroll_length": 10}
    sizes = {"env": f"text:{tmp_path / 'text'}", "encoder_sizes": [8], "total_frames": 60, "eval_episodes": 2}
    rmc.train(settings | sizes | {"video": False}, run_dir=tmp_path / "run", console=Console(quiet=True))
    run = comparison.collect("a", tmp_path / "run")
    assert (report.metric_of([run]), run.curve.returns, run.random_score("accuracy")) == ("accuracy", None, 1 / 256)
    assert rows_of(report.table({"a": [run]}))["a"]["evaluation, by seed"] == f"{run.evaluation.accuracy:.3f}"
