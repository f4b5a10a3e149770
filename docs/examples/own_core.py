"""Your own core, trained and evaluated like the built-in ones: a trace that decays."""

import sys
from typing import NamedTuple

import torch
from torch import Tensor

import rmc_agents as rmc


class State(NamedTuple):
    """The state of the core."""

    trace: Tensor  # [B, D]


class Decay(rmc.Core):
    """An exponential moving average of its inputs."""

    def __init__(self, input_size: int, keep: float = 0.9) -> None:
        super().__init__(input_size)
        self.keep = keep

    def initial_leaves(self) -> State:
        """The initial state of one lane."""
        return State(torch.zeros(1, self.output_size))

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step of all lanes; where an episode begins, the state has been reset already."""
        trace = self.keep * state.trace + (1 - self.keep) * x
        return trace, State(trace)


rmc.register_core("decay", Decay)  # here, so that commands find it with --import own_core


def main(frames: int = 300_000) -> None:
    """Train it on recall, open the run, evaluate."""
    settings = {
        "env": "recall",
        "core": "decay",
        "core_args": {"keep": 0.8},
        "num_envs": 32,
        "total_frames": frames,
        "eval_episodes": 0,
        "video": False,
    }
    run = rmc.train(settings)
    saved = rmc.load(run.path)  # in another process: import this module first
    statistics = rmc.evaluate(saved, "recall", episodes=100)
    print(f"mean return {statistics.mean_return:.2f}; {statistics.success_rate:.0%} named the cue, by chance 33 %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
