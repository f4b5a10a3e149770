"""The learners other than the first (see `distributed`)."""

from contextlib import closing
from pathlib import Path

import torch

from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.train import distributed
from rmc_agents.train.algorithms import new_trainer
from rmc_agents.train.learner import Diverged, Learner
from rmc_agents.train.resuming import Saved
from rmc_agents.train.stopping import StopSignals
from rmc_agents.train.trainer import Trainer

CONTINUE, SAVE, END = 0, 1, 2
"""Orders from the first learner to the others, before the first update and after every update."""


def lead(trainer: Trainer, saved: Saved | None, run_dir: Path) -> None:
    """In the first learner, before its first update: send the others the initial state.

    Args:
      trainer: the first learner's.
      saved: the checkpoint it continues from, if any; one of another run is saved in this run's folder immediately.
      run_dir: the run's folder.

    Raises:
      WorkerError: if another learner cannot start.
    """
    if distributed.size() > 1:
        start = {"config": trainer.config.to_mapping(), "saved": saved and saved.tree}
        distributed.broadcast_tree(start | {"weights": trainer.agent.state_dict(), "torch_rng": torch.get_rng_state()})
        with distributed.failing_together():
            pass
    is_branch = saved is not None and not saved.is_of(run_dir)
    if distributed.highest(SAVE if is_branch else CONTINUE) and saved is not None:
        trainer.save(run_dir, saved.seconds)


def follow() -> int:
    """Train in step with the first learner. Returns the exit status.

    The status is 0 without a message if all learners fail together: the first one reports the reason, and torchrun
    would kill it before that if another had already exited with an error.
    """
    with StopSignals() as stop:
        try:
            with closing(_begin()) as trainer:
                _learn_along(trainer, stop)
        except (Diverged, distributed.LearnerLost, distributed.OtherFailed):
            pass
    return 0


def _begin() -> Learner:
    """A trainer in the same state as the first learner's."""
    start = distributed.broadcast_tree(None)
    with distributed.failing_together():
        trainer = new_trainer(Config().updated(start["config"], "the first learner"))
        assert isinstance(trainer, Learner)  # Stable-Baselines3 has one process
        if start["saved"] is None:
            trainer.agent.load_state_dict(start["weights"])
        else:
            trainer.set_state(start["saved"])
        torch.set_rng_state(start["torch_rng"])
    return trainer


def _learn_along(trainer: Learner, stop: StopSignals) -> None:
    """The training loop of `loop`, without reporting and saving."""
    order = distributed.highest(CONTINUE)
    if order == SAVE:
        trainer.get_state()  # collective: all contribute to what the first one saves
    try:
        while trainer.frames < trainer.train.total_frames and order != END and not stop.agreed():
            trainer.update()
            distributed.gather_episodes(trainer.lanes.take_episodes())
            order = distributed.highest(CONTINUE)
            if order == SAVE:
                trainer.get_state()
    except WorkerError:
        trainer.get_state()
        raise
    trainer.get_state()
