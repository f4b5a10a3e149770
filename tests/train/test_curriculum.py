"""A curriculum: when a stage ends, what the next one plays, exact resume across stages, and refusals."""

import copy
import math
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import rmc_agents as rmc
from helpers.runs import assert_same, newest, resume, train
from rmc_agents.config import Config, EnvConfig
from rmc_agents.config.stages import stages_of
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import WorkerError
from rmc_agents.envs.sequences.nth_farthest import NthFarthestVectorEnv
from rmc_agents.episodes import Episode
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes
from rmc_agents.train import curriculum
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.train.curriculum import Curriculum
from rmc_agents.train.supervised import Supervised
from rmc_agents.types import Rollout, TimeStep

CPU = torch.device("cpu")
TASK = "nth-farthest-vectors3-size2"
STAGES: list[dict[str, Any]] = [
    {"env_kwargs": {"most": 2}, "frames": 60},
    {"env_kwargs": {"fewest": 2, "active": 1}, "accuracy": 0.1},
]
NOTHING = Rollout(None, None, None, ())  # type: ignore[arg-type]


class FewLanes:
    """Lanes whose episodes are numbered elsewhere."""

    numbers = np.zeros(0, np.int64)
    restarts = 0

    def restart_numbering(self) -> None:
        self.restarts += 1


def trainer(**settings: object) -> Supervised:
    sizes = {"hidden_size": 8, "encoder_sizes": [8], "num_envs": 6, "unroll_length": 7, "core": "lstm"}
    config = Config().updated({"env": TASK, "algo": "supervised", "curriculum": STAGES} | sizes | settings, "test")
    made = make_trainer(config, CPU)
    assert isinstance(made, Supervised)
    return made


def lanes_of(learner: Supervised) -> tuple[int, int, int]:
    env = learner.lanes.env
    assert isinstance(env, NthFarthestVectorEnv)
    return env.lanes.fewest, env.lanes.most, env.lanes.active


def test_the_stages_are_played_in_order_and_then_the_environment_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "ENOUGH", 30)
    learner, stages = trainer(), []
    for _ in range(20):
        stage = learner.update()["curriculum/stage"].item()
        stages.append((lanes_of(learner), stage))
    assert stages[0] == ((2, 2, 2), 1)
    assert stages[1] == ((2, 3, 1), 2)  # after 84 frames
    assert stages[-1] == ((3, 3, 2), 3)
    assert [stage for _, stage in stages] == sorted(stage for _, stage in stages)
    assert learner.collector.lanes is learner.lanes
    first = learner.collector.rollout.steps
    assert first.obs.shape == (8, 6, 2 + 3 * 3)


def test_episodes_that_ended_before_a_new_stage_are_reported() -> None:
    learner, twin = trainer(), trainer(curriculum=[], env_kwargs={"most": 2})
    for each in (learner, twin):
        each.update()
        each.update()
    assert lanes_of(learner) != lanes_of(twin)
    assert learner.lanes.take_episodes() == twin.lanes.take_episodes() != []


def test_a_stage_that_cannot_be_made_leaves_the_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = trainer()
    learner.update()
    with monkeypatch.context() as patched:
        patched.setattr(NthFarthestVectorEnv, "reset", failing)
        with pytest.raises(WorkerError, match="no room"):
            learner.update()
    assert (learner.curriculum.stage, lanes_of(learner), learner.frames) == (0, (2, 2, 2), 84)
    other = trainer()
    other.set_state(copy.deepcopy(learner.get_state()))
    for each in (learner, other):
        each.update()
        assert (each.curriculum.stage, lanes_of(each)) == (1, (2, 3, 1))


def failing(*args: object, **kwargs: object) -> None:
    raise WorkerError("no room")


@pytest.mark.parametrize(("measure", "threshold"), [("return", 1.5), ("success", 0.75)])
def test_a_stage_ends_with_a_mean_over_enough_episodes(measure: str, threshold: float) -> None:
    good, bad = Episode(3.0, 4, True), Episode(0.0, 4, None)

    def passed(episodes: list[Episode]) -> list[bool]:
        stages = Curriculum(EnvConfig(num_envs=250, curriculum=({"env_kwargs": {"mode": "hunt"}, measure: threshold},)))
        return [stages.count(1, NOTHING, episodes[i : i + 100], FewLanes()) for i in range(0, len(episodes), 100)]

    mixed = [good] * 3 + [bad]
    assert passed(mixed * 125) == [False] * 4 + [True]
    assert passed(mixed * 100) == [False] * 4
    assert passed([bad] * 500 + mixed * 125) == [False] * 9 + [True]  # counted again after 500
    assert passed([bad, bad, bad, good] * 250) == [False] * 10


def test_frames_end_a_stage_whose_threshold_is_not_reached() -> None:
    good, bad = Episode(3.0, 4, True), Episode(0.0, 4, False)
    stage = {"env_kwargs": {"mode": "hunt"}, "success": 0.75, "frames": 1000}

    def left_after(episodes: list[Episode]) -> int:
        stages = Curriculum(EnvConfig(num_envs=250, curriculum=(stage,)))
        return next(frames for frames in range(250, 2000, 250) if stages.count(250, NOTHING, episodes, FewLanes()))

    assert left_after([good] * 300) == 500
    assert left_after([bad] * 300) == 1000
    assert str(stages_of([stage])[0]) == "mode=hunt until success 0.75 or frames 1,000"


def test_short_episodes_do_not_count_more_often_than_long_ones() -> None:
    """Success after 2 steps, failure after 20, 7 of 10 lanes each: the first episodes that end are successful."""
    stages = Curriculum(EnvConfig(num_envs=10, curriculum=({"env_kwargs": {"mode": "hunt"}, "success": 0.8},)))
    advanced, restarts, lanes = [], [], FewLanes()
    for time in range(2, 2_202, 2):
        quick = [Episode(1.0, 2, True, time // 2 - 1) for _ in range(7)]
        slow = [Episode(0.0, 20, False, time // 20 - 1) for _ in range(3)] if time % 20 == 0 else []
        advanced.append(stages.count(1, NOTHING, quick + slow, lanes))
        restarts.append(lanes.restarts)
    assert not any(advanced)
    assert restarts.index(1) == 499  # after 50 episodes of the slow lanes


class Mixed(gym.Env):
    """Half of the episodes ask once, with the answer 0, in their second step; the others ask for a coin, much later."""

    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.length = 0, int(self.np_random.choice([2, 30]))
        return np.zeros(1, np.float32), {"target": -1}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        asks, answer = self.time == self.length - 1, 0 if self.length == 2 else int(self.np_random.integers(2))
        return np.zeros(1, np.float32), 0.0, self.time == self.length, False, {"target": answer if asks else -1}


def test_answers_of_short_episodes_do_not_count_more_often_than_those_of_long_ones() -> None:
    """Whoever always answers 0 is right in three of four episodes, but nearly always in those that end first."""
    env = make_env(Mixed, 512)
    agent = rmc.ActorCritic(SpaceSpec.of(env), "none", encoder_sizes=(4,))
    with torch.no_grad():
        agent.policy.bias.copy_(torch.tensor([99.0, 0.0]))
    collector = rmc.Collector(agent, env, 10)
    stages = Curriculum(EnvConfig(num_envs=512, curriculum=({"env_kwargs": {"mode": "hunt"}, "accuracy": 0.85},)))
    over, restarts, lanes = [], [], collector.lanes
    with mock.patch.object(lanes, "restart_numbering", wraps=lanes.restart_numbering) as restart:
        for _ in range(8):
            rollout, episodes = collector.collect(), lanes.take_episodes()
            over.append(stages.count(5120, rollout, episodes, lanes))
            restarts.append(restart.call_count)
    assert not any(over)
    assert restarts.index(1) in (2, 3)  # when every lane has ended an episode


def test_answers_are_those_of_the_first_episodes_of_each_lane() -> None:
    """Two lanes, six steps: the second lane's first episode was running when the counting began, and is left out."""
    ends = torch.tensor([[0, 0], [1, 0], [0, 1], [0, 0], [1, 0], [0, 0]], dtype=torch.bool)
    targets = torch.tensor([[-1, 1], [1, 1], [-1, 1], [1, -1], [1, 0], [1, 0]])
    chosen = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    after = torch.zeros(7, 2)  # [T+1, B]
    steps = TimeStep(after, after.bool(), after.long(), after, after.bool(), after.bool())
    steps.prev_action[1:], steps.terminated[1:] = chosen, ends
    rollout = Rollout(steps, after, after, (), targets=targets)
    numbers = np.array([2, 0])  # after the rollout
    found = {each: curriculum._answers(rollout, numbers, each).tolist() for each in (1, 2, 3)}
    assert found == {
        1: [True, True, False],
        2: [True, False, True, True, False],
        3: [True, False, True, True, True, False],
    }


def test_lanes_number_their_episodes() -> None:
    lanes = Lanes(make_env("recall", 2), 0, CPU)

    def numbers(steps: int) -> list[int]:
        for _ in range(steps):
            lanes.step(torch.zeros(2, dtype=torch.int64))
        return [episode.number for episode in lanes.take_episodes()]

    assert numbers(11) == [0, 0, 1, 1]  # an episode takes 5 steps, and one to the next
    lanes.restart_numbering()  # between two episodes
    assert numbers(9) == [0, 0]
    lanes.restart_numbering()  # in the middle of one
    assert numbers(9) == [-1, -1, 0, 0]


@pytest.mark.parametrize("stages", [(), STAGES], ids=["no curriculum", "curriculum"])
def test_numbers_continue(stages: list[dict[str, Any]]) -> None:
    """Also from older files, which have them in the curriculum's state, and count only answers or episodes there."""
    learner, other = trainer(curriculum=stages), trainer(curriculum=stages)
    for _ in range(3):
        learner.update()
    state = learner.get_state()
    if stages:
        state["curriculum"]["numbers"] = state["collector"]["lanes"].pop("numbers")
        del state["curriculum"]["episodes"]
    other.set_state(state)
    assert other.lanes.numbers.tolist() == learner.lanes.numbers.tolist() != [0] * 6


def test_a_run_continues_from_its_state_in_any_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "ENOUGH", 30)
    learner = trainer()
    for _ in range(10):
        other = trainer()
        other.set_state(copy.deepcopy(learner.get_state()))
        assert lanes_of(other) == lanes_of(learner)
        assert_same(learner.update(), other.update())
        assert_same(learner.get_state(), other.get_state())
    assert learner.curriculum.stage == 2


def test_episodes_are_counted_again_after_a_resume_in_which_all_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curriculum, "ENOUGH", 60)
    learner = trainer(curriculum=[{"env_kwargs": {"most": 2}, "return": 2.0}])
    for _ in range(3):
        learner.update()
    state = learner.get_state()
    assert state["curriculum"]["count"] > 0
    other = trainer(curriculum=learner.config.env.curriculum)
    other.set_state(state | {"collector": state["collector"] | {"lanes": None, "core": None}})
    assert other.curriculum.get_state() == learner.curriculum.get_state() | {"episodes": 0, "count": 0, "sum": 0.0}


def test_a_wrong_stage_in_a_checkpoint_is_refused() -> None:
    state = trainer().get_state()
    state["curriculum"]["stage"] = 3
    with pytest.raises(ValueError, match="curriculum: expected a stage from 0 to 2"):
        trainer().set_state(state)


def test_the_command_reports_the_stages_and_resumes_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = "{env_kwargs: {most: 2}, frames: 90}"
    flags = ["--algo", "supervised", "--env", TASK, "--core", "lstm", "--curriculum", stage]
    flags += ["--learning-rate-schedule", "constant"]
    for folder, first in (("whole", 160), ("parts", 80)):
        assert train(*flags, "--total-frames", str(first), "--run-dir", str(tmp_path / folder)) == 0
    output = capsys.readouterr().out
    assert "curriculum: most=2 until frames 90, then the environment itself" in output
    assert output.count("stage 2 of 2 begins at 120 frames: the environment itself") == 1
    assert output.count("the training ended in stage 1 of 2, before the environment itself") == 1
    assert resume(tmp_path / "parts", "--total-frames", "160") == 0
    assert "stage 2 of 2 begins at 120 frames: the environment itself" in capsys.readouterr().out
    assert_same(newest(tmp_path / "whole"), newest(tmp_path / "parts"))
    config = Config().updated_from_yaml(tmp_path / "whole" / "config.yaml")
    assert config.env.curriculum == ({"env_kwargs": {"most": 2}, "frames": 90},)


def test_a_success_rate_that_is_never_reported_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    stage = {"env_kwargs": {"most": 2}, "success": 0.5}
    for success, warnings in ((None, 1), (True, 0)):
        caplog.clear()
        followed = Curriculum(Config().updated({"env": TASK, "num_envs": 401, "curriculum": [stage]}, "test").env)
        for told in (success, None, None):
            followed.count(1, NOTHING, [Episode(0.0, 1, None)] * 400 + [Episode(0.0, 1, told)], FewLanes())
        assert [record.getMessage().count("none of 802 episodes") for record in caplog.records] == [1] * warnings


class Masked(gym.Env):
    """Allows all actions, and reports a mask if requested."""

    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), Discrete(2)

    def __init__(self, says_so: bool = True) -> None:
        self.info = {"action_mask": np.ones(2, np.int8)} if says_so else {}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), self.info


class Aiming(gym.Env):
    """Reports a target for an action that is a number."""

    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, target: int = 0) -> None:
        self.target = target

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {"target": self.target}


gym.register("Masked-v1", Masked)
gym.register("Aiming-v1", Aiming)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"env": "Masked-v1", "algo": "ppo", "curriculum": [{"env_kwargs": {"says_so": False}, "frames": 9}]},
            "stage 1: expected .* with action masks, .*, got .* without action masks",
        ),
        ({"curriculum": [{"env_kwargs": {"most": 9}, "frames": 9}]}, "stage 1: most: expected an int from 2 to 3"),
        ({"curriculum": [{"env_kwargs": {"size": 9}, "frames": 9}]}, "stage 1: expected the spaces of the environment"),
        ({"curriculum": [STAGES[0], {"accuracy": 0.5}]}, "stage 2: env_kwargs: expected arguments"),
        ({"curriculum": [{"env_kwargs": {"most": 2}}]}, "stage 1: expected env_kwargs and one of accuracy, success"),
        (
            {"curriculum": [{"env_kwargs": {"most": 2}, "frame": 9}]},
            "stage 1: expected env_kwargs and .*, got env_kwargs",
        ),
        (
            {"curriculum": [{"env_kwargs": {"most": 2}, "accuracy": 0.5, "return": 1}]},
            "stage 1: expected env_kwargs and",
        ),
        (
            {"curriculum": [{"env_kwargs": {"most": 2}, "accuracy": 0.5, "frames": 0}]},
            "frames: expected a number above 0",
        ),
        ({"curriculum": [{"env_kwargs": {"most": 2}, "accuracy": 85}]}, "accuracy: expected a number above 0, up to 1"),
        ({"curriculum": [{"env_kwargs": {"most": 2}, "frames": "x"}]}, "frames: expected a number, got 'x'"),
        ({"curriculum": [{"env_kwargs": {"most": 2}, "frames": 10**400}]}, r"frames: expected a number up to 1e\+15"),
        ({"curriculum": [{"env_kwargs": {"most": 2}, "return": math.nan}]}, "return: expected a number up to .* nan"),
        ({"algo": "impala"}, "curriculum: expected algo a2c, ppo or supervised, got impala"),
        (
            {"env": "recall", "algo": "ppo", "curriculum": [{"env_kwargs": {"delay": 2}, "accuracy": 0.5}]},
            "stage 1: accuracy: expected an environment that reports the right actions",
        ),
        (
            {"env": "Aiming-v1", "algo": "ppo", "curriculum": [{"env_kwargs": {"target": 1}, "accuracy": 0.5}]},
            "stage 1: accuracy: expected an environment that reports the right actions",
        ),
    ],
)
def test_what_is_no_curriculum_is_refused_in_one_line(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        trainer(**settings)
    assert "\n" not in str(caught.value)
