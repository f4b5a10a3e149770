"""Memory ablations: each variant removes what it says, and nothing else."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import rmc_agents as rmc
from helpers.agents import make_agent, random_steps
from helpers.runs import refused, save_agent
from rmc_agents.evaluate import ablation, cli
from rmc_agents.evaluate.ablation import ShuffledMemory, WindowedMemory, cyclic_permutation
from rmc_agents.evaluate.episodes import PlaySettings, play
from rmc_agents.evaluate.statistics import interval_of_mean
from rmc_agents.types import AgentOutput, TimeStep, at, map_leaves

CPU = torch.device("cpu")
OBSERVATIONS = 5  # of an episode of recall without an early answer: the cue, three blanks, the signal


class Seen(NamedTuple):
    cue: Tensor  # [B, C], one-hot once it has been seen


class Rememberer:
    """Plays recall perfectly: keeps the cue, waits, and names it at the signal; the value counts cues it knows."""

    def initial_state(self, batch_size: int) -> Seen:
        return Seen(torch.zeros(batch_size, 3))

    def step(self, steps: TimeStep, state: Seen) -> tuple[AgentOutput, Seen]:
        cue = torch.where(steps.is_first[:, None], 0.0, state.cue) + steps.obs[:, :3]
        signal = steps.obs[:, 3:]
        logits = torch.cat([0.5 - signal, signal * (cue + 0.1)], dim=1)  # without a cue, the first is named
        return AgentOutput(logits, cue.sum(dim=1)), Seen(cue)

    def unroll(self, steps: TimeStep, state: Seen) -> tuple[AgentOutput, Seen]:
        outputs = []
        for t in range(len(steps.is_first)):
            output, state = self.step(at(steps, t), state)
            outputs.append(output)
        return AgentOutput(*(torch.stack(x) for x in zip(*outputs, strict=True))), state


def returns(policy: object) -> list[float]:
    return play(policy, "recall", 60, PlaySettings(0, CPU, deterministic=True)).returns.tolist()


def test_recall_needs_the_memory() -> None:
    agent = Rememberer()
    intact, reset = returns(agent), returns(WindowedMemory(agent, 1))
    assert intact == [1.0] * 60
    assert 0 < sum(reset) < 40, "the first cue is the right one now and then"
    assert returns(WindowedMemory(agent, OBSERVATIONS - 1)) == reset
    assert returns(WindowedMemory(agent, OBSERVATIONS)) == intact
    assert returns(WindowedMemory(agent, 1000)) == intact
    shuffled = returns(ShuffledMemory(agent, 0))
    assert 0 < sum(shuffled) < 40, "cues as good as any, of other episodes"
    assert returns(ShuffledMemory(agent, 0)) == shuffled
    assert returns(ShuffledMemory(agent, 1)) != shuffled
    pairs = [
        play(ShuffledMemory(agent, 0), "recall", 2, PlaySettings(9 * i, CPU, deterministic=True)) for i in range(15)
    ]
    assert 0 < sum(pair.returns.sum() for pair in pairs) < 20, "few episodes do not get their own memories back"


def test_differences_are_those_of_pairs_of_episodes() -> None:
    found = ablation.ablate(Rememberer(), "recall", 60, [], PlaySettings(0, CPU, deterministic=True))
    differences = np.array(returns(WindowedMemory(Rememberer(), 1))) - 1.0
    assert found["intact"].difference_ci95 is None
    assert found["reset at every step"].difference_ci95 == interval_of_mean(differences)


def test_shuffled_memory_keeps_all_lanes_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, cell = [], cyclic_permutation
    monkeypatch.setattr(ablation, "cyclic_permutation", lambda size, draws: (lanes.append(size), cell(size, draws))[1])
    lengths = play(ShuffledMemory(make_agent("lstm"), 0), "minipacman", 5, PlaySettings(0, CPU)).lengths
    assert len(set(lengths)) > 1
    assert lanes == [64] * max(lengths)


def trajectory(policy: object, steps: TimeStep) -> list[AgentOutput]:
    """A policy's outputs at time steps `[T, B, ...]`."""
    state, outputs = policy.initial_state(steps.is_first.shape[1]), []
    for t in range(len(steps.is_first)):
        output, state = policy.step(at(steps, t), state)
        outputs.append(output)
    return outputs


def episodes(*first: tuple[int, int], length: int = 9, lanes: int = 3) -> TimeStep:
    """Time steps `[length, lanes, ...]` that begin an episode in every lane, and at each (t, lane) of `first`."""
    steps = random_steps(length, lanes)
    is_first = torch.zeros(length, lanes, dtype=torch.bool)
    is_first[0] = True
    for t, lane in first:
        is_first[t, lane] = True
    return steps._replace(is_first=is_first)


@pytest.mark.parametrize("window", [1, 4, 9])
def test_a_window_is_the_agent_on_the_last_steps_of_the_episode(window: int) -> None:
    """Of a core whose initial state is not 0."""
    torch.manual_seed(0)
    agent, steps = make_agent("rmc"), episodes((3, 1), (7, 1), (5, 2))
    for t, output in enumerate(trajectory(WindowedMemory(agent, window), steps)):
        for lane in range(3):
            begins = [s for s in range(t + 1) if steps.is_first[s, lane]][-1]
            last = at(steps, slice(max(begins, t + 1 - window), t + 1), slice(lane, lane + 1))
            expected, _ = agent.unroll(last, agent.initial_state(1))
            torch.testing.assert_close(output.policy_logits[lane], expected.policy_logits[-1, 0])
            torch.testing.assert_close(output.value[lane], expected.value[-1, 0])


def test_a_reset_leaves_previous_action_and_reward_to_the_encoder() -> None:
    agent, steps = make_agent("lstm"), episodes()
    other = steps._replace(prev_reward=steps.prev_reward + 1.0)
    values = [trajectory(WindowedMemory(agent, 1), x)[-1].value for x in (steps, other)]
    assert (values[0] != values[1]).all()


def test_a_window_keeps_copies() -> None:
    policy, steps = WindowedMemory(make_agent("lstm"), 2), episodes()
    first = map_leaves(torch.clone, at(steps, 0))
    _, state = policy.step(first, policy.initial_state(3))
    first.obs.zero_()  # as an environment that writes into the same array again
    assert torch.equal(state[0].obs, steps.obs[0])


@pytest.mark.parametrize("size", [2, 3, 7, 256])
def test_the_permutation_moves_every_lane(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(20):
        permutation = cyclic_permutation(size, generator)
        assert permutation.sort().values.tolist() == list(range(size))
        assert (permutation != torch.arange(size)).all()
        seen.add(tuple(permutation.tolist()))
    assert len(seen) == {2: 1, 3: 2}.get(size, 20)


def test_shuffled_lanes_get_the_states_of_others() -> None:
    class Spy(Rememberer):
        def step(self, steps: TimeStep, state: Seen) -> tuple[AgentOutput, Seen]:
            self.got = state.cue
            return super().step(steps, state)

    spy = Spy()
    policy = ShuffledMemory(spy, 0)
    policy.initial_state(5)
    state = Seen(torch.arange(5.0)[:, None].expand(5, 3))
    policy.step(random_steps(5)._replace(obs=torch.zeros(5, 4)), state)
    assert spy.got[:, 0].sort().values.tolist() == [0, 1, 2, 3, 4]
    assert (spy.got[:, 0] != torch.arange(5)).all()
    with pytest.raises(ValueError, match="at least 2 lanes, got 1"):
        policy.initial_state(1)


class Talker(Rememberer):
    """Half random, so that episodes end at different times and ended lanes continue with the others."""

    def step(self, steps: TimeStep, state: Seen) -> tuple[AgentOutput, Seen]:
        output, state = super().step(steps, state)
        return output._replace(policy_logits=2 * output.policy_logits), state


def test_ended_lanes_do_no_harm() -> None:
    lengths = play(Talker(), "recall", 60, PlaySettings(0, CPU)).lengths
    assert set(lengths.tolist()) == {1, 2, 3, 4, 5}
    windowed = play(WindowedMemory(Talker(), OBSERVATIONS), "recall", 60, PlaySettings(0, CPU))
    assert windowed.lengths.tolist() == lengths.tolist()
    shuffled = play(ShuffledMemory(Talker(), 0), "recall", 60, PlaySettings(0, CPU))
    assert set(shuffled.lengths.tolist()) == {1, 2, 3, 4, 5}


def test_the_command_writes_a_line_per_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_agent(tmp_path)
    target = tmp_path / "ablation.json"
    flags = ["--episodes", "12", "--seed", "5", "--ablate-memory", "--windows", "1", "6", "--json", str(target)]
    assert cli.main([str(tmp_path), *flags]) == 0
    result = json.loads(target.read_text())
    names = ["intact", "reset at every step", "shuffled between lanes", "last 1 step", "last 6 steps"]
    assert list(result["ablation"]) == names
    output = capsys.readouterr().out
    assert all(name in output for name in names)
    assert "success rate" in output
    assert f"{result['ablation']['intact']['success_rate']:.1%}" in output
    assert result["ablation"]["last 6 steps"] == result["ablation"]["intact"], "without a difference"
    assert result["ablation"]["last 1 step"] == result["ablation"]["reset at every step"]
    assert cli.main([str(tmp_path), "--episodes", "12", "--seed", "5", "--json", str(target)]) == 0
    evaluation = json.loads(target.read_text())
    for figure in ("mean_return", "ci95", "success_rate"):
        assert evaluation[figure] == result["ablation"]["intact"][figure]


def test_windows_may_come_from_a_generator(tmp_path: Path) -> None:
    save_agent(tmp_path / "run")
    found = rmc.ablate_memory(rmc.load(tmp_path / "run"), episodes=2, windows=(2**k for k in (1, 2)), max_steps=3)
    assert [*found][3:] == ["last 2 steps", "last 4 steps"]


def test_what_cannot_be_ablated_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_agent(tmp_path / "run")
    line = refused(capsys, cli, tmp_path / "run", "--ablate-memory", "--windows", "4", "0")
    assert "windows: expected an int of at least 1, got 0" in line
    save_agent(tmp_path / "none", core="none")
    assert "has no memory" in refused(capsys, cli, tmp_path / "none", "--ablate-memory")
    with pytest.raises(ValueError, match=r"windows: expected numbers of steps, such as \(1, 8\), got 3"):
        rmc.ablate_memory(rmc.load(tmp_path / "run"), windows=3)  # type: ignore[arg-type]
