"""The trials of a sweep: which are missing, their order, their results."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout
from rich.console import Console

from rmc_agents import command_line
from rmc_agents.config.plain_yaml import dump_yaml
from rmc_agents.evaluate import trainings
from rmc_agents.files import write_atomically
from rmc_agents.formatting import with_interval
from rmc_agents.runs import archive
from rmc_agents.runs.folder import check_links

from .plan import Params, Plan
from .results import LOG, Row, describe, importances, make_rows, print_results, score_of, trial_folder, write_results

if TYPE_CHECKING:
    import optuna

    from rmc_agents.evaluate.scheduler import Job, Training

PLAN, JOURNAL, NAME = "sweep.yaml", "study.journal", "sweep"
SAME_FAILURES = 3  # equal failures at the start of a sweep end it


@contextmanager
def owned(out: Path, plan: Plan) -> Iterator[None]:
    """Lock the folder for this process, with a `sweep.yaml` that must describe this sweep."""
    _import_optuna()
    out.mkdir(parents=True, exist_ok=True)
    path, description = out / PLAN, plan.description()
    try:
        with FileLock(out / ".lock", timeout=0):
            check_links(out)
            if path.exists():
                before = Plan.from_description(path).description()
                both = [(before, description), (before["settings"], description["settings"])]
                differences = (_difference(key, then[key], now[key]) for then, now in both for key in now)
                if different := list(filter(None, differences)):
                    raise ValueError(f"{out} holds another sweep, with {', '.join(different)}; choose another folder")
            if not (out / JOURNAL).exists() and any(out.glob("trial-*")):
                raise ValueError(f"{out} holds trials but no {JOURNAL}; choose another --out")
            write_atomically(path, dump_yaml(description, sort_keys=False).encode())
            # A stale lock of Optuna's, if a process was killed while it held it: no other process writes here now.
            (out / f"{JOURNAL}.lock").unlink(missing_ok=True)
            _drop_cut_record(out / JOURNAL)
            yield
    except Timeout:
        raise ValueError(f"{out} is in use by another rmc-sweep; wait for it, or choose another --out") from None


def _difference(key: str, then: Any, now: Any) -> str:
    """'another search', or 'core lstm instead of gru'; '' if they are equal, and for all settings together."""
    if now == then or key == "settings":
        return ""
    are_short = not any(isinstance(value, dict | list) for value in (then, now))
    return f"{key} {then} instead of {now}" if are_short else f"another {key}"


def _drop_cut_record(journal: Path) -> None:
    """Drop a last record that a full disk or a crash has cut short: the next one would be appended to it, and all from
    there on would be lost. A journal without a whole record stays, to be reported as damaged."""
    if journal.is_file():
        with journal.open("r+b") as file:
            whole = file.read().rfind(b"\n") + 1
            if whole:
                file.truncate(whole)


def _import_optuna() -> None:
    try:
        import optuna
    except ImportError:
        raise ValueError("rmc-sweep needs Optuna: pip install 'rmc-agents[sweep]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)


def open_study(out: Path, create: bool = False) -> "optuna.Study":
    """The sweep's trials. Raises ValueError if there are none, or the file is damaged."""
    _import_optuna()
    import optuna
    from optuna.storages.journal import JournalFileBackend

    path = out / JOURNAL
    if not create and not path.exists():
        raise ValueError(f"{out} holds no sweep (expected {path})")
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise ValueError(f"{path} is damaged: expected a regular file")
    try:
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        if create:
            optuna.create_study(study_name=NAME, storage=storage, direction="maximize", load_if_exists=True)
        study = optuna.load_study(study_name=NAME, storage=storage)
        for trial in study.get_trials(deepcopy=False):
            _ = trial.value  # raises RuntimeError for several
        return study
    except (ValueError, LookupError, TypeError, AssertionError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error


def trials_of(plan: Plan, study: "optuna.Study") -> "list[optuna.trial.FrozenTrial]":
    """The study's trials, without one that was killed before all its values were drawn."""
    names = plan.distributions().keys()
    return [trial for trial in study.get_trials(deepcopy=False) if trial.params.keys() == names]


class Sweep:
    """Starts the missing trials and records their results.

    Args:
      plan: the trials.
      out: the sweep's folder, owned by this process.
      budget: number of trials of a search.
      console: where to print.
      trust: whether to resume trials from checkpoints that can run code.

    Raises:
      ValueError: if there are such trials and they are not trusted.
    """

    def __init__(self, plan: Plan, out: Path, budget: int, console: Console, trust: bool = False) -> None:
        self.plan, self.out, self.console, self.trust = plan, out, console, trust
        self.study = open_study(out, create=True)
        self.distributions = plan.distributions()
        self.budget = len(plan.one_by_one()) if plan.one_at_a_time else budget
        self._interrupted = [trial for trial in self._trials() if not trial.state.is_finished()]
        for folder in (trial_folder(out, trial.number) for trial in self._interrupted):
            if archive.is_archive(folder):
                archive.check_trust(folder, trust)
        self._numbers: dict[Path, int] = {}  # of trials, by folder
        self._failures: list[str] = []  # of this process's trials
        self._has_result = any(trial.value is not None for trial in self._trials())

    def run(self, jobs: int) -> int:
        """Run the missing trials, several at a time. Returns the exit status.

        Raises:
          ValueError: if the first trials fail with the same error, or none has a result at the end.
        """
        from rmc_agents.evaluate.scheduler import train_jobs
        from rmc_agents.train.stopping import StopSignals

        if self.plan.left_out:
            self._say(f"not searched, as without effect under the other settings: {', '.join(self.plan.left_out)}")

        def ending() -> bool:
            return stop.received is not None or self._fails_alike()

        with StopSignals() as stop, closing(train_jobs(self._jobs(), jobs, self.console, self.trust, ending)) as ended:
            for training in ended:
                self._store(training)
        return self._conclude(stop.received)

    def _trials(self) -> "list[optuna.trial.FrozenTrial]":
        return trials_of(self.plan, self.study)

    def _fails_alike(self) -> bool:
        last = self._failures[-SAME_FAILURES:]
        return not self._has_result and len(last) == SAME_FAILURES and len(set(last)) == 1

    def _jobs(self) -> "Iterator[Job]":
        """The missing trials, interrupted ones first."""
        from rmc_agents.evaluate.scheduler import Job

        while self._interrupted or len(self._trials()) < self.budget:
            if self._interrupted:
                trial = self._interrupted.pop(0)
                number, params, verb = trial.number, trial.params, "continues"
            else:
                (number, params), verb = self.ask(), "begins"
            shown = self.plan.changed(params) | {"seed": params["seed"]} if self.plan.one_at_a_time else params
            self._say(f"trial {number} {verb}: {describe(shown)}")
            name, folder = f"trial {number}", trial_folder(self.out, number)
            self._numbers[folder] = number
            yield Job(name, folder, self.plan.config(params, name))

    def ask(self) -> tuple[int, Params]:
        """A new trial's number and values, recorded in the study before it runs."""
        import optuna

        if self.plan.one_at_a_time:
            done = [trial.params for trial in self._trials()]
            params = next(params for params in self.plan.one_by_one() if params not in done)
            running = optuna.trial.TrialState.RUNNING
            self.study.add_trial(
                optuna.trial.create_trial(state=running, params=params, distributions=self.distributions)
            )
            return self.study.get_trials(deepcopy=False)[-1].number, params
        # Seeded per trial: a sampler seeded again after an interruption would repeat its first draws.
        number = len(self.study.get_trials(deepcopy=False))
        seed = int(np.random.SeedSequence([self.plan.seed, number]).generate_state(1)[0])
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        trial = self.study.ask(self.distributions)
        return trial.number, trial.params

    def _store(self, training: "Training") -> None:
        """Record a trial's result in the study; an interrupted trial stays open and is resumed later."""
        from optuna.trial import TrialState

        folder = training.job.folder
        number, score = self._numbers[folder], score_of(training)
        if score is not None:
            self.study.tell(number, score)
            self._has_result = True
            self._say(f"trial {number} has a score of {with_interval(score, None)}")
        elif training.stopped:
            self._say(f"trial {number} was stopped")
        else:
            self.study.tell(number, state=TrialState.FAIL)
            reason = trainings.last_line(folder)
            self._failures.append(reason.replace(str(folder), "its folder"))
            self._say(f"trial {number} failed: {reason}")
        write_results(self.plan, self.rows(), importances(self.plan, self.study), self.out)

    def rows(self) -> list[Row]:
        """The settings tried, the best first."""
        return make_rows(self.plan, self._trials(), self.out)

    def _conclude(self, received: signal.Signals | None) -> int:
        rows, shares = self.rows(), importances(self.plan, self.study)
        written = write_results(self.plan, rows, shares, self.out)
        print_results(self.plan, rows, shares, self.out, self.console)
        self._say(f"written to {', '.join(map(str, written))}")
        if received is not None:
            again = trainings.same_command([self.plan.base.train.algo], self.trust)
            self._say(f"stopped by {received.name}; {again} continues it")
            return 128 + received
        if self._fails_alike():
            raise ValueError(
                f"{SAME_FAILURES} trials in a row failed with the same error, and are not tried again (once its cause "
                f"is removed, choose another folder): {self._failures[-1]}"
            )
        if all(row.score is None for row in rows):
            raise ValueError(f"no trial has a result; see their output in {self.out}/trial-*/{LOG}")
        return 0

    def _say(self, text: str) -> None:
        command_line.say(self.console, text)
