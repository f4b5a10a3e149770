"""RmcPolicy with an LSTM compared with sb3-contrib's LSTM policy: equal weights, equal outputs, times in turn.

    python -m benchmarks.speed.sb3_policy [--num-envs 16] [--steps 128] [--hidden-size 256] [--rounds 5]

Both are policies of sb3-contrib's RecurrentPPO, with one LSTM for actor and critic and the same networks after it. An
iteration is a rollout and one pass of learning over it, in minibatches. The environment's lanes are the compiled ones
of Mini PacMan for both. Ratios are of neighbouring iterations.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback

from rmc_agents.sb3 import copy_lstm_policy, make_sb3_env


class Stopwatch(BaseCallback):
    """Records when the last rollout ended and learning began."""

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rollout_ended = time.perf_counter()


def make_models(num_envs: int, steps: int, hidden_size: int, batch_size: int) -> dict[str, RecurrentPPO]:
    """Theirs and ours, with the same weights."""
    settings: dict[str, Any] = {"n_steps": steps, "batch_size": batch_size, "n_epochs": 1, "seed": 0, "device": "cpu"}
    theirs = {"lstm_hidden_size": hidden_size, "shared_lstm": True, "enable_critic_lstm": False}
    ours = {"core": "lstm", "hidden_size": hidden_size, "core_skip": False}
    models = {}
    for name, policy, kwargs in (("sb3-contrib", "MlpLstmPolicy", theirs), ("RmcPolicy", "RmcPolicy", ours)):
        env = make_sb3_env("minipacman", num_envs, seed=0)
        models[name] = RecurrentPPO(policy, env, policy_kwargs=kwargs, **settings)
    copy_lstm_policy(models["sb3-contrib"].policy, models["RmcPolicy"].policy)
    return models


def largest_difference(models: dict[str, RecurrentPPO]) -> float:
    """The largest difference of values, log-probabilities and entropies over the minibatches of one rollout."""
    source = models["sb3-contrib"].rollout_buffer
    worst = 0.0
    for batch in source.get(models["sb3-contrib"].batch_size):
        inputs = (batch.observations, batch.actions.long().flatten(), batch.lstm_states, batch.episode_starts)
        with torch.no_grad():
            outputs = [model.policy.evaluate_actions(*inputs) for model in models.values()]
        mask = batch.mask > 0
        worst = max(worst, *(float((a - b).flatten()[mask].abs().max()) for a, b in zip(*outputs, strict=True)))
    return worst


def iteration(model: RecurrentPPO) -> tuple[float, float]:
    """Seconds of a rollout and of learning from it."""
    stopwatch, began = Stopwatch(), time.perf_counter()
    model.learn(model.n_steps * model.n_envs, callback=stopwatch, reset_num_timesteps=False)
    return stopwatch.rollout_ended - began, time.perf_counter() - stopwatch.rollout_ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    models = make_models(arguments.num_envs, arguments.steps, arguments.hidden_size, arguments.batch_size)
    weights = {name: model.policy.state_dict() for name, model in models.items()}
    before = {name: {key: value.clone() for key, value in state.items()} for name, state in weights.items()}
    for model in models.values():  # to warm up, and to have a rollout to compare on
        iteration(model)
    for name, model in models.items():
        model.policy.load_state_dict(before[name])
    print(f"largest difference of values, log-probabilities and entropies: {largest_difference(models):.1e}")
    times = [{name: iteration(model) for name, model in models.items()} for _ in range(arguments.rounds)]
    table = Table("", "rollout", "learning", "together", title="times as fast as sb3-contrib's policy")
    ratios = [[theirs / ours for theirs, ours in zip(*(r[n] for n in models), strict=True)] for r in times]
    for row, (rollout, learning) in zip(times, ratios, strict=True):
        together = sum(row["sb3-contrib"]) / sum(row["RmcPolicy"])
        table.add_row("round", f"{rollout:.2f}", f"{learning:.2f}", f"{together:.2f}")
    medians = [statistics.median(column) for column in zip(*ratios, strict=True)]
    medians.append(statistics.median(sum(r["sb3-contrib"]) / sum(r["RmcPolicy"]) for r in times))
    table.add_row("median", *(f"{ratio:.2f}" for ratio in medians))
    Console().print(table)


if __name__ == "__main__":
    main()
