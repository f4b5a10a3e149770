"""The learners that torchrun starts beside the first (see `distributed`)."""

from contextlib import closing

import torch

from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.runs.saved import pick_device
from rmc_agents.train import distributed
from rmc_agents.train.learner import Diverged
from rmc_agents.train.stopping import StopSignals

from .learner import Impala


def follow() -> int:
    """Learn along with the first learner, by its settings and from its weights. Returns the exit status.

    That is 0, and nothing is said, when all learners end alike: it is for the first one to tell why, and torchrun
    would end it before it could, if another had ended with a failure by then.
    """
    with StopSignals() as stop:
        try:
            tree = distributed.share(None)
            config = Config().updated(tree["config"], "the first learner")
            torch.set_num_threads(config.run.threads)
            device = pick_device(config.run.device)
            distributed.check_settings(config, device)
            with closing(Impala(config, device)) as trainer:
                trainer.set_state(tree)
                _learn_along(trainer, stop)
        except (Diverged, distributed.LearnerLost, distributed.OtherFailed):
            pass
    return 0


def _learn_along(trainer: Impala, stop: StopSignals) -> None:
    """The training loop of `run`, step by step, but for what it shows and writes."""
    try:
        while trainer.frames < trainer.train.total_frames and not stop.agreed():
            trainer.update()
            trainer.lanes.take_episodes()  # else they pile up
            if distributed.highest(False):
                trainer.get_state()  # all take part in what the first one saves
    except distributed.OtherFailed:
        trainer.get_state()
        raise
    except WorkerError as error:
        trainer.get_state()
        raise WorkerError(f"learner {distributed.rank()}: {error}") from error
    trainer.get_state()
