"""Attention averaged around a cue: against one episode after the other, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.runs import refused, save_agent
from rmc_agents.envs.sequences.nth_farthest import NthFarthestVectorEnv
from rmc_agents.evaluate import watch
from rmc_agents.evaluate.attention import MeanAttention, draw, mean_attention
from rmc_agents.evaluate.episodes import PlaySettings
from rmc_agents.types import AgentOutput, TimeStep

CPU, LANES, STEPS, SIZE = torch.device("cpu"), 12, 5, 3


class Counter:
    """Two slots, of which the second puts a tenth more of its weight on the input at every step."""

    def initial_state(self, batch_size: int) -> Tensor:
        return torch.zeros(batch_size)

    def step(self, steps: TimeStep, state: Tensor) -> tuple[AgentOutput, Tensor]:
        passed = torch.where(steps.is_first, 0.0, state)
        return AgentOutput(torch.zeros(len(state), STEPS), passed), passed + 0.1

    def attention(self, steps: TimeStep, state: Tensor) -> Tensor:
        passed = torch.where(steps.is_first, 0.0, state)
        weights = torch.zeros(len(state), 2, 1, 2, 3)  # [B, blocks, heads, N, N+1], of which the last block counts
        weights[:, 1, 0, 1, 2] = passed
        weights[:, 1, 0, 1, 0] = 1 - passed
        return weights


def cue_steps() -> list[int]:
    """The step at which vector m is shown in each lane, from the observations."""
    env = NthFarthestVectorEnv(LANES, vectors=STEPS, size=SIZE)
    obs, _ = env.reset(seed=7)
    found = [-1] * LANES
    for step in range(STEPS):
        for lane in range(LANES):
            label, _, m = obs[lane, SIZE:].reshape(3, STEPS)
            if (label == m).all():
                found[lane] = step
        obs = env.step(np.zeros(LANES, int))[0]
    return found


def test_an_environment_with_few_episodes_plays_each_once() -> None:
    class Few(NthFarthestVectorEnv):
        def __init__(self, num_envs: int) -> None:
            super().__init__(num_envs, vectors=STEPS, size=SIZE)
            self.metadata = self.metadata | {"num_episodes": 3}

    agent: Any = Counter()
    assert mean_attention(agent, Few, LANES, PlaySettings(7, CPU, True, 100)).episodes == 3


def test_steps_are_counted_from_the_cue_in_each_episode() -> None:
    agent: Any = Counter()
    mean = mean_attention(agent, f"nth-farthest-vectors{STEPS}-size{SIZE}", LANES, PlaySettings(7, CPU, True, 100))
    cues = cue_steps()
    assert len(set(cues)) > 2
    expected: dict[int, list[float]] = {}
    for cue in cues:
        for step in range(STEPS):
            expected.setdefault(step - cue, []).append(step / 10)
    assert mean.episodes == LANES
    assert mean.steps.tolist() == sorted(expected)
    np.testing.assert_allclose(
        mean.on_input[:, 0, 1], [np.mean(expected[step]) for step in sorted(expected)], atol=1e-6
    )
    for name, chosen in (("before", range(-9, 0)), ("at", range(1)), ("after", range(1, 9))):
        values = [value for step in chosen for value in expected.get(step, [])]
        np.testing.assert_allclose(mean.phases[name][0, 1], [1 - np.mean(values), 0, np.mean(values)], atol=1e-6)
        assert not mean.phases[name][0, 0].any()


@pytest.mark.slow
def test_the_command_draws_a_figure(tmp_path: Path) -> None:
    agent = save_agent(tmp_path / "agent.safetensors", core="rmc", env="nth-farthest-vectors3-size2")
    assert watch.main([str(agent), "--out", str(tmp_path / "a.png"), "--episodes", "4"]) == 0
    assert (tmp_path / "a.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("core", "env", "expected"),
    [
        ("rmc", "recall", "expected one that marks the decisive observation"),
        ("lstm", "nth-farthest-vectors3-size2", "expected one whose memory slots attend, such as rmc"),
        ("transformer", "nth-farthest-vectors3-size2", "core Transformer: expected one whose memory slots attend"),
    ],
)
def test_what_has_no_such_figure_is_refused(
    core: str, env: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = save_agent(tmp_path / "agent.safetensors", core=core, env=env)
    assert expected in refused(capsys, watch, agent, "--out", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_a_figure_of_many_slots_is_readable() -> None:
    phases = dict.fromkeys(("before", "at", "after"), np.zeros((1, 32, 33)))
    figure = draw(MeanAttention(phases, np.arange(3), np.zeros((3, 1, 32)), 5), "cost in $, reward in $_{")
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == [*map(str, range(1, 33, 4)), "input"]
    assert figure.get_suptitle() == r"cost in \$, reward in \$_{, 5 episodes"
