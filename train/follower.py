"""What a learner does that is not the first of several (see `data_parallel`)."""

from contextlib import closing

import torch

from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.saved import pick_device

from . import data_parallel
from .impala import Impala
from .learner import Diverged
from .stopping import StopSignals


def follow() -> int:
    """Learn along with the first learner, by its settings and from its weights. Returns the exit status.

    That is 0, and nothing is said, when all learners end alike: it is for the first one to tell why, and torchrun
    would end it before it could, if another had ended with a failure by then.
    """
    with StopSignals() as stop:
        try:
            tree = data_parallel.share(None)
            config = Config().updated(tree["config"], "the first learner")
            torch.set_num_threads(config.run.threads)
            device = pick_device(config.run.device)
            data_parallel.check_settings(config, device)
            with closing(Impala(config, device)) as trainer:
                trainer.set_state(tree)
                _learn_along(trainer, stop)
        except (Diverged, data_parallel.LearnerLost, data_parallel.OtherFailed):
            pass
    return 0


def _learn_along(trainer: Impala, stop: StopSignals) -> None:
    """The training loop of `run`, step by step, but for what it shows and writes."""
    try:
        while trainer.frames < trainer.train.total_frames and not stop.agreed():
            trainer.update()
            trainer.lanes.take_episodes()  # else they pile up
            if data_parallel.highest(False):
                trainer.get_state()  # all take part in what the first one saves
    except data_parallel.OtherFailed:
        trainer.get_state()
        raise
    except WorkerError as error:
        trainer.get_state()
        raise WorkerError(f"learner {data_parallel.rank()}: {error}") from error
    trainer.get_state()
