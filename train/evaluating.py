"""Evaluation during training: points of the curve at regular intervals, and the best agent so far in a file.

The episodes start from `SELECTION_SEED`, not from the seed of the final evaluation: the best agent is selected on some
episodes and judged on others. The global random generators are restored, so the training is bitwise the same with and
without evaluation.
"""

from pathlib import Path
from typing import NamedTuple

from rmc_agents.config import Config
from rmc_agents.envs.making import EnvFactory, make_env, with_arguments
from rmc_agents.envs.names import evaluation_kwargs
from rmc_agents.evaluate.episodes import PlaySettings, play, provenance_of
from rmc_agents.evaluate.parallel import Jobs
from rmc_agents.evaluate.scoring import evaluating
from rmc_agents.evaluate.statistics import Statistics
from rmc_agents.formatting import counted, with_interval
from rmc_agents.kernels.modes import untouched_generators
from rmc_agents.runs.best import best_of

from .trainer import Trainer

SELECTION_SEED = 3_000_000


def env_of(trainer: Trainer) -> str | EnvFactory:
    """The environment for evaluation and video."""
    env = trainer.config.env
    return with_arguments(env.env, evaluation_kwargs(env.env, env.env_kwargs))


def check_evaluation(trainer: Trainer) -> None:
    """Create the evaluation's environment once if its arguments differ, so that an error does not wait for the end.

    Raises:
      ValueError: if it cannot be created.
    """
    config = trainer.config
    name, trained = config.env.env, config.env.env_kwargs
    if (config.run.eval_episodes or config.run.video) and evaluation_kwargs(name, trained) != trained:
        make_env(env_of(trainer)).close()


def play_settings(trainer: Trainer, seed: int) -> PlaySettings:
    """How the agent's evaluations are played, by the run's settings."""
    config = trainer.config
    supervised, max_steps = config.train.is_supervised, config.run.eval_max_steps
    return PlaySettings(seed, trainer.lanes.device, supervised, max_steps, needs_targets=supervised)


def eval_jobs(config: Config) -> Jobs:
    """Processes for an evaluation: auto if the training may use several cores, else one."""
    return "auto" if config.run.learners != 1 else 1


class EvaluationPoint(NamedTuple):
    """The score of the agent at a point of its training."""

    frames: int
    statistics: Statistics
    is_best: bool  # of the run so far, by its score

    def __str__(self) -> str:
        scores = self.statistics
        accuracy = "" if scores.accuracy is None else f", accuracy {scores.accuracy:.1%}"
        best = ", the best so far" if self.is_best else ""
        return (
            f"evaluation at {self.frames:,} frames: mean return {with_interval(scores.mean_return, scores.ci95)}"
            f"{accuracy} over {counted(scores.episodes, 'episode')}{best}"
        )


class Evaluator:
    """Evaluates a run's agent every `eval_every` frames and keeps the best one in the run's folder.

    Args:
      trainer: trains the agent.
      run_dir: the run's folder; for a resumed run it holds the best agent so far.
    """

    def __init__(self, trainer: Trainer, run_dir: Path) -> None:
        self._trainer, self._run_dir = trainer, run_dir
        self._every = trainer.config.run.eval_every
        self._rounds = self._due_rounds()
        best = best_of(run_dir) if self._every else None
        self._best = None if best is None else best.provenance  # also if the run continues from before it

    def _due_rounds(self) -> int:
        """Number of evaluations due so far."""
        return self._trainer.frames // self._every if self._every else 0

    @property
    def is_due(self) -> bool:
        """Whether an evaluation is due after this update."""
        return self._due_rounds() > self._rounds

    def evaluate(self) -> EvaluationPoint:
        """Run the episodes, and save the agent if its score is the highest so far.

        Raises:
          EnvError: if the environment's own code fails.
          OSError: if the best agent cannot be written.
        """
        trainer, config = self._trainer, self._trainer.config
        settings = play_settings(trainer, SELECTION_SEED)
        with evaluating(trainer.agent), untouched_generators():
            episodes = play(trainer.agent, env_of(trainer), config.run.eval_episodes, settings, jobs=eval_jobs(config))
        self._rounds = self._due_rounds()
        statistics = Statistics.of(episodes)
        is_best = self._is_better(statistics)
        if is_best:
            self._best = provenance_of(statistics, SELECTION_SEED, env_of(trainer))
            trainer.save_best(self._run_dir, self._best)
        return EvaluationPoint(trainer.frames, statistics, is_best)

    def _is_better(self, statistics: Statistics) -> bool:
        if self._best is None:
            return True
        if statistics.accuracy is None or not self._trainer.config.train.is_supervised:
            return statistics.mean_return > self._best.mean_return
        return self._best.accuracy is None or statistics.accuracy > self._best.accuracy
