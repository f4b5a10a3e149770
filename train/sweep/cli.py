"""rmc-sweep: searches ranges of settings with many trainings."""

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from rmc_agents import command_line, plugins
from rmc_agents.command_line import parsing
from rmc_agents.command_line.values import assignments
from rmc_agents.envs.checks import checked_int

from .plan import DECIDED, Plan
from .results import Row, importances, make_rows, print_results
from .trials import PLAN, Sweep, open_study, owned, trials_of

DEFAULT_TRIALS = 16
UNUSED_BY_SHOW = ("out", "set", "trials", "one_at_a_time", "seeds", "jobs", "seed", "eval_episodes", "trust")

DESCRIPTION = """Train with many settings, and report which were best by the evaluation: its accuracy if it has
one, else its mean return.

A study's YAML file defines the trials: base (a preset or file), settings (fixed), and search, which maps each setting
to one of {log: [low, high]}, {uniform: [low, high]}, {integer: [low, high]}, {choice: [a, b, ...]}. Every trial is an
ordinary run in OUT/trial-NNNN. The same command continues an interrupted sweep.

  rmc-sweep minipacman --set core=lstm --trials 16 --jobs 2 --out runs/sweeps/lstm
  rmc-sweep minipacman --one-at-a-time --seeds 0 1 --jobs 2 --out runs/sweeps/changes
  rmc-sweep --show runs/sweeps/lstm"""


@dataclass(frozen=True)
class Arguments:
    """The study, and how many trials to run."""

    study: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")] = None
    """The study's YAML file, or the name of one included in the project."""
    out: Path | None = None
    """The sweep's folder; None: runs/sweeps/ and the study's name."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME=VALUE")] = ()
    """Fix a setting of every trial, which is then not searched; may be repeated."""
    trials: int | None = None
    """Trials of a search (Optuna's TPE sampler, the first ten random), earlier parts of the sweep included; None:
    16."""
    one_at_a_time: bool = False
    """No search: the base, then every choice and both ends of every range, one change at a time."""
    seeds: tuple[int, ...] = ()
    """With --one-at-a-time: run every change with each of these seeds; none: with the base's."""
    jobs: int = 1
    """Parallel trials, each with the number of threads of the settings, by default one."""
    seed: int = 0
    """Seed of the search; the runs' seed is a setting (--set seed=1)."""
    eval_episodes: int = 100
    """Episodes of every trial's evaluation."""
    trust: bool = False
    """Resume trials of Stable-Baselines3's algorithms, whose checkpoints can run any code in them."""
    show: Path | None = None
    """Only show the table of the sweep in this folder."""
    imports: parsing.Imports = ()


@command_line.command("rmc-sweep")
def main(argv: Sequence[str]) -> int:
    """The command; returns its exit status."""
    if "--" in argv:
        raise ValueError(
            "rmc-sweep takes no flags of rmc-train after --: fix a setting of all trials with --set NAME=VALUE"
        )
    hint = "; a setting of the trials is fixed with --set NAME=VALUE, each with its own --set"
    arguments = parsing.parse(Arguments, argv, "rmc-sweep", DESCRIPTION, if_unknown=hint)
    try:
        fixed = assignments(arguments.set)
    except ValueError as error:
        raise ValueError(f"--set: {error}") from None
    _import_parts(plugins.load, fixed, arguments.imports)
    console = command_line.console()
    if arguments.show is not None:
        parsing.check_unused(arguments, "with --show", *UNUSED_BY_SHOW)
        if arguments.study is not None:
            raise ValueError(f"{arguments.study}: a study has no effect with --show; leave it out")
        plan = Plan.from_description(arguments.show / PLAN)
        study = open_study(arguments.show)
        rows = make_rows(plan, trials_of(plan, study), arguments.show)
        print_results(plan, rows, importances(plan, study), arguments.show, console)
        return 0
    _check(arguments)
    assert arguments.study is not None
    plan = _read_plan(arguments.study, fixed, arguments)
    out = arguments.out or Path("runs/sweeps") / arguments.study.stem
    with owned(out, plan):
        return Sweep(plan, out, arguments.trials or DEFAULT_TRIALS, console, arguments.trust).run(arguments.jobs)


def sweep(
    study: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    imports: Sequence[str] = (),
    trials: int | None = None,
    one_at_a_time: bool = False,
    seeds: Sequence[int] = (),
    jobs: int = 1,
    seed: int = 0,
    eval_episodes: int = 100,
    trust: bool = False,
    console: Console | None = None,
) -> list[Row]:
    """Search ranges of settings, as rmc-sweep does; a sweep that `out` holds continues.

        search = {"learning_rate": {"log": [3e-4, 1e-2]}, "core": {"choice": ["lstm", "gru"]}}
        best = rmc.sweep({"base": "recall", "search": search}, "runs/sweeps/recall", trials=8, jobs=2)[0]

    Every trial is a training in a process of its own. Ctrl-C, SIGTERM and SIGHUP stop and save all trials.

    Args:
      study: a YAML file, the name of an included one, or the content of such a file: `base`, `settings`, `search`.
      out: the sweep's folder.
      settings: fixed for every trial, and not searched. Custom parts are named as module:Class, or registered by a
        module of `imports`.
      imports: modules that every trial imports first; what this process registers is unknown to the trials.
      trials: trials of a search, earlier parts of the sweep included; None: 16.
      one_at_a_time: no search: the base, then every choice and both ends of every range, one change at a time.
      seeds: with one_at_a_time: every change with each of these; none: with the base's.
      jobs: trials at a time.
      seed: of the search.
      eval_episodes: episodes of every trial's evaluation.
      trust: resume trials of Stable-Baselines3's algorithms, whose checkpoints can run any code in them.
      console: where progress is shown; None: standard output.

    Returns:
      The settings tried, with their scores, the best first.

    Raises:
      ValueError: for an invalid study, a folder that holds another sweep, or if no trial has a result.
      KeyboardInterrupt: after one of these signals.
    """
    if not isinstance(settings, Mapping | None):
        raise ValueError(f"settings: expected a mapping, such as {{'core': 'lstm'}}, got {settings!r}")
    if isinstance(imports, str):
        raise ValueError(f"imports: expected several modules, such as [{imports!r}], got {imports!r}")
    if not isinstance(seeds, Iterable):
        raise ValueError(f"seeds: expected several, such as (0, 1, 2), got {seeds!r}")
    arguments = Arguments(
        Path("study"),
        trials=None if trials is None else checked_int("trials", trials, 1),
        one_at_a_time=one_at_a_time,
        seeds=tuple(seeds),
        jobs=checked_int("jobs", jobs, 1),
        seed=checked_int("seed", seed, 0),
        eval_episodes=checked_int("eval_episodes", eval_episodes, 1),
    )
    _check(arguments)
    _import_parts(plugins.add, settings or {}, imports)
    plan = _read_plan(study if isinstance(study, Mapping) else Path(study), settings or {}, arguments)
    if not imports:
        _check_known_to_trials(plan)
    with owned(Path(out), plan):
        started = Sweep(plan, Path(out), trials or DEFAULT_TRIALS, console or command_line.console(), trust)
        if (status := started.run(jobs)) > 128:
            raise KeyboardInterrupt(signal.Signals(status - 128))
        return started.rows()


def _read_plan(study: Path | Mapping[str, Any], fixed: Mapping[str, Any], arguments: Arguments) -> Plan:
    """The plan of a study. Raises ValueError as `Plan.read` does, and for settings that arguments decide."""
    decided = DECIDED | ({"seed": "the runs have those of --seeds"} if arguments.seeds else {})
    for name in fixed.keys() & decided.keys():
        raise ValueError(f"{name}: cannot be fixed: {decided[name]}")
    return Plan.read(study, fixed, arguments.eval_episodes, arguments.one_at_a_time, arguments.seed, arguments.seeds)


def _check_known_to_trials(plan: Plan) -> None:
    """Raises ValueError for a core, encoder or loss that only this process has registered."""
    settings = plan.base.to_mapping()
    for kind, registered in plugins.registered.items():
        _, searched = plan.search.get(kind, ("choice", []))
        for name in {settings[kind], *searched} & registered.keys():
            raise ValueError(
                f"{kind}: {name!r} is registered in this process, and trials are processes of their own: expected the "
                "module that registers it in imports=[...]"
            )


def _import_parts(by: Callable[..., None], fixed: Mapping[str, Any], imports: Sequence[str]) -> None:
    """Import the modules that the settings name, by `plugins.load` or, in addition to earlier ones, `plugins.add`."""
    named = {name: str(fixed[name]) for name in ("env", "core", "encoder", "loss") if name in fixed}
    by(imports, named.get("core"), named.get("encoder"), named.get("loss"), env=named.get("env"))


def _check(arguments: Arguments) -> None:
    if arguments.study is None:
        raise ValueError("expected a study's YAML file, or --show OUT (see rmc-sweep --help)")
    parsing.check_numbers(arguments, "trials", "jobs", "eval_episodes", "seed")
    if arguments.one_at_a_time and arguments.trials is not None:
        raise ValueError("trials: expected none with one_at_a_time: the study's values decide how many")
    if arguments.seeds and not arguments.one_at_a_time:
        raise ValueError("seeds: expected none without one_at_a_time; a search's runs have one seed, the setting seed")
    if len(set(arguments.seeds)) < len(arguments.seeds):
        raise ValueError(f"seeds: expected each once, got {' '.join(map(str, arguments.seeds))}")
