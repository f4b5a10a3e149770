"""rmc-sweep: trials are ordinary runs, continue after an interruption, and fail independently."""

import json
import signal
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from rich.console import Console

import rmc_agents as rmc
from helpers import forked
from helpers.runs import wait_for_checkpoints
from helpers.studies import SEARCH, SETTINGS, read_plan, run, write_study
from rmc_agents import configs, plugins
from rmc_agents.config import Config
from rmc_agents.evaluate import compare, scheduler, trainings
from rmc_agents.evaluate.statistics import Episodes, Statistics
from rmc_agents.evaluate.summary import read_evaluated
from rmc_agents.formatting import with_interval
from rmc_agents.train.sweep import cli as sweep
from rmc_agents.train.sweep.figure import draw_search
from rmc_agents.train.sweep.plan import Plan
from rmc_agents.train.sweep.results import (
    LOG,
    Row,
    importances,
    make_cells,
    make_rows,
    print_results,
    score_of,
    trial_folder,
    write_results,
)
from rmc_agents.train.sweep.trials import JOURNAL, Sweep, owned

pytestmark = pytest.mark.usefixtures("forked_trainings")
ENDLESS = 10**9
# Goes on with a run as rmc-train does, but is content with the frames it has.
NO_FURTHER = "import sys; from rmc_agents.train.cli import main; sys.exit(main([*sys.argv[1:], '--total-frames', '1']))"


def test_in_python_a_sweep_returns_its_rows_and_is_that_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = {"settings": SETTINGS, "search": SEARCH}
    rows = rmc.sweep(study, tmp_path / "out", settings={"learning_rate": 0.01}, trials=2, eval_episodes=5)
    assert sorted(row.settings["encoder_sizes"] for row in rows) == sorted(SEARCH["encoder_sizes"]["choice"])
    assert rows[0].score is not None
    assert rows[0].score >= (rows[1].score or 0)
    capsys.readouterr()
    assert run(write_study(tmp_path, SEARCH), tmp_path / "out", "--set", "learning_rate=0.01", "--trials", "2") == 0
    assert "trial 2" not in capsys.readouterr().out
    with pytest.raises(ValueError, match="study: search: there is no setting 'learning_rat'; did you mean"):
        rmc.sweep({"search": {"learning_rat": {"choice": [1]}}}, tmp_path / "other")
    with pytest.raises(ValueError, match="eval_episodes: cannot be fixed: give --eval-episodes instead"):
        rmc.sweep(study, tmp_path / "other", settings={"eval_episodes": 3})
    with pytest.raises(ValueError, match="importing no_such_module failed"):
        rmc.sweep(study, tmp_path / "other", imports=["no_such_module"])
    assert Plan.read(study, {}, 5, True, 0, np.arange(2)).seeds == (0, 1)  # type: ignore[arg-type]
    assert yaml.safe_dump(Plan.read(study, {}, 5, True, 0, np.arange(2)).description())  # type: ignore[arg-type]
    rmc.register_core("own", rmc.cores.GRU)
    for own in ({"settings": {"core": "own"}, "search": SEARCH}, {"search": {"core": {"choice": ["own", "gru"]}}}):
        with pytest.raises(ValueError, match=r"core: 'own' is registered in this process, .* imports=\[...\]"):
            rmc.sweep(own, tmp_path / "other")
    for wrong, message in (
        ({"settings": [1]}, "settings: expected a mapping, such as"),
        ({"trials": "3"}, "trials: expected an int of at least 1, got '3'"),
        ({"seeds": 3}, "seeds: expected several, such as"),
        ({"jobs": None}, "jobs: expected an int of at least 1, got None"),
    ):
        with pytest.raises(ValueError, match=message):
            rmc.sweep(study, tmp_path / "other", **wrong)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("trust", [False, True])
def test_in_python_a_sweep_can_trust_its_archives(trust: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sweep, "run", lambda sweep, _: 0 if sweep.trust == trust else 130)
    assert rmc.sweep({"settings": SETTINGS, "search": SEARCH}, tmp_path / "out", trust=trust) == []


def test_the_modules_of_searched_parts_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = read_plan({"core": {"choice": ["lstm", "gru"]}})
    plan = replace(plan, search={"core": ("choice", ["lstm", "mine:Core"])})
    rows = make_rows(plan, [make_trial(plan, 0, {"core": "mine:Core"}, 1.0)], tmp_path)
    print_results(plan, rows, {}, tmp_path, Console(width=400))
    assert f"rmc-watch {trial_folder(tmp_path, 0)} --import mine" in capsys.readouterr().out


def test_in_python_a_signal_that_stops_a_sweep_is_raised_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sweep, "run", lambda *_: 128 + signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt) as raised:
        rmc.sweep({"settings": SETTINGS, "search": SEARCH}, tmp_path / "out")
    assert raised.value.args == (signal.SIGTERM,)


@pytest.mark.slow
def test_a_search_makes_ordinary_runs_and_continues_with_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    study, out = write_study(tmp_path, SEARCH), tmp_path / "out"
    assert run(study, out, "--trials", "1") == 0
    first = (out / "trial-0000" / "summary.json").stat()
    assert run(study, out, "--trials", "2") == 0
    assert (out / "trial-0000" / "summary.json").stat() == first, "a finished trial is not repeated"
    assert sorted(path.name for path in out.glob("trial-*")) == ["trial-0000", "trial-0001"]

    results = json.loads((out / "results.json").read_text())
    scores = [row["score"] for row in results["rows"]]
    assert scores == sorted(scores, reverse=True)
    for row in results["rows"]:
        folder = trial_folder(out, row["trials"][0])
        config = Config().updated_from_yaml(folder / "config.yaml")
        assert config.train.learning_rate == row["settings"]["learning_rate"]
        assert list(config.agent.encoder_sizes) == row["settings"]["encoder_sizes"]
        assert (config.env.env, config.run.eval_episodes, config.run.video) == ("recall", 5, False)
        found = read_evaluated(folder)
        assert found is not None
        assert row["score"] == found[1].mean_return
        assert row["interval"] == (found[1].ci95 and list(found[1].ci95))
    written = (out / "results.md").read_text()
    assert sum(line.startswith("|") for line in written.splitlines()) == 4, "heading, rule, two rows"
    assert (out / "results.png").is_file()

    capsys.readouterr()
    assert sweep.main(["--show", str(out)]) == 0
    shown = capsys.readouterr().out
    assert with_interval(scores[0], results["rows"][0]["interval"]) in shown
    assert "written to" not in shown
    assert "[16, 8]" in shown or "[8]" in shown, "brackets are not taken for markup"

    assert run(study, out, "--trials", "2", "--set", "core=gru") == 2
    assert "holds another sweep, with core none instead of gru; choose another folder" in capsys.readouterr().err
    assert run(write_study(tmp_path, {"discount": {"choice": [0.9]}}), out) == 2
    assert "holds another sweep, with another search;" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stopped_sweep_continues_with_its_trial_where_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, out = write_study(tmp_path, SEARCH, total_frames=ENDLESS, save_every=1e-9), tmp_path / "out"
    command = f"{forked.TRAININGS}; from rmc_agents.train.sweep.cli import main; sys.exit(main())"
    flags = [str(study), "--out", str(out), "--eval-episodes", "5", "--trials", "1"]
    process = forked.Program(command, flags, tmp_path / "log")
    wait_for_checkpoints(out / "trial-0000", 1, process)
    assert run(study, out, "--trials", "1") == 2, "one sweep at a time"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 128 + signal.SIGINT
    assert "the same command continues it" in output
    assert json.loads((out / "results.json").read_text())["rows"][0]["unfinished"] == {"0": "unfinished"}

    monkeypatch.setattr(trainings, "RUN", NO_FURTHER)
    assert run(study, out, "--trials", "1") == 0
    log = (out / "trial-0000" / LOG).read_text()
    assert "stopped by SIGINT and saved" in log
    assert "resumed from" in log
    (row,) = json.loads((out / "results.json").read_text())["rows"]
    assert len(row["scores"]) == 1
    assert row["unfinished"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".safetensors", ".zip"])
def test_an_unfinished_run_of_any_kind_is_resumed(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trial_folder(tmp_path, 0)
    saved = folder / "checkpoints" / f"update-000000007{suffix}"
    saved.parent.mkdir(parents=True)
    saved.touch()
    monkeypatch.setattr(trainings, "RUN", "import sys; print(*sys.argv[1:])")
    job, is_archive = scheduler.Job("agent", folder, Config()), suffix == ".zip"
    if is_archive:
        with pytest.raises(ValueError, match=r"is an archive .* add --trust"):
            compare.check_folder(job, trust=False)
    compare.check_folder(job, trust=is_archive)
    scheduler.start(job, is_archive).wait()
    assert f"--resume {folder}" in (folder / LOG).read_text()
    assert saved.exists()


def test_what_a_search_draws_does_not_depend_on_interruptions(tmp_path: Path) -> None:
    plan = read_plan(SEARCH)
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = Sweep(plan, tmp_path / "whole", 5, Console())
    parts = [Sweep(plan, tmp_path / "parts", 5, Console()).ask() for _ in range(5)]
    assert [whole.ask() for _ in range(5)] == parts
    assert len({params["learning_rate"] for _, params in parts}) == 5


def test_a_record_that_was_cut_short_does_not_cost_those_before_it(tmp_path: Path) -> None:
    plan = read_plan(SEARCH)
    with owned(tmp_path, plan):
        asked = [Sweep(plan, tmp_path, 5, Console()).ask() for _ in range(2)]
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    for further in (1, 2):
        with owned(tmp_path, plan):
            sweep = Sweep(plan, tmp_path, 5, Console())
            sweep.ask()
            assert len(sweep.study.trials) == len(asked) + further


def test_in_python_a_sweep_keeps_the_modules_that_were_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept_parts.py").write_text("import rmc_agents as rmc\n\n\nclass Kept(rmc.LSTM):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    plugins.add([], "kept_parts:Kept")
    monkeypatch.setattr(Sweep, "run", lambda *_: 0)
    rmc.sweep({"settings": SETTINGS, "search": SEARCH}, tmp_path / "out")
    assert plugins.find("kept_parts:Kept") is not None


@pytest.mark.slow
def test_a_failed_trial_is_reported_and_the_sweep_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    search = {"learning_rate": {"choice": [3e-3]}}
    study, out = write_study(tmp_path, search, total_frames=400, learning_rate=1e15), tmp_path / "out"
    assert run(study, out, "--one-at-a-time") == 0
    output = capsys.readouterr().out
    assert "diverged" in output
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [row["settings"] for row in rows] == [{"learning_rate": 3e-3}, {}]
    assert rows[1]["score"] is None
    assert "diverged" in rows[1]["unfinished"]["0"]


def test_trials_that_fail_alike_do_not_end_a_sweep_that_has_results(tmp_path: Path) -> None:
    plan = read_plan(SEARCH)
    for has_result in (False, True):
        sweep = Sweep(plan, tmp_path, 9, Console())
        sweep._failures = ["the same"] * 3
        assert sweep._fails_alike() != has_result
        sweep.study.tell(sweep.ask()[0], 1.0)


@pytest.mark.parametrize("alike_from", [0, 1])
def test_trials_that_fail_alike_end_the_sweep(
    alike_from: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    differs = f"'another, ' * ('trial-{alike_from - 1:04}' in str(sys.argv))"
    fail = f"import sys; sys.exit('rmc-train: ' + {differs} + 'encoder conv: expected images')"
    monkeypatch.setattr(trainings, "RUN", fail)
    study, out = write_study(tmp_path, SEARCH), tmp_path / "out"
    assert run(study, out, "--trials", "9") == 2
    error = capsys.readouterr().err
    assert "3 trials in a row failed with the same error" in error
    assert "encoder conv: expected images" in error
    assert error.count("\n") == 1
    assert len(list(out.glob("trial-*"))) == alike_from + 3


def test_one_at_a_time_is_the_base_and_each_other_value_alone() -> None:
    search = {
        "learning_rate": {"log": [1e-3, 1e-2]},
        "num_envs": {"choice": [4, 8]},
        "encoder_sizes": {"choice": [[256, 128], [16]]},
    }
    plan = read_plan(search, one_at_a_time=True, seeds=(0, 7))
    trials = plan.one_by_one()
    assert [(plan.changed(params), params["seed"]) for params in trials] == [
        (change, seed)
        for change in (
            {},
            {"learning_rate": 1e-3},
            {"learning_rate": 1e-2},
            {"num_envs": 8},
            {"encoder_sizes": "[16]"},
        )
        for seed in (0, 7)
    ]
    last = plan.config(trials[-1], "test")
    assert (last.agent.encoder_sizes, last.run.seed, last.train.learning_rate) == ((16,), 7, 3e-3)


def test_a_range_is_drawn_as_its_setting_is_typed() -> None:
    search = {
        "learning_rate": {"log": ["1e-4", 1]},  # YAML takes 1e-4 for text
        "num_envs": {"log": [2, 64]},
        "core_gain": {"uniform": [1, 2]},
        "unroll_length": {"integer": [5, 9]},
        "core": {"choice": ["rmc", "none"]},
    }
    assert read_plan(search).distributions() == {
        "learning_rate": FloatDistribution(1e-4, 1.0, log=True),
        "num_envs": IntDistribution(2, 64, log=True),
        "core_gain": FloatDistribution(1.0, 2.0),
        "unroll_length": IntDistribution(5, 9),
        "core": CategoricalDistribution(["rmc", "none"]),
    }


def test_a_trial_with_right_answers_is_scored_by_them(tmp_path: Path) -> None:
    nothing, asked = np.zeros(4), np.full(4, 10)
    played = Episodes(nothing, nothing, None, None, nothing.astype(bool), asked=asked, right=np.array([5, 6, 7, 8]))
    evaluation = asdict(Statistics.of(played)) | {"random_mean_return": 0.0, "random_success_rate": None}
    summary = {"frames": 9, "seconds": 3.0, "frames_per_second": 3.0, "evaluation": evaluation}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    ended: Any = SimpleNamespace(job=SimpleNamespace(folder=tmp_path), status=0, stopped=False)
    assert score_of(ended) == 0.65


def make_trial(plan: Plan, number: int, params: dict[str, Any], value: float | None) -> FrozenTrial:
    state = TrialState.COMPLETE if value is not None else TrialState.FAIL
    trial = create_trial(state=state, params=params, distributions=plan.distributions(), value=value)
    trial.number = number
    return trial


def test_seeds_are_one_row_with_students_interval(tmp_path: Path) -> None:
    plan = read_plan({"discount": {"choice": [0.5, 0.9]}}, one_at_a_time=True, seeds=(0, 1))
    values = [1.0, 3.0, 5.0, None, None, None]
    trials = [
        make_trial(plan, i, params, value)
        for i, (params, value) in enumerate(zip(plan.one_by_one(), values, strict=True))
    ]
    folder = trial_folder(tmp_path, 3)
    folder.mkdir()
    (folder / LOG).write_text("some\nout of | luck\n")
    rows = make_rows(plan, trials, tmp_path)
    assert [(row.trials, row.settings, row.score) for row in rows] == [
        ([2, 3], {"discount": 0.5}, 5.0),
        ([0, 1], {}, 2.0),
        ([4, 5], {"discount": 0.9}, None),
    ]
    assert rows[1].interval == pytest.approx(
        [2 - 12.7062, 2 + 12.7062], abs=1e-4
    )  # t(0.975, 1) = 12.7062, s / sqrt(2) = 1
    heading, best, base, _ = make_cells(plan, rows)
    assert heading == ["trial", "change", "score", "95 % interval", "frames/s", "seconds", "notes"]
    assert best == ["2, 3", "discount=0.5", "5.00", "", "", "", "trial 3 failed: out of | luck"]
    assert base[1:4] == ["base", "2.00", "-10.71 to 14.71"]
    assert base[-1] == "by seed 1.00, 3.00"


def test_the_best_trial_is_one_with_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = read_plan({"discount": {"choice": [0.5]}}, one_at_a_time=True, seeds=(0, 1))
    values = [None, 5.0, 1.0, 2.0]
    trials = [make_trial(plan, i, *each) for i, each in enumerate(zip(plan.one_by_one(), values, strict=True))]
    print_results(plan, make_rows(plan, trials, tmp_path), {}, tmp_path, Console(width=400))
    assert f"best: {trial_folder(tmp_path, 1)} " in capsys.readouterr().out


def test_what_a_trained_on_trial_has_now_is_not_shown_beside_its_score(tmp_path: Path) -> None:
    plan = read_plan({"discount": {"choice": [0.5]}}, one_at_a_time=True, seeds=(0, 1))
    nothing = np.zeros(2)
    for number in (0, 1):
        played = Episodes(
            nothing, nothing, None, None, nothing.astype(bool), asked=np.full(2, 5), right=np.full(2, 2 + 2 * number)
        )
        evaluation = asdict(Statistics.of(played)) | {"random_mean_return": 0.0, "random_success_rate": None}
        trial_folder(tmp_path, number).mkdir()
        summary = {"frames": 9, "seconds": 3.0, "frames_per_second": 3.0, "evaluation": evaluation}
        (trial_folder(tmp_path, number) / "summary.json").write_text(json.dumps(summary))
    trials = [make_trial(plan, i, plan.one_by_one()[i], value) for i, value in enumerate((0.4, 0.1))]
    (row,) = make_rows(plan, trials, tmp_path)
    assert row.seconds == 3.0, "of the first trial alone: the second one has an accuracy of 0.8 now"
    assert row.interval == (0.0, 1.0), "accuracies end there"


def test_archives_are_opened_with_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = read_plan({"discount": {"choice": [0.5]}})
    plan = replace(plan, base=plan.base.updated({"algo": "sb3-ppo"}, ""))
    rows = make_rows(plan, [make_trial(plan, 0, {"discount": 0.5}, 1.0)], tmp_path)
    print_results(plan, rows, {}, tmp_path, Console(width=400))
    assert capsys.readouterr().out.count(" --trust") == 2


def test_equal_scores_have_no_interval(tmp_path: Path) -> None:
    plan = read_plan({"discount": {"choice": [0.5]}}, one_at_a_time=True, seeds=(0, 1))
    trials = [make_trial(plan, i, params, 0.25) for i, params in enumerate(plan.one_by_one()[:2])]
    (row,) = make_rows(plan, trials, tmp_path)
    assert row.interval is None


def test_the_table_fits_a_terminal_of_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = Plan.read(Path("minipacman"), {}, 100, False, 0, [])
    plan = replace(plan, base=plan.base.updated({"core": "mine:Core"}, "test"))
    low = {name: values[0] for name, (_, values) in plan.search.items()}
    trials = [make_trial(plan, i, low, value) for i, value in enumerate((512.34, None))]
    rows = make_rows(plan, trials, tmp_path)
    print_results(plan, rows, {}, tmp_path / "a folder", Console(width=80))
    output = capsys.readouterr().out
    for name in plan.search:
        assert f"{name}=" in output
    assert "512.3" in output
    assert "trial 1 failed" in output
    assert f"rmc-watch '{tmp_path / 'a folder' / 'trial-0000'}' --import mine" in output.replace("\n", "")


def test_importance_is_reported_for_enough_trials() -> None:
    plan = read_plan({"discount": {"uniform": [0.0, 1.0]}, "trace_lambda": {"uniform": [0.0, 1.0]}})
    study = optuna.create_study(direction="maximize")
    for i in range(40):
        assert (importances(plan, study) == {}) == (i < 10)
        params = {"discount": i / 40, "trace_lambda": i * 7 % 40 / 40}
        study.add_trial(make_trial(plan, i, params, params["discount"]))
    shares = importances(plan, study)
    assert shares["discount"] > 0.7
    assert sum(shares.values()) == pytest.approx(1.0)
    equal = optuna.create_study(direction="maximize")
    for trial in study.trials:
        equal.add_trial(make_trial(plan, trial.number, trial.params, 1.0))
    assert importances(plan, equal) == {}


def test_the_figure_shows_every_trial_the_best_so_far_and_what_mattered(tmp_path: Path) -> None:
    def row(number: int, score: float | None) -> Row:
        interval = None if score is None else (score - 1, score + 2)
        return Row([number], {"learning_rate": 1e-3, "encoder_sizes": "[8]"}, [], score, interval, None, None, {})

    rows = [row(3, 9.0), row(1, 7.0), row(0, 5.0), row(2, 6.0), row(4, None)]  # as a table has them
    scores, shares = draw_search(rows, {"discount": 0.7, "trace_lambda": 0.3}, "title").axes
    lines = {line.get_label(): line for line in scores.lines}
    best = lines["best so far"]
    assert [tuple(place) for place in best.get_xydata()] == [(0, 5), (1, 7), (2, 7), (3, 9)]
    points = scores.containers[0].lines[0]
    assert [tuple(place) for place in points.get_xydata()] == [(0, 5), (1, 7), (2, 6), (3, 9)]
    assert [bar.get_width() for bar in shares.patches] == [0.3, 0.7]
    assert len(draw_search(rows, {}, "title").axes) == 1

    plan = read_plan(SEARCH)
    write_results(plan, rows[-1:], {}, tmp_path)
    assert not (tmp_path / "results.png").exists()
    write_results(plan, rows, {}, tmp_path)
    assert (tmp_path / "results.png").is_file()
    assert "(results.png)" in (tmp_path / "results.md").read_text()


@pytest.mark.parametrize("name", configs.names(configs.SWEEPS))
def test_the_sweeps_that_come_with_the_project_are_valid(name: str) -> None:
    for one_at_a_time in (False, True):
        plan = Plan.read(Path(name), {"core": "lstm"}, 100, one_at_a_time, 0, [])
        assert plan.distributions().keys() >= plan.search.keys()
        for params in plan.one_by_one():
            assert plan.config(params, name).core.core == "lstm"


def test_a_setting_that_is_fixed_is_not_searched() -> None:
    plan = Plan.read({"search": SEARCH}, {"learning_rate": 1e-3}, 5, False, 0, [])
    assert list(plan.search) == ["encoder_sizes"]
    assert plan.base.train.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("algo", "used"),
    [
        ("ppo", {"ppo_epochs", "entropy_cost"}),
        ("sb3-a2c", {"entropy_cost", "sb3_policy"}),
        ("impala", {"entropy_cost", "clip_rho"}),
        ("supervised", set()),
    ],
)
def test_settings_that_the_algorithm_does_not_use_are_not_searched(algo: str, used: set[str]) -> None:
    values = {"ppo_epochs": [1, 2], "entropy_cost": [0.1], "clip_rho": [1.0], "sb3_policy": ["auto"], "num_envs": [4]}
    search = {name: {"choice": choice} for name, choice in values.items()}
    study = {"settings": {"algo": algo}, "search": search}
    plan = Plan.read(study, {}, 5, False, 0, [])
    assert plan.search.keys() == used | ({"num_envs"} if algo != "impala" else set())


USED = {
    "rmc": ({}, {"mem_slots"}),
    "lstm": ({"core": "lstm"}, {"hidden_size"}),
    "none": ({"core": "none"}, set()),
    "without a choice": ({"algo": "sb3-a2c"}, set()),
}


@pytest.mark.parametrize("case", USED)
def test_settings_that_the_core_does_not_use_are_not_searched(case: str) -> None:
    settings, used = USED[case]
    sizes = {"hidden_size": {"choice": [8, 16]}, "mem_slots": {"choice": [2, 4]}, "update_bias": {"uniform": [0, 1]}}
    study = {"settings": settings, "search": {"discount": {"choice": [0.9]}} | sizes}
    plan = Plan.read(study, {}, 5, False, 0, [])
    assert plan.search.keys() == {"discount"} | used
    assert set(plan.left_out) == sizes.keys() - used


@pytest.mark.parametrize("one_at_a_time", [False, True])
def test_a_search_over_cores_searches_what_any_of_them_uses(one_at_a_time: bool) -> None:
    search = {"core": {"choice": ["gru", "none"]}, "hidden_size": {"choice": [8]}, "mem_slots": {"choice": [2]}}
    plan = read_plan(search | {"discount": {"choice": [0.9]}}, one_at_a_time)
    assert set(plan.left_out) == ({"hidden_size", "mem_slots"} if one_at_a_time else {"mem_slots"})


@pytest.mark.parametrize(
    ("decided", "deciding", "values"),
    [
        ("decay_start", "learning_rate_schedule", ["constant", "linear"]),
        ("weight_decay", "optimizer", ["adam", "muon"]),
        ("reward_cost", "predict_rewards", [False, True]),
    ],
)
def test_what_another_searched_setting_decides(decided: str, deciding: str, values: list[str]) -> None:
    for choices, left_out in ((values[:1], (decided,)), (values, ())):
        plan = read_plan({decided: {"choice": [0.0, 0.5]}, deciding: {"choice": choices}})
        assert plan.left_out == left_out
