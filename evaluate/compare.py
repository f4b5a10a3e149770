"""rmc-compare: compares agents over seeds, by frames and by minutes, in one table and one figure."""

import itertools
import reprlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from rmc_agents import command_line, configs
from rmc_agents.command_line import parsing
from rmc_agents.config import CORES, Config
from rmc_agents.runs import archive
from rmc_agents.runs.folder import CONFIG, read_config

from . import comparison, trainings
from .plot import check_marks, is_other, learning_settings, names_of_runs, parse_mark, with_effect
from .report import SUFFIXES, check_report, evaluated_in, overview, score_text, with_suffix, write_report
from .scheduler import Job, Training, is_finished, train_jobs

DESCRIPTION = """Compare agents: learning curves, final scores, frames/s and parameters, in one table and one figure.

Takes finished runs, earlier comparisons, or a grid of agents and seeds, which is trained first:

  rmc-compare runs/A runs/B runs/C
  rmc-compare --cores rmc lstm none --seeds 0 1 2 3 -- --env memory-s7 --total-frames 500000
  rmc-compare --agents minipacman-rmc minipacman-lstm --out pacman -- --learning-rate 1e-3
  rmc-compare pacman.json --mark "RMC (paper)=677" --out pacman

Flags of rmc-train after -- apply to all trainings. OUT.json (raw numbers), OUT.md and OUT.png are rewritten after
every run. When started again, it keeps finished runs and resumes the others. Runs that differ only in the seed belong
to one agent. Scores are accuracies in supervised learning, success rates if every environment
reports them, else mean returns."""

DECIDED = {
    "config": "name presets and files by --agents",
    "core": "name cores by --cores",
    "seed": "name seeds by --seeds",
    "eval_episodes": "give --episodes before --",
    "video": "a comparison records none",  # --no-video may be given
    "log_every": "a comparison logs every second",
}
"""Settings that flags after -- cannot change, and what to do instead."""
OF_TRAININGS = "seeds", "jobs", "total_frames", "episodes", "trust", "folder"


@dataclass(frozen=True)
class Arguments:
    """The options of a comparison."""

    given: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[RUN|RESULT.json ...]")] = ()
    """Folders of finished runs, and earlier results (.json), without training them again; before all flags."""
    agents: tuple[str, ...] = ()
    """Train these: presets by name, or YAML files of settings."""
    cores: tuple[str, ...] = ()
    """Train these cores, instead of each agent's own or, without --agents, with the default settings."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Train each agent once with each seed."""
    jobs: int = 2
    """Parallel trainings."""
    total_frames: int | None = None
    """Frames of each training; None: as in its settings."""
    episodes: int = 200
    """Episodes of each training's evaluation."""
    trust: bool = False
    """Resume unfinished runs of Stable-Baselines3's algorithms, whose checkpoints can run any code in them."""
    folder: Path = Path("runs/compare")
    """Folder in which runs are trained."""
    out: Path = Path("comparison")
    """Path of the results, without suffix."""
    frame_marks: tuple[float, ...] = ()
    """Columns of the table; none: a few round ones."""
    minute_marks: tuple[float, ...] = ()
    """Columns of the table; none: a few round ones."""
    mark: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A dashed line at a reference score; may be repeated."""
    imports: parsing.Imports = ()


@command_line.command("rmc-compare")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    split = argv.index("--") if "--" in argv else len(argv)
    arguments = parsing.parse(
        Arguments, argv[:split], "rmc-compare", DESCRIPTION, if_unknown="; flags of rmc-train go after --"
    )
    parsing.import_typed(argv[split + 1 :], arguments.imports, arguments.cores)
    marks = dict(parse_mark(mark) for mark in arguments.mark)
    parsing.check_numbers(arguments, "jobs", "episodes")
    jobs = wanted(arguments, argv[split + 1 :])
    runs = fitting(read_all(arguments.given, jobs), jobs)
    results = with_suffix(arguments.out, ".json")
    overwrites = results.resolve() in [path.resolve() for path in arguments.given]
    if overwrites and any(run not in runs for run in comparison.read(results)):
        raise ValueError(f"{results} would lose the runs that are left out: choose another --out")
    note_environments(runs)
    if not runs and not jobs:
        raise ValueError("expected runs or results to compare, or --agents or --cores to train; rmc-compare --help")
    columns = arguments.frame_marks, arguments.minute_marks
    check_report(arguments.out, [*columns[0], *columns[1]])
    taken = {(run.agent, run.seed) for run in runs}
    missing = [job for job in jobs if (job.agent, job.config.run.seed) not in taken]
    console = command_line.console()
    with (
        command_line.interrupted_by_stops(),
        closing(train_all(missing, arguments.jobs, console, arguments.trust)) as finished,
    ):
        for job in finished:
            runs.append(comparison.collect(job.agent, job.folder))
            write_report(in_order(runs, jobs), arguments.out, *columns, marks)
            command_line.say(console, f"{job.folder.name}: {score_text(runs[-1])}")
    ordered = in_order(runs, jobs)
    write_report(ordered, arguments.out, *columns, marks)
    command_line.show(console, overview(ordered))
    if single := [label for label, group in comparison.grouped(ordered).items() if len(group) == 1]:
        say = "no interval, because of one seed, which says nothing about the next: "
        command_line.say(console, f"{say}{'; '.join(single)} (train with --seeds 0 1 2 or more)")
    written = ", ".join(str(with_suffix(arguments.out, suffix)) for suffix in SUFFIXES)
    command_line.say(console, f"written to {written}: the runs, the table with all columns, the curves")
    return 0


def read_all(given: Sequence[Path], jobs: Sequence[Job] = ()) -> list[comparison.ComparedRun]:
    """Runs from results and from folders; those are named by the agent of `jobs` or results that has their settings,
    else by their cores. Raises ValueError for an unusable one.
    """
    if presets := [str(path) for path in given if str(path) in configs.names() and not path.exists()]:
        raise ValueError(f"expected runs, got presets: to train them, --agents {' '.join(presets)}")
    folders = [path for path in given if path.suffix != ".json"]
    settings = [read_config(folder) for folder in folders]
    read = {path: comparison.read(path) for path in given if path.suffix == ".json"}
    agents = [(job.agent, job.config) for job in jobs]
    agents += [(run.agent, run.config) for runs in read.values() for run in runs]
    for core, config, folder in zip(names_of_runs(settings), settings, folders, strict=True):
        name = next((agent for agent, known in agents if not differing(config, known, "eval_max_steps")), core)
        read[folder] = [comparison.collect(name, folder)]
    return [run for path in given for run in read[path]]


def wanted(arguments: Arguments, flags: Sequence[str]) -> list[Job]:
    """All trainings, seeds in the outer loop, so a stopped comparison has equally many runs of each agent."""
    if not arguments.agents and not arguments.cores:
        if flags:
            raise ValueError(f"flags of rmc-train need --agents or --cores to train, got {' '.join(flags)}")
        parsing.check_unused(arguments, "without --agents or --cores to train", *OF_TRAININGS)
        return []
    if not arguments.seeds:
        raise ValueError("--seeds: expected at least one, got none")
    _check_left_to_flags(arguments, flags)
    agents: dict[str, Config] = {}
    for agent, core in itertools.product(arguments.agents or (None,), arguments.cores or (None,)):
        name = None if agent is None else Path(agent).name.removesuffix(".yaml")
        label = "-".join(part for part in (name, core) if part)
        is_taken = label.casefold() in map(str.casefold, agents)  # file systems may ignore case
        if is_taken or len(set(arguments.seeds)) < len(arguments.seeds):
            raise ValueError(
                f"expected agents and seeds that differ, not in case alone, got {label} and {arguments.seeds}"
            )
        agents[label] = _agent_config(arguments, flags, agent, core, label)
    return [
        Job(label, arguments.folder / f"{label}-seed{seed}", config.updated({"seed": seed}, "--seeds"))
        for seed in arguments.seeds
        for label, config in agents.items()
    ]


def _agent_config(
    arguments: Arguments, flags: Sequence[str], agent: str | None, core: str | None, label: str
) -> Config:
    """The settings of one agent: of its preset or file, then its core, then the flags of rmc-train."""
    preset = Config().updated_from_yaml(agent)
    if core is not None:
        preset = preset.updated({"core": core}, "--cores")
    only = "; after -- go rmc-train's settings, without its folders, files and --track"
    parse = partial(parsing.parse, Config, flags, "rmc-compare", "Flags of rmc-train.", if_unknown=only)
    config = preset.changed(parse, agent)
    if config.core.core in CORES and set(arguments.cores) - set(CORES):  # --core-args are for the custom cores
        config = config.updated({"core_args": {}}, "--core-args")
    parsing.check_names(config, agent)
    own: dict[str, Any] = {"eval_episodes": arguments.episodes, "video": False, "log_every": 1.0}
    if arguments.total_frames is not None:
        own["total_frames"] = arguments.total_frames
    settled = config.updated(own, "command line").settled()
    if settled.core.core != config.core.core:
        raise ValueError(
            f"{label}: expected core {settled.core.core}, which {config.train.algo} has, got {config.core.core}"
        )
    return settled


def _check_left_to_flags(arguments: Arguments, flags: Sequence[str]) -> None:
    """Raises ValueError for a flag of rmc-train that the comparison itself sets: it would have no effect, or give an
    agent the wrong name.
    """
    decided = DECIDED | ({} if arguments.total_frames is None else {"total_frames": "it is given before -- already"})
    for flag in flags:
        name = flag.partition("=")[0].lstrip("-").replace("-", "_").removeprefix("no_")
        if flag.startswith("--") and name in decided and flag != "--no-video":
            raise ValueError(f"{flag} cannot come after --: {decided[name]}")


def fitting(runs: Sequence[comparison.ComparedRun], jobs: Sequence[Job]) -> list[comparison.ComparedRun]:
    """The given runs, each once, without those that differ from the wanted agent; prints what is left out."""
    configs_now = {job.agent: job.config for job in jobs}
    say = partial(command_line.say, command_line.console())
    fits = []
    for run in runs:
        if run.agent in configs_now and (names := differing(run.config, configs_now[run.agent], "eval_max_steps")):
            say(f"left out: {run.agent}, seed {run.seed}, which differs in {', '.join(names)}")
        else:
            fits.append(run)
    kept, repeated = comparison.split_repeated(fits)
    for run in repeated:
        say(f"left out: {run.agent}, seed {run.seed}, which was given before with the same settings")
    return kept


def note_environments(runs: Sequence[comparison.ComparedRun]) -> None:
    """Print a line for environments of one name in which random play had other scores over the same episodes."""
    say = partial(command_line.say, command_line.console())
    played: dict[tuple[str, int, int], set[float]] = {}
    for run in runs:
        played.setdefault((*evaluated_in(run), run.evaluation.episodes), set()).add(run.random_mean_return)
    for (env, *_), scores in played.items():
        if len(scores) > 1:
            say(
                f"the runs' environments {env} differ, or do not depend on the seed alone: over the same episodes, "
                f"uniform random play has mean returns from {min(scores):.4g} to {max(scores):.4g}"
            )


def in_order(runs: Sequence[comparison.ComparedRun], jobs: Sequence[Job]) -> list[comparison.ComparedRun]:
    """The runs in the order of the wanted agents, then the other given ones."""
    names = list(dict.fromkeys(job.agent for job in jobs))
    return sorted(runs, key=lambda run: names.index(run.agent) if run.agent in names else len(names))


def train_all(jobs: Sequence[Job], at_once: int, console: Console, trust: bool = False) -> Generator[Job, None, None]:
    """Train unfinished jobs and yield every finished one; when closed, running trainings save and end.

    Raises:
      ValueError: if a folder holds a run with other settings, or one that is not trusted, or a training fails, with
        its last line.
    """
    for job in jobs:
        check_folder(job, trust)
    finished = [is_finished(job.folder) for job in jobs]  # once: another process may train some of them
    yield from itertools.compress(jobs, finished)
    missing = [job for job, is_done in zip(jobs, finished, strict=True) if not is_done]
    if missing:
        command_line.say(console, f"trainings: {len(jobs)}, {sum(finished)} of them finished, {at_once} at once")
    with closing(train_jobs(iter(missing), at_once, console, trust)) as ended:
        for training in ended:
            check_success(training)
            check_folder(training.job, trust)  # another process may have trained there
            yield training.job


def check_folder(job: Job, trust: bool) -> None:
    """Raises ValueError if the folder holds a run with other settings, or an unfinished one that is not trusted."""
    if (job.folder / CONFIG).exists():
        found = read_config(job.folder)
        if names := differing(found, job.config, "eval_max_steps", "eval_episodes", "eval_every"):
            raise ValueError(
                f"{job.folder} holds a run that differs in {', '.join(names)}: choose another --folder, or remove it"
            )
    if archive.is_archive(job.folder) and not is_finished(job.folder):
        archive.check_trust(job.folder, trust)


def check_success(training: Training) -> None:
    """Raises ValueError with the last line of the training's log if it failed."""
    folder = training.job.folder
    if training.status != 0 or not is_finished(folder):
        said = trainings.last_line(folder) or f"exit status {training.status}"
        raise ValueError(f"training of {folder.name} failed: {said} (see {folder / trainings.LOG})")


def differing(one: Config, other: Config, *of_run: str) -> list[str]:
    """Names of the settings that differ between two agents and have an effect on learning, and of those `of_run`."""
    before, after = (learning_settings(config, *of_run) for config in (one, other))
    return with_effect([name for name in before if is_other(name, before[name], after[name])], (one, other))


def _folders(agents: Any) -> list[tuple[str, str | PathLike[str]]]:
    """Every run's agent and folder. Raises ValueError for anything but runs by the agent's name."""
    given = agents if isinstance(agents, Mapping) else {}
    lists = [list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) else [] for runs in given.values()]
    if not lists or not all(lists) or not all(isinstance(run, str | PathLike) for runs in lists for run in runs):
        got = " ".join(reprlib.repr(agents).split())
        raise ValueError(f"agents: expected folders by the agent's name, such as {{'rmc': ['runs/A']}}, got {got}")
    return [(str(name), run) for name, runs in zip(given, lists, strict=True) for run in runs]


def compare(
    agents: Mapping[Any, Sequence[str | PathLike[str]]],
    out: str | PathLike[str],
    *,
    frame_marks: Sequence[float] = (),
    minute_marks: Sequence[float] = (),
    marks: Mapping[str, float] | None = None,
) -> str:
    """Compare finished runs, like rmc-compare: writes OUT.json, OUT.md and OUT.png.

        runs = {core: [rmc.train({"core": core, "seed": seed}) for seed in range(3)] for core in ("rmc", "lstm")}
        print(rmc.compare(runs, "comparison"))

    Args:
      agents: each agent's runs, one for each seed, by the agent's name: folders, or results of `rmc.train`.
      out: path of the results, without suffix.
      frame_marks: columns of the table; none: a few round ones.
      minute_marks: likewise, in minutes of training.
      marks: reference scores by name, as dashed lines.

    Returns:
      The table, in Markdown.

    Raises:
      ValueError: for a run that is not finished or was not evaluated at its end, for two runs with the same settings
        and seed, for a mark of a column that is not above 0, and for a path without a name.
      OSError: if a result cannot be written.
    """
    runs = [comparison.collect(name, folder) for name, folder in _folders(agents)]
    for run in comparison.split_repeated(runs)[1]:
        raise ValueError(f"agents: {run.agent}: expected runs with different seeds, got seed {run.seed} twice")
    check_marks(marks or {})
    for name, columns in (("frame_marks", frame_marks), ("minute_marks", minute_marks)):
        if not isinstance(columns, Iterable):
            raise ValueError(f"{name}: expected several, such as [1_000_000, 5_000_000], got {columns!r}")
    check_report(Path(out), [*frame_marks, *minute_marks])
    note_environments(runs)
    return write_report(runs, Path(out), frame_marks, minute_marks, marks or {})
