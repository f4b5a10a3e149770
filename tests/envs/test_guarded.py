"""Errors of environments: reported as the environment's, with its lines of the traceback, and the training is saved."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import ClipReward, NormalizeReward, TimeLimit

from helpers.homemade import FAILS_AT, Homemade, name_of
from helpers.runs import find_and_load
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.recall import RecallEnv
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.stream import Lanes
from rmc_agents.train import cli
from rmc_agents.train.run import train

CPU = torch.device("cpu")
UNROLL, LANES = 5, 2
SMALL = f"--core none --encoder-sizes 8 --num-envs {LANES} --unroll-length {UNROLL} --threads 1 --device cpu".split()
QUIET = ["--no-video", "--eval-episodes", "0"]


def play(name: str) -> VectorEnv:
    lanes = Lanes(make_vector_env(name, LANES), 0, CPU)
    for _ in range(2 * FAILS_AT):
        lanes.step(torch.zeros(LANES, dtype=torch.int64))
    return lanes.env


@pytest.mark.parametrize(
    ("fault", "expected", "shows_lines"),
    [
        ("constructor", r"failed in its constructor: OSError: no room for another \(.*homemade.py, line", True),
        ("reset", r"failed in reset\(\): RuntimeError: lost\nin reset \(.*homemade.py, line \d+, in _fail\)", True),
        ("step", r"failed in step\(\): RuntimeError: lost\nin step \(.*homemade.py, line \d+, in _fail\)", True),
        ("exit", r"failed in step\(\): SystemExit: 3 \(.*homemade.py, line \d+, in step\)", True),
        ("speechless", r"failed in step\(\): Speechless: <exception str\(\) failed> \(.*homemade.py, line", True),
        (
            "within numpy",
            r"failed in step\(\): ValueError: cannot reshape .* \(.*homemade.py, line \d+, in step",
            True,
        ),
        ("no seed", r"failed in reset\(\): TypeError: .*unexpected keyword argument 'seed'", False),
        ("shape", r"failed in step\(\): ValueError: expected an observation \(2,\) of float32, got \(3,\)", False),
        ("reward", r"failed in step\(\): TypeError: expected a number as the reward, got ", False),
        ("infos", r"failed in step\(\): (TypeError|AssertionError): ", False),
        (
            "nan reward",
            r"'Homemade-NanReward-v0' gave a reward that is not finite in float32: nan in lane 1, at step 3 of its",
            False,
        ),
        ("infinite observation", r"not finite in float32: -inf in lane 1, entry \[1\] of the observation", False),
    ],
)
def test_a_fault_is_reported_as_the_environments(fault: str, expected: str, shows_lines: bool) -> None:
    with pytest.raises(EnvError, match=expected) as raised:
        play(name_of(fault))
    assert "the environment 'helpers.homemade:" in str(raised.value) or "gave a" in str(raised.value)
    notes = getattr(raised.value, "__notes__", [])
    assert len(notes) == shows_lines
    for note in notes:
        files = [line for line in note.splitlines() if line.startswith("  File ")]
        assert files
        assert all("homemade.py" in line for line in files), note


class Together(VectorEnv):
    """A vector environment; step returns or raises what it is given."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, **changed: Any) -> None:
        self.num_envs, self.changed = num_envs, changed
        self.single_observation_space, self.single_action_space = Box(0, 1, (3,)), Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions: Any) -> Any:
        if "error" in self.changed:
            raise self.changed["error"]
        ends = [False] * self.num_envs  # lists are accepted, although gymnasium expects arrays
        result = {"obs": self.reset()[0], "reward": [0.5] * self.num_envs, "terminated": ends, "truncated": ends}
        return (*(result | {"infos": {}} | self.changed).values(),)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"error": RuntimeError("lost")}, r"RuntimeError: lost \(.*test_guarded.py, line \d+, in step\)"),
        ({"obs": np.zeros((3, 3), np.float32)}, r"expected an observation \(2, 3\) of float32, got \(3, 3\)"),
        ({"reward": 0.5}, r"expected rewards \(2,\), got \(\)"),
        ({"truncated": [[False], [False]]}, r"expected truncated \(2,\), got \(2, 1\)"),
        ({"terminated": ["no", "no"]}, r"expected terminated \(2,\), got \(2,\) of <U2"),
        ({"reward": ["1", "1"]}, r"expected rewards \(2,\), got \(2,\) of <U1"),
        ({"infos": None}, "expected the infos in a dict, got NoneType"),
    ],
)
def test_a_fault_of_a_vector_environment_is_reported_and_the_training_saved(
    changed: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    settings = {"core": "none", "encoder_sizes": [8], "num_envs": LANES, "unroll_length": UNROLL}
    with pytest.raises(EnvError, match=rf"the environment 'Together' failed in step\(\): .*{expected}"):
        train(settings, env=Together(LANES, **changed), run_dir=tmp_path / "run")
    assert find_and_load(tmp_path / "run")[1]["frames"] == 0
    with pytest.raises(EnvError, match=rf"the environment 'Together' failed in step\(\): .*{expected}"):
        make_env(Together, LANES, env_kwargs=changed).step(np.zeros(LANES, np.int64))


def test_a_vector_environment_may_lack_joint_spaces_and_return_other_numbers() -> None:
    env = Together(LANES, obs=np.ones((LANES, 3), np.int64))
    del env.observation_space, env.action_space
    lanes = Lanes(make_env(lambda num_envs: env, LANES), 0, CPU)
    assert lanes.step(torch.zeros(LANES, dtype=torch.int64)).obs.tolist() == [[1.0] * 3] * LANES


def test_success_is_reported_for_each_lane() -> None:
    lanes = Lanes(make_env(Together, LANES, env_kwargs={"infos": {"is_success": True}}), 0, CPU)
    with pytest.raises(EnvError, match=r"infos\['is_success'\]: expected one per lane, got True"):
        lanes.step(torch.zeros(LANES, dtype=torch.int64))


def test_a_success_counts_where_its_mask_says_so() -> None:
    infos = {"is_success": np.array([True, True]), "_is_success": np.array([True, False])}
    lanes = Lanes(make_env(Together, LANES, env_kwargs={"terminated": [True, True], "infos": infos}), 0, CPU)
    lanes.step(torch.zeros(LANES, dtype=torch.int64))
    assert [episode.success for episode in lanes.take_episodes()] == [True, False]


def test_an_environment_may_change_the_actions_it_gets() -> None:
    class Counting(Together):
        def step(self, actions: Any) -> Any:
            actions -= 1
            return super().step(actions)

    lanes, action = Lanes(make_env(Counting, LANES), 0, CPU), torch.zeros(LANES, dtype=torch.int64)
    assert lanes.step(action).prev_action.tolist() == action.tolist() == [0] * LANES


def test_a_vector_environment_object_may_mark_ends_by_numbers() -> None:
    env = Together(LANES, truncated=[0, 0])
    lanes = Lanes(env, 0, CPU)
    for terminated in ([0, 1], [0, 0], [0, 1], [1, 0]):
        env.changed["terminated"] = terminated
        lanes.step(torch.zeros(LANES, dtype=torch.int64))
    assert [(episode.episode_return, episode.length) for episode in lanes.episodes] == [(0.5, 1), (0.5, 1), (2.0, 4)]


class Keeping(Together):
    """Has a state."""

    def get_state(self) -> dict[str, Any]:
        return {"time": np.int64(3)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.time = state["clock"]


def test_the_state_of_a_vector_environment_is_plain_and_its_faults_are_its_own() -> None:
    lanes = Lanes(Keeping(LANES), 0, CPU)
    state = lanes.get_state()
    assert state is not None
    assert type(state["env"]["time"]) is int
    with pytest.raises(EnvError, match=r"'Keeping' failed in set_state\(\): KeyError: 'clock' \(.*test_guarded.py"):
        lanes.set_state(state)
    assert Lanes(Together(LANES), 0, CPU).get_state() is None


@pytest.mark.parametrize("state", [{"goal": (1, 2)}, {"seen": {1: 5}}, {"names": np.array(["a"])}])
def test_a_state_that_would_come_back_changed_is_refused(state: dict[str, Any]) -> None:
    env = Keeping(LANES)
    env.get_state = lambda: state  # type: ignore[method-assign]
    with pytest.raises(EnvError, match=r"failed in get_state\(\): TypeError: expected dicts with string keys"):
        Lanes(env, 0, CPU).get_state()


def test_arrays_of_another_byte_order_are_saved() -> None:
    env = Keeping(LANES)
    env.get_state = lambda: {"time": np.arange(3, dtype=">i4")}  # type: ignore[method-assign]
    state = Lanes(env, 0, CPU).get_state()
    assert state is not None
    assert torch.from_numpy(state["env"]["time"]).tolist() == [0, 1, 2]


def test_a_module_that_cannot_be_imported_is_reported_as_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "unready.py").write_text("import numpy\nnumpy.zeros(wide)\n")
    with pytest.raises(EnvError, match=r"in the import of unready: NameError: .*unready.py, line 2") as raised:
        make_vector_env("unready:X-v0", 1)
    assert "numpy.zeros(wide)" in raised.value.__notes__[0]
    assert "importlib" not in raised.value.__notes__[0]


def test_observations_without_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="expected observations of at least one number"):
        make_vector_env(name_of("empty"), 1)


def test_a_single_number_is_an_observation() -> None:
    assert Lanes(make_vector_env(name_of("scalar"), LANES), 0, CPU).steps.obs.shape == (LANES, 1)


def test_infos_that_are_no_numbers_are_ignored() -> None:
    env = make_vector_env(name_of("junk in infos"), LANES)
    env.reset(seed=0)
    infos = env.step(np.zeros(LANES, np.int64))[4]
    assert infos["note"].tolist() == ["kept"] * LANES
    assert infos.keys() == {"note", "_note"}


class Moody(Homemade):
    """Its infos and spaces differ between lanes and steps."""

    made = 0

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__("none")
        self.number = Moody.made = Moody.made + 1
        self.action_space = Discrete(sizes[self.number % len(sizes)])

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Any]:
        *rest, _ = super().step(action)
        infos = [{"mood": 1}, {"mood": "low"}, {"mood": {"now": 2}}, {"mood": np.zeros(2)}, {"mood": [None]}]
        return *rest, infos[(self.number + self.steps) % len(infos)] | {"power": 1.5}  # type: ignore[return-value]


def test_infos_that_do_not_go_together_are_left_out() -> None:
    env = make_env(Moody, 5, env_kwargs={"sizes": [2]})
    env.reset(seed=0)
    for _ in range(6):
        infos = env.step(np.zeros(5, np.int64))[4]
    assert infos["power"].tolist() == [1.5] * 5
    assert infos["_power"].all()


def test_lanes_of_different_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected lanes of equal spaces: .*Discrete"):
        make_env(Moody, 2, env_kwargs={"sizes": [2, 3]})


def test_a_fault_while_closing_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    play(name_of("close")).close()
    assert "failed in close(): RuntimeError: lost in close" in caplog.text


def test_a_fault_while_a_vector_environment_closes_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Closing(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            raise RuntimeError("the cause")

        def close(self, **kwargs: Any) -> None:
            raise OSError("lost in close")

    def failing() -> None:
        with closing(make_env(lambda num_envs: Closing([lambda: gym.make("CartPole-v1")] * num_envs), 2)) as env:
            env.reset(seed=0)
            with closing(env):  # closed twice, as by a run
                env.step(np.zeros(2, np.int64))

    with pytest.raises(EnvError, match="the cause"):
        failing()
    assert caplog.text.count("failed in close(): OSError: lost in close") == 1


def test_a_fault_in_this_process_is_shown_once_and_the_training_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    flags = ["--env", name_of("step"), "--run-dir", str(run), "--learning-rate-schedule", "constant"]
    assert cli.main([*SMALL, *QUIET, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("Traceback") == 1
    assert "homemade.py" in captured.err
    assert "rmc_agents" not in captured.err
    assert captured.err.splitlines()[-1].startswith(
        "rmc-train: the environment 'helpers.homemade:Homemade-Step-v0' failed in step"
    )
    frames = (FAILS_AT // UNROLL) * UNROLL * LANES
    assert f"saved at {frames} frames; once the cause is removed, continue with: " in captured.out
    assert f"rmc-train --resume {run} --import helpers.homemade\n" in captured.out
    assert find_and_load(run)[1]["frames"] == frames


def test_an_environment_that_cannot_draw_ends_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", name_of("render"), "--run-dir", str(tmp_path / "run"), "--total-frames", "20"]
    assert cli.main([*SMALL, *flags, "--eval-episodes", "0"]) == 0
    captured = capsys.readouterr()
    expected = "no video: the environment 'helpers.homemade:Homemade-Render-v0' failed in render(): RuntimeError: lost"
    assert expected in captured.out
    assert captured.err == ""


def test_a_fault_in_the_evaluation_loses_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    flags = ["--env", name_of("evaluation"), "--run-dir", str(run), "--total-frames", "20", "--no-video"]
    assert cli.main([*SMALL, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("Traceback") == 1
    assert f"the training is complete and saved; evaluate and record with: rmc-train --resume {run}" in captured.out
    assert json.loads((run / "summary.json").read_text())["frames"] == 20


MODULE = """
import gymnasium as gym
from helpers.homemade import Homemade
gym.register("Mine-v0", Homemade, kwargs={"fault": "endless"})
"""


def test_a_module_in_the_current_folder_is_found_for_names_of_the_command_line_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder not in ("", str(tmp_path))])
    path = sys.path.copy()
    flags = ["--run-dir", "run", "--total-frames", "20", "--no-video", "--eval-episodes", "3", "--eval-max-steps", "9"]
    assert cli.main([*SMALL, *flags, "--env", "mine:Mine-v0"]) == 0
    assert "3 of 3 episodes were cut off after 9 steps" in capsys.readouterr().out

    sys.path[:] = path
    del sys.modules["mine"]
    assert evaluate_cli.main(["run", "--episodes", "2"]) == 2
    assert "mine" not in sys.modules
    assert capsys.readouterr().err.startswith("rmc-evaluate: ")
    assert evaluate_cli.main(["run", "--episodes", "2", "--max-steps", "4", "--env", "mine:Mine-v0"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert (
        "2 of 2 episodes were cut off after 4 steps; 2 of 2 episodes of random play were cut off after 4 steps"
        in output
    )


class Names(Together):
    """Together, with one of three categories as an observation."""

    def __init__(self, num_envs: int, **changed: Any) -> None:
        super().__init__(num_envs, **changed)
        self.single_observation_space = Discrete(3, start=2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.full(self.num_envs, 4), {}


def test_categories_of_a_vector_environment_are_in_range() -> None:
    actions = np.zeros(LANES, np.int64)
    assert make_env(Names, LANES).step(actions)[0].tolist() == [4] * LANES
    for wrong in (1, 5):
        with pytest.raises(EnvError, match=rf"expected an observation in Discrete\(3, start=2\), got \[{wrong}\]"):
            make_env(Names, LANES, env_kwargs={"obs": np.array([wrong, 3])}).step(actions)


def test_one_object_cannot_be_all_lanes() -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(ValueError, match="environment CartPoleEnv: expected a new object for each lane, got the same"):
        make_env(lambda: env, 2)
    assert make_env(lambda: env, 1).num_envs == 1


def test_states_of_other_wrappers_are_refused() -> None:
    limited = make_env(lambda: TimeLimit(RecallEnv(), 5), 2)
    limited.reset(seed=0)
    with pytest.raises(ValueError, match="expected one for each of RecallEnv, got 2: have the wrappers changed"):
        make_env(RecallEnv, 2).set_state(limited.get_state())


def test_wrappers_that_only_convert_need_no_state() -> None:
    rescaled = make_env(lambda: ClipReward(RecallEnv(), 0.0, 0.5), 2)
    assert Lanes(rescaled, 0, torch.device("cpu")).is_savable
    assert not Lanes(make_env(lambda: NormalizeReward(RecallEnv()), 2), 0, torch.device("cpu")).is_savable


class Graded(RecallEnv):
    """Reports a level, in every second environment a fraction."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.level = (1, 2.75)[Graded.made % 2]
        Graded.made += 1

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return obs, info | {"level": self.level}


def test_infos_of_the_lanes_keep_their_fractions_whatever_the_first_lane_reports() -> None:
    with closing(make_env(Graded, 4)) as env:
        assert sorted(env.reset(seed=0)[1]["level"]) == [1, 1, 2.75, 2.75]


def test_lanes_do_not_share_the_metadata_of_their_class() -> None:
    with closing(make_env("CartPole-v1", 1)) as env:
        lane = env.unwrapped.envs[0]  # type: ignore[attr-defined]
        assert lane.metadata == lane.unwrapped.metadata
        assert lane.metadata is not type(lane.unwrapped).metadata
