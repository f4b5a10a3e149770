"""Finished runs in rmc-compare: raw numbers as JSON, and the table and figure made from them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, TypeAdapter

from rmc_agents import plugins
from rmc_agents.config import Config
from rmc_agents.envs.names import NAMESPACE
from rmc_agents.files import write_atomically
from rmc_agents.formatting import as_printable, significant
from rmc_agents.runs.folder import PACKAGES, SUMMARY, VERSIONS, read_config, resume_command

from .curves import Curve, at_frames, read_curve, smoothed, thinned
from .plot import labels
from .statistics import Statistics
from .summary import Count, Evaluation, Seconds, read_json, read_summary
from .trainings import read_commits


@dataclass(frozen=True)
class Points:
    """A learning curve: means over the training episodes that ended between two points."""

    frames: list[Count]
    seconds: list[float]
    returns: list[float] | None
    """The return; None if no episode has ended, as in a long text."""
    successes: list[float] | None = None
    """The success rate; None if the environment does not report it."""
    accuracies: list[float] | None = None
    """In supervised learning, the accuracy of single updates."""

    def __post_init__(self) -> None:
        scores = self.returns, self.successes, self.accuracies
        lengths = {len(values) for values in (self.frames, self.seconds, *scores) if values is not None}
        if len(lengths) > 1 or 0 in lengths or all(values is None for values in scores):
            raise ValueError("expected as many frames as seconds and scores, at least one of each")


@dataclass(frozen=True)
class ComparedRun:
    """A row of the JSON file: one seed of one agent. Fields with a default are missing in older files."""

    agent: Annotated[str, AfterValidator(as_printable)]
    """The agent's name: its preset or core."""
    seed: int
    commits: list[str]
    """Commits of the code that trained it; several if it was resumed with another."""
    versions: dict[str, str]
    """Versions of the libraries."""
    parameters: Count
    frames: Count
    seconds: Seconds
    """Training time."""
    evaluation: Statistics
    random_mean_return: float
    """The mean return of uniform random play in the episodes of the evaluation."""
    settings: dict[str, Any]
    """All settings."""
    curve: Points
    random_success_rate: float | None = None
    chance: float | None = None
    """The accuracy of guessing."""

    @property
    def config(self) -> Config:
        """The settings; those added to the project since are at their defaults."""
        return Config().updated(self.settings, f"settings of {self.agent}, seed {self.seed}")

    def score(self, metric: str) -> float | None:
        """The evaluation's mean return, or its success rate or accuracy if it has one."""
        of = self.evaluation
        return {"return": of.mean_return, "success": of.success_rate, "accuracy": of.accuracy}[metric]

    def random_score(self, metric: str) -> float | None:
        """The score of uniform random play."""
        scores = {"return": self.random_mean_return, "success": self.random_success_rate, "accuracy": self.chance}
        return scores[metric]

    def values_of(self, metric: str) -> list[float] | None:
        """The values of the learning curve; None if it does not have this metric."""
        of = self.curve
        return {"return": of.returns, "success": of.successes, "accuracy": of.accuracies}[metric]

    def curve_of(self, metric: str) -> Curve:
        """The learning curve, smoothed."""
        values = self.values_of(metric)
        return smoothed(Curve(np.array(self.curve.frames), np.array(values), np.array(self.curve.seconds)))


def _resume_command(folder: Path, flags: str = "", settings: str = "") -> str:
    """How a run is resumed, with flags on the command line or settings in Python."""
    config = read_config(folder)
    if config.env.env.startswith(NAMESPACE):
        which = "where env is a class or a function: a VectorEnv object is not evaluated"
        return f"rmc.resume({str(folder)!r}{settings}, env=...), {which}"
    parts = config.core.core, config.agent.encoder, config.train.loss, config.env.env
    missing = (part for part in parts if part not in plugins.flags())
    return resume_command(folder, config, flags) + plugins.flags_of(*missing)


def collect(agent: str, folder: str | PathLike[str]) -> ComparedRun:
    """The finished run in `folder`.

    Raises:
      ValueError: if it is not finished, or one of its files is missing or damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no run {folder}")
    if not (folder / SUMMARY).exists():
        raise ValueError(f"{folder} is not finished: continue it with {_resume_command(folder)}")
    summary = read_summary(folder)
    if summary.evaluation is None:
        command = _resume_command(folder, " --eval-episodes 200", ", {'eval_episodes': 200}")
        raise ValueError(f"{folder} was not evaluated at its end: evaluate it with {command}")
    versions = read_json(dict[str, str], folder / VERSIONS, "list of versions")
    parameters = summary.parameters
    if parameters is None:  # an older run
        from rmc_agents.runs.saved import saved_size  # imports torch

        parameters = saved_size(folder)
    config = read_config(folder)
    row = {
        "agent": agent,
        "seed": config.run.seed,
        "commits": read_commits(folder) or ["unknown"],
        "versions": {name: versions.get(name, "unknown") for name in PACKAGES},
        "parameters": parameters,
        "frames": summary.frames,
        "seconds": round(summary.seconds, 3),
        "evaluation": asdict(summary.evaluation),  # those of random play are not read
        "random_mean_return": summary.evaluation.random_mean_return,
        "random_success_rate": summary.evaluation.random_success_rate,
        "chance": summary.evaluation.chance,
        "settings": config.to_mapping(),
        "curve": _points(folder, summary.evaluation, is_supervised=config.train.is_supervised),
    }
    return TypeAdapter(ComparedRun).validate_python(row)


def _points(folder: Path, evaluation: Evaluation, is_supervised: bool) -> dict[str, list[float] | None]:
    """The fields of `Points`: of the answers in supervised learning, else of the episodes."""
    found = read_curve(folder, "accuracy" if is_supervised else "return")
    returns: np.ndarray | None = found.values
    if is_supervised:
        curve = read_curve(folder, "return", is_optional=True)
        returns = np.interp(found.frames, curve.frames, curve.values) if len(curve.frames) else None
    successes = read_curve(folder, "success", is_optional=True)
    is_reported = evaluation.success_rate is not None or len(successes.frames)
    rates = at_frames(successes, found.frames) if is_reported else None
    thin = thinned(found)
    scores = {"returns": returns, "successes": rates, "accuracies": found.values if is_supervised else None}
    return {"frames": thin.frames.tolist(), "seconds": thin.seconds.round(1).tolist()} | {
        name: None if values is None else significant(thinned(found._replace(values=values)).values)
        for name, values in scores.items()
    }


def read(path: str | PathLike[str]) -> list[ComparedRun]:
    """The rows of a result file. Raises ValueError if it is missing, damaged or of another format."""
    return read_json(list[ComparedRun], path, "result of rmc-compare")


def write(runs: Sequence[ComparedRun], path: str | PathLike[str]) -> None:
    """Write the rows as JSON, one line each."""
    lines = ",\n".join(json.dumps(asdict(run)) for run in runs)
    write_atomically(Path(path), f"[\n{lines}\n]\n".encode())


def grouped(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Runs by agent label, sorted by seed; duplicates of label and seed are dropped."""
    groups: dict[str, dict[int, ComparedRun]] = {}
    names, configs = [run.agent for run in runs], [run.config for run in runs]
    for label, run in zip(labels(names, configs, "eval_max_steps"), runs, strict=True):
        groups.setdefault(label, {}).setdefault(run.seed, run)
    return {label: [seeds[seed] for seed in sorted(seeds)] for label, seeds in groups.items()}


def split_repeated(runs: Sequence[ComparedRun]) -> tuple[list[ComparedRun], list[ComparedRun]]:
    """The runs that `grouped` keeps, and the duplicates that it drops."""
    kept = {id(run) for run in runs_of(grouped(runs))}
    return [run for run in runs if id(run) in kept], [run for run in runs if id(run) not in kept]


def runs_of(groups: Mapping[str, Sequence[ComparedRun]]) -> list[ComparedRun]:
    """All runs of `grouped`."""
    return [run for group in groups.values() for run in group]
