"""Learning at equal frames and at equal minutes: agents by seeds, trained by rmc-train, to one table and one figure.

  python benchmarks/learning.py --agents minipacman-rmc minipacman-lstm --seeds 0 1 2 -- --learning-rate 1e-3
  python benchmarks/learning.py --redraw --mark "RMC (paper)=677"

Flags of rmc-train behind -- hold for all agents. After every run OUT.json (raw numbers), OUT.md and OUT.png are written
anew. Started again, it keeps the runs that are finished and resumes the others. The interval is Student's over the
seeds' mean returns, each the mean over the evaluation's episodes; with three seeds it is wide.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import evidence
import tyro

from rmc_agents import cli, configs
from rmc_agents.checkpoint import FOLDER, write_atomically
from rmc_agents.config import Config
from rmc_agents.evaluate.plot import essence, parse_mark
from rmc_agents.train.run_folder import CONFIG, SUMMARY, TENSORBOARD, RunFolder

ROOT = Path(__file__).parent.parent
TRAIN = [sys.executable, "-c", "import sys; from rmc_agents.train.cli import main; sys.exit(main())"]
POLL = 0.2  # seconds between looks at the running trainings


@dataclass(frozen=True)
class Arguments:
    """What to compare, and where to keep it."""

    agents: tuple[str, ...] = ("minipacman-rmc", "minipacman-lstm", "minipacman-none")
    """Presets by name, or YAML files of settings."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each agent is trained once from each."""
    jobs: int = 2
    """Trainings side by side."""
    total_frames: int | None = None
    """Of each run; None: as its settings say."""
    episodes: int = 200
    """Of each run's evaluation."""
    runs: Path = Path("runs/learning")
    """The runs' folders."""
    out: Path = Path("benchmarks/results/learning")
    """The results, without suffix."""
    merge: tuple[Path, ...] = ()
    """Earlier results (.json): their runs count too, and are not trained again, where an agent's settings are equal."""
    redraw: bool = False
    """Train nothing: table and figure from OUT.json and --merge."""
    frame_marks: tuple[float, ...] = ()
    """Columns of the table; none: a few round ones."""
    minute_marks: tuple[float, ...] = ()
    """Columns of the table; none: a few round ones."""
    mark: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """A dashed line at a return worth comparing with; may be given again."""


class Job(NamedTuple):
    """A run that is wanted."""

    agent: str
    folder: Path
    config: Config


def main(argv: Sequence[str] | None = None) -> int:
    """The script; returns its exit status."""
    return cli.run("learning.py", lambda: _main(sys.argv[1:] if argv is None else argv))


def _main(argv: Sequence[str]) -> int:
    split = argv.index("--") if "--" in argv else len(argv)
    arguments = cli.parse(Arguments, argv[:split], "learning.py", __doc__)
    marks = dict(parse_mark(mark) for mark in arguments.mark)
    if arguments.jobs < 1 or arguments.episodes < 1:
        raise ValueError(f"expected --jobs and --episodes of at least 1, got {arguments.jobs} and {arguments.episodes}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    merged = [run for path in arguments.merge for run in evidence.read(path)]
    if arguments.redraw:
        own = evidence.read(beside(arguments.out, ".json")) if _has_result(arguments) else []
        print(report([*own, *merged], arguments, marks))
        return 0
    jobs = wanted(arguments, argv[split + 1 :])
    runs = fitting(merged, jobs)
    taken = {(run.agent, run.seed) for run in runs}
    missing = [job for job in jobs if (job.agent, job.config.run.seed) not in taken]
    for job in train_all(missing, arguments.jobs):
        runs.append(evidence.collect(job.agent, job.folder))
        print(f"{job.folder.name}: {runs[-1].evaluation.mean_return:.1f}", flush=True)
        report(in_order(runs, arguments), arguments, marks)
    print(report(in_order(runs, arguments), arguments, marks))
    return 0


def _has_result(arguments: Arguments) -> bool:
    """Whether OUT.json is to be read: without --merge it is all there is, and its absence an error."""
    return not arguments.merge or beside(arguments.out, ".json").exists()


def wanted(arguments: Arguments, flags: Sequence[str]) -> list[Job]:
    """All runs, seeds in the outer loop, so that a comparison that is stopped has as many of each agent."""
    names = names_of(arguments)
    if len(set(names)) < len(names) or len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"expected agents and seeds that differ, got {', '.join(names)} and {arguments.seeds}")
    own = {"eval_episodes": arguments.episodes, "video": False, "log_every": 1.0}
    if arguments.total_frames is not None:
        own["total_frames"] = arguments.total_frames
    jobs = []
    for seed in arguments.seeds:
        for name, agent in zip(names, arguments.agents, strict=True):
            preset = Config().updated_from_yaml(configs.find(Path(agent)))
            config = cli.parse(Config, flags, "learning.py", "Flags for all agents.", preset)
            config = config.updated(own | {"seed": seed}, "command line")
            jobs.append(Job(name, arguments.runs / f"{name}-seed{seed}", config))
    return jobs


def names_of(arguments: Arguments) -> list[str]:
    """What the agents are called."""
    return [Path(agent).name.removesuffix(".yaml") for agent in arguments.agents]


def fitting(merged: Sequence[evidence.Run], jobs: Sequence[Job]) -> list[evidence.Run]:
    """Runs from earlier results, without those of a wanted agent that had other settings, which are told."""
    configs_now = {job.agent: job.config for job in jobs}
    kept = []
    for run in merged:
        if run.agent in configs_now and (names := differing(run.config, configs_now[run.agent])):
            print(f"left out: {run.agent}, seed {run.seed}, which differs in {', '.join(names)}")
        else:
            kept.append(run)
    return kept


def differing(one: Config, other: Config) -> list[str]:
    """Names of the settings in which two agents differ."""
    before, after = essence(one), essence(other)
    return [name for name in before if before[name] != after[name]]


def train_all(jobs: Sequence[Job], at_once: int) -> Iterator[Job]:
    """Trains what is not finished, and hands out every job once it is; stopped, it stops and saves what is under way.

    Raises:
      ValueError: if a folder holds a run with other settings, or a training fails, with its last line.
    """
    for job in jobs:
        check_folder(job)
    yield from (job for job in jobs if is_finished(job.folder))
    waiting = [job for job in jobs if not is_finished(job.folder)]
    running: dict[Job, subprocess.Popen] = {}
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                job = waiting.pop(0)
                running[job] = start(job)
            time.sleep(POLL)
            for job in [job for job, process in running.items() if process.poll() is not None]:
                check_success(job, running.pop(job).returncode)
                yield job
    finally:
        for process in running.values():
            process.terminate()  # rmc-train saves, and can be resumed
        for process in running.values():
            process.wait()


def start(job: Job) -> subprocess.Popen:
    """The training as a process, new or resumed, in a session of its own: Ctrl-C is for this script to handle."""
    folder = job.folder
    if any((folder / FOLDER).glob("update-*.safetensors")):
        flags = ["--resume", str(folder)]
    else:
        with RunFolder(folder, resuming=(folder / FOLDER).is_dir()):  # no other process trains there
            for leftover in (TENSORBOARD, FOLDER):  # of one that was killed before its first checkpoint
                shutil.rmtree(folder / leftover, ignore_errors=True)
            (folder / evidence.COMMITS).unlink(missing_ok=True)
        settings = beside(folder, ".yaml")
        write_atomically(settings, job.config.to_yaml().encode())
        flags = ["--config", str(settings), "--run-dir", str(folder)]
    note_commit(folder)
    with log_of(job).open("a") as log:
        return subprocess.Popen([*TRAIN, *flags], stdout=log, stderr=log, start_new_session=True)


def note_commit(folder: Path) -> None:
    """Add the code's commit to what the run was trained with, unless it is there already."""
    commits = evidence.read_commits(folder)
    describe = ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude", "*"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    write_atomically(folder / evidence.COMMITS, "\n".join(dict.fromkeys([*commits, commit, ""])).encode())


def is_finished(folder: Path) -> bool:
    """Whether the run is trained and evaluated."""
    path = folder / SUMMARY
    return path.exists() and json.loads(path.read_text())["evaluation"] is not None


def check_folder(job: Job) -> None:
    """Raises ValueError if a run with other settings is there."""
    if (job.folder / CONFIG).exists():
        found = Config().updated_from_yaml(job.folder / CONFIG)
        names = differing(found, job.config)
        if found.run.eval_episodes != job.config.run.eval_episodes:
            names.append("eval_episodes")
        if names:
            raise ValueError(
                f"{job.folder} holds a run that differs in {', '.join(names)}: choose another --runs, or remove it"
            )


def check_success(job: Job, status: int) -> None:
    """Raises ValueError with the last line of the training's log if it failed."""
    if status != 0 or not is_finished(job.folder):
        said = log_of(job).read_text(errors="replace").strip().splitlines() or [f"exit status {status}"]
        raise ValueError(f"training of {job.folder.name} failed: {said[-1]} (see {log_of(job)})")


def log_of(job: Job) -> Path:
    """Where a training's output goes."""
    return beside(job.folder, ".log")


def beside(path: Path, suffix: str) -> Path:
    """The file of that name with the suffix behind it, whatever dots are in the name."""
    return path.with_name(path.name + suffix)


def in_order(runs: Sequence[evidence.Run], arguments: Arguments) -> list[evidence.Run]:
    """By agent as they were asked for, then those that came by --merge alone."""
    names = names_of(arguments)
    return sorted(runs, key=lambda run: names.index(run.agent) if run.agent in names else len(names))


def report(runs: Sequence[evidence.Run], arguments: Arguments, marks: dict[str, float]) -> str:
    """Writes JSON, table and figure; returns the table. Raises ValueError if there are no runs."""
    if not runs:
        raise ValueError("expected at least one run to report, got none")
    groups = evidence.grouped(runs)
    evidence.write([run for group in groups.values() for run in group], beside(arguments.out, ".json"))
    text = evidence.table(groups, arguments.frame_marks, arguments.minute_marks)
    write_atomically(beside(arguments.out, ".md"), text.encode())
    evidence.figure(groups, marks, beside(arguments.out, ".png"))
    return text


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
