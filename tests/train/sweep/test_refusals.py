"""rmc-sweep: one line for bad studies, flags and folders."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from helpers.runs import refused
from helpers.studies import SEARCH, read_plan, write_study
from rmc_agents.train.sweep import cli as sweep
from rmc_agents.train.sweep import trials

BAD_STUDIES = {
    "search: {learning_rat: {log: [1, 2]}}": "there is no setting 'learning_rat'; did you mean 'learning_rate'?",
    "serach: {}": "there is no key 'serach'; did you mean 'search'?",
    "settings: {corre: lstm}": "there is no setting 'corre'; did you mean 'core'?",
    "search: {discount: {unifrom: [0, 1]}}": "there is no kind of range 'unifrom'; did you mean 'uniform'?",
    "search: {core: {choice: []}}": "core: choice: expected a list of at least one value, got []",
    "search: {discount: {uniform: [0.9, 0.5]}}": "discount: uniform: expected low below high, got [0.9, 0.5]",
    "search: {discount: {uniform: [0.9, 0.9]}}": "discount: uniform: expected low below high, got [0.9, 0.9]",
    "search: {entropy_cost: {log: [0, 0.1]}}": "entropy_cost: log: expected low above 0, got [0, 0.1]",
    "search: {discount: {uniform: [0.5, 1.5]}}": "discount: input should be less than or equal to 1, got 1.5",
    "search: {core: {uniform: [lstm, gru]}}": "core: uniform: expected two numbers",
    "search: {discount: {integer: [0.5, 1]}}": "discount: integer: expected whole numbers",
    "search: {lr: {choice: [1]}}": "there is no setting 'lr'; did you mean 'learning_rate'?",
    "search: {core_args: {choice: [{a: 1}]}}": "study.yaml: search: core_args: expected none for core",
    "search: {discount: 0.5}": "expected one of log, uniform, integer, choice",
    "search: {seed: {choice: [1]}}": "seed: cannot be searched: set it by --set seed=N, or",
    "search: {eval_max_steps: {choice: [10, 1000]}}": "eval_max_steps: cannot be searched: scores with other",
    "search: {save_every: {choice: [1, 9]}}": "save_every: cannot be searched: it does not affect the score",
    "search: {ray_address: {choice: ['a:1']}}": "ray_address: cannot be searched: set it by --set ray_address=",
    "settings: {algo: impala, actor_engine: ray, ray_address: 'a:1'}": "study.yaml names the Ray cluster a:1, which",
    "search: [core]": "search: expected lines of 'name: value'",
    "base: minipacman-rmc": "expected at least one setting",
    "base: nowhere": "cannot read the config nowhere",
    "a: [": "is not valid YAML",
    "search: {mem_slots: {choice: [2]}}\nsettings: {core: gru}": "at least one setting that ppo with core gru uses",
    "search: {discount: {choice: [0.9]}}\nsettings: {video: true}": "settings: video: trials record none",
    "search: {core: {choice: [gruu]}}": "there is no core 'gruu'; did you mean 'gru'?",
    "search: {encoder: {choice: [auto, gird]}}": "there is no encoder 'gird'; did you mean 'grid'?",
    "search: {discount: {choice: [0.9]}, discount: {choice: [0.5]}}": "expected each key once, got 'discount' again",
}


@pytest.mark.parametrize("text", BAD_STUDIES)
def test_a_bad_study_is_one_line(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").write_text(text)
    assert BAD_STUDIES[text] in refused(capsys, sweep, tmp_path / "study.yaml", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


BAD_FLAGS = {
    "no trials": (["--trials", "0"], "--trials: expected at least 1, got 0"),
    "no jobs": (["--jobs", "0"], "--jobs: expected at least 1"),
    "no episodes": (["--eval-episodes", "0"], "--eval-episodes: expected at least 1"),
    "seed": (["--seed", "-1"], "expected at least 0, got -1"),
    "seeds too large": (
        ["--one-at-a-time", "--seeds", "5000000000"],
        "--seeds: seed: input should be less than 4294967296, got 5000000000",
    ),
    "seeds of a search": (["--seeds", "0", "1"], "seeds: expected none without one_at_a_time"),
    "seeds twice": (["--one-at-a-time", "--seeds", "1", "1"], "expected each once"),
    "trials of a list": (["--one-at-a-time", "--trials", "3"], "trials: expected none with one_at_a_time"),
    "unknown setting": (["--set", "corre=lstm"], "did you mean 'core'?"),
    "no value": (["--set", "core"], "expected NAME=VALUE, got 'core'"),
    "all fixed": (["--set", "learning_rate=1e-3", "--set", "encoder_sizes=[8]"], "that --set does not fix"),
    "value of many levels": (
        ["--set", "encoder_sizes=" + "[" * 1000],
        "--set: encoder_sizes is not valid YAML: expected at most",
    ),
    "episodes by --set": (["--set", "eval_episodes=3"], "eval_episodes: cannot be fixed: give --eval-episodes instead"),
    "seed by --set": (
        ["--one-at-a-time", "--seeds", "1", "--set", "seed=2"],
        "seed: cannot be fixed: the runs have those of --seeds",
    ),
    "flags of rmc-train": (["--", "--core", "lstm"], "fix a setting of all trials with --set NAME=VALUE"),
    "a sweep to show": (["--show", "nowhere"], "--out: has no effect with --show; leave it out"),
}


def test_a_study_beside_a_sweep_to_show_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, sweep, "minipacman", "--show", tmp_path)
    assert line == "rmc-sweep: minipacman: a study has no effect with --show; leave it out\n"


@pytest.mark.parametrize("case", BAD_FLAGS)
def test_bad_flags_are_one_line(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags, expected = BAD_FLAGS[case]
    assert expected in refused(capsys, sweep, write_study(tmp_path, SEARCH), "--out", tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()


def test_each_setting_needs_its_own_flag(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, sweep, "minipacman", "--set", "core=lstm", "seed=1")
    assert "seed=1; a setting of the trials is fixed with --set NAME=VALUE" in line


def test_a_bad_folder_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path, SEARCH)
    (tmp_path / "file").write_text("")
    (tmp_path / "trials" / "trial-0000").mkdir(parents=True)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / trials.PLAN).write_text(yaml.safe_dump(read_plan(SEARCH).description()))
    (tmp_path / "damaged" / trials.JOURNAL).write_text("{damaged\n{}\n")
    (tmp_path / "other").mkdir()
    other = read_plan(SEARCH).description() | {"search": {"learning_rate": {"log": ["a", "b"]}}}
    (tmp_path / "other" / trials.PLAN).write_text(yaml.safe_dump(other))
    description = (tmp_path / "damaged" / trials.PLAN).read_text()
    for name in ("nested", "pipe"):
        (tmp_path / name).mkdir()
        (tmp_path / name / trials.PLAN).write_text(description)
    (tmp_path / "nested" / trials.JOURNAL).write_text("[" * 100_000)
    os.mkfifo(tmp_path / "pipe" / trials.JOURNAL)
    for name, expected in (
        ("file/out", "Not a directory"),
        ("file", "File exists"),
        ("trials", "holds trials but no study.journal"),
        ("damaged", "study.journal is damaged"),
    ):
        assert expected in refused(capsys, sweep, study, "--out", tmp_path / name, "--eval-episodes", "5")
    for name, expected in (
        ("nowhere", "cannot read"),
        ("other", "does not describe a sweep of this version"),
        ("nested", "damaged"),
        ("pipe", "a regular file"),
    ):
        assert expected in refused(capsys, sweep, "--show", tmp_path / name)


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    line = refused(capsys, sweep, write_study(tmp_path, SEARCH), "--out", tmp_path / "out")
    assert "pip install 'rmc-agents[sweep]'" in line
    assert not (tmp_path / "out").exists()
