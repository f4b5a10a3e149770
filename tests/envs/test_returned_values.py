"""What an environment returns is checked against its spaces, and actions fit theirs."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from gymnasium.vector import AutoresetMode

from rmc_agents.agent import ActorCritic
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import EnvError
from rmc_agents.player import Player
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import Lanes

CPU = torch.device("cpu")
LANES = 2


class Saying(gym.Env):
    """Returns the given observation, and what else is given."""

    def __init__(self, space: Space, obs: Any, *, actions: Space | None = None, **changed: Any) -> None:
        self.observation_space, self.action_space = space, actions or Discrete(4)
        self.obs, self.changed = obs, changed

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.changed.get("first", (self.obs, self.changed.get("info", {})))

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        values = {"obs": self.obs, "reward": 0.0, "terminated": False, "truncated": False, "info": {}}
        return self.changed.get("then", tuple(self.changed.get(key, value) for key, value in values.items()))


ONE = Box(-1, 1, (1,))


@pytest.mark.parametrize(
    ("space", "obs", "changed", "expected"),
    [
        (Discrete(3), -1, {}, r"expected an observation in Discrete\(3\), got \[-1\]"),
        (Discrete(3), 0.5, {}, r"expected an observation \(\) of int64, got \(\) of float64"),
        (MultiDiscrete([3, 4]), [3, 0], {}, r"expected an observation in MultiDiscrete\(\[3 4\]\), got \[3\]"),
        (MultiDiscrete([3, 4]), [1], {}, r"expected an observation \(2,\) of int64, got \(1,\)"),
        (MultiBinary(2), [2, 0], {}, r"expected an observation in MultiBinary\(2\), got \[2\]"),
        (Box(0, 9, (1,), np.uint8), np.uint8([20]), {}, r"expected an observation in Box\(0, 9, .*, got \[20\]"),
        (Box(-128, 127, (1,), np.int8), np.int64([300]), {}, r"expected an observation in Box\(-128, .*, got \[300\]"),
        (ONE, [0.0], {"terminated": "no"}, "expected True or False as terminated, got 'no'"),
        (ONE, [0.0], {"truncated": None}, "expected True or False as truncated, got None"),
        (ONE, [0.0], {"then": (0, 0, 0, {})}, r"expected \(obs, reward, .*info\), got a tuple of 4"),
        (ONE, [0.0], {"first": np.zeros(1)}, r"expected \(obs, info\), got ndarray"),
        (ONE, [0.0], {"info": {"action_mask": [0, 1, 1, 1], "target": 0}}, "asks in lane 0, at step 0 .* forbids: 0"),
        (ONE, [0.0], {"info": {"action_mask": [1, [0], 1, 1]}}, "action_mask.*expected 4 flags, got object"),
        (ONE, [0.0], {"info": {"action_mask": [float("nan"), 0, 0, 1]}}, r"expected 4 flags, 0 or 1, got \[nan"),
        (ONE, [0.0], {"info": {"action_mask": [0, -1e9, 0, 0]}}, r"expected 4 flags, 0 or 1, got \[0.0, -1"),
    ],
)
def test_what_is_not_in_its_space_or_of_the_wrong_type_is_refused(
    space: Space, obs: Any, changed: dict[str, Any], expected: str
) -> None:
    with pytest.raises(EnvError, match=expected):
        Lanes(make_env(lambda: Saying(space, obs, **changed), LANES), 0, CPU, needs_targets=True).step(
            torch.zeros(LANES, dtype=torch.int64)
        )


def test_floats_outside_their_box_are_used_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    lanes = Lanes(make_env(lambda: Saying(Box(-1, 1, (1,)), [5.0]), LANES), 0, CPU)
    assert lanes.step(torch.zeros(LANES, dtype=torch.int64)).obs.tolist() == [[5.0]] * LANES
    assert [record.getMessage() for record in caplog.records] == [
        "an observation is outside its space Box(-1.0, 1.0, (1,), float32); it is used as it is"
    ]


def test_infos_that_should_be_numbers_are_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    info = {"is_success": np.array([True]), "level": "two"}
    env = make_env(lambda: Saying(ONE, [0.0], info=info), LANES)
    env.reset()
    assert not {"is_success", "level"} & env.step(np.zeros(LANES, np.int64))[4].keys()
    assert [record.getMessage() for record in caplog.records] == [
        "info['is_success'] is left out: expected a number, got [1] of bool",
        "info['level'] is left out: expected a number, got str",
    ]


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("at", ["reset", "end"])
def test_floats_outside_their_box_are_noticed_at_every_step(
    at: str, mode: AutoresetMode, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in an episode's last observation, which SAME_STEP returns among the infos."""
    inside, outside = ({"far": np.float64([far]), "whole": 2} for far in (0.5, -5.0))
    changed = {"reset": {"first": (outside, {})}, "end": {"then": (outside, 0.0, True, False, {})}}[at]
    space = Dict({"far": ONE, "whole": Discrete(3)})
    lanes = iter([Saying(space, inside), Saying(space, inside, **changed)])
    env = make_env(lambda: next(lanes), LANES, autoreset_mode=mode)
    env.reset()
    assert ("an observation 'far' is outside its space Box" in caplog.text) == (at == "reset")
    env.step(np.zeros(LANES, np.int64))
    assert caplog.text.count("an observation 'far' is outside its space Box") == 1


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_actions_have_the_dtype_of_their_space(dtype: Any) -> None:
    lanes = Lanes(make_env(lambda: Saying(ONE, [0.0], actions=Discrete(4, dtype=dtype)), LANES), 0, CPU)
    lanes.step(torch.zeros(LANES, dtype=torch.int64))  # its step asserts that the action is in the space
    agent = ActorCritic(lanes.spec, "none", encoder_sizes=[4])
    assert Discrete(4, dtype=dtype).contains(Player(agent).act(np.zeros(1, np.float32)))
    assert lanes.spec._replace(action_parts=()).fits(lanes.spec)  # as saved before it had the dtype


def test_a_mask_that_is_missing_in_one_lane_is_refused() -> None:
    mask = {"action_mask": [1, 0, 0, 0]}
    lanes = iter([Saying(ONE, [0.0], info=mask), Saying(ONE, [0.0], info=mask, then=([0.0], 0.0, False, False, {}))])
    with pytest.raises(EnvError, match=r"'action_mask'\] is missing in lane 1, at step 1 of its episode"):
        Lanes(make_env(lambda: next(lanes), LANES), 0, CPU).step(torch.zeros(LANES, dtype=torch.int64))


def test_masks_of_another_number_of_lanes_are_refused() -> None:
    lanes = Lanes(make_env(lambda: Saying(ONE, [0.0], info={"action_mask": [1, 0, 0, 0]}), LANES), 0, CPU)
    lanes.infos = {"action_mask": np.ones((LANES + 1, 4), bool)}
    with pytest.raises(ValueError, match=rf"action_mask: expected one for each of {LANES} lanes, got {LANES + 1}"):
        lanes._to_mask({})


def test_flags_of_lanes_with_infos_may_be_integers() -> None:
    lanes = Lanes(make_env(lambda: Saying(ONE, [0.0], info={"action_mask": [1, 0, 0, 0]}), LANES), 0, CPU)
    lanes.infos = {"action_mask": np.ones((LANES, 4), bool), "_action_mask": np.ones(LANES, np.int64)}
    assert lanes._to_mask({}).all()
    lanes.infos = {"target": np.arange(LANES), "_target": np.array([0] + [1] * (LANES - 1))}
    assert lanes.read_targets().tolist() == [-1, *range(1, LANES)]


def test_keys_of_observations_are_strings() -> None:
    with pytest.raises(ValueError, match="a Dict space: expected keys that are strings, got 0"):
        SpaceSpec.from_spaces(Dict({0: ONE}), Discrete(2))


def test_masks_for_other_actions_are_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    Lanes(make_env(lambda: Saying(ONE, [0.0], actions=MultiBinary(2), info={"action_mask": [1, 0]}), 1), 0, CPU)
    assert "the action masks of 'Saying' are ignored" in caplog.text


def test_masks_in_observations_are_warned_of_too(caplog: pytest.LogCaptureFixture) -> None:
    space = Dict(x=ONE, action_mask=MultiBinary(1))
    make = type("Whole", (Saying,), {})
    Lanes(make_env(lambda: make(space, {"x": [0.0], "action_mask": [1]}, actions=ONE), 1), 0, CPU)
    assert "the action masks of 'Whole' are ignored" in caplog.text


class Restless(gym.vector.VectorEnv):
    """Ends every episode at once, and again in the step that should begin the next one."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}
    num_envs, single_observation_space, single_action_space = LANES, ONE, Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((LANES, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        return np.zeros((LANES, 1), np.float32), np.zeros(LANES), np.ones(LANES, bool), np.zeros(LANES, bool), {}


def test_an_episode_without_a_step_is_refused() -> None:
    lanes, action = Lanes(Restless(), 0, CPU), torch.zeros(LANES, dtype=torch.int64)
    lanes.step(action)
    with pytest.raises(EnvError, match="'Restless' ended an episode at its first observation, in lane 0"):
        lanes.step(action)
