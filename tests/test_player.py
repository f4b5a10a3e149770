"""Player: it acts as in evaluation and training, however the environment is reset."""

import copy
import math
from functools import partial
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AutoresetMode
from torch import Tensor

from helpers import zoo  # noqa: F401  # registers environments with other spaces
from helpers.noise import Noise
from rmc_agents.agent import ActorCritic
from rmc_agents.collect import Collector, choose
from rmc_agents.cores import LSTM, RMC
from rmc_agents.envs.making import make_env
from rmc_agents.evaluate.episodes import PlaySettings, play
from rmc_agents.player import Player
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import map_leaves

SEED, LANES = 5, 6
MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


@pytest.fixture(scope="module")
def agent() -> ActorCritic:
    """Its memory and its previous reward matter for what it does."""
    torch.manual_seed(0)
    agent = ActorCritic(SpaceSpec.of(Noise()), partial(LSTM, hidden_size=16), encoder_sizes=(16,), core_skip=False)
    with torch.no_grad():
        agent.policy.weight *= 1000
    return agent.eval()


def evaluated(agent: ActorCritic, lanes: int, deterministic: bool) -> list[list[int]]:
    """The actions of evaluation's episodes."""
    actions: list[np.ndarray] = []

    def spy(*arguments: Any) -> Tensor:
        action = choose(*arguments)
        actions.append(action.numpy())
        return action

    with patch("rmc_agents.evaluate.episodes.choose", spy):
        episodes = play(agent, Noise, lanes, PlaySettings(SEED, torch.device("cpu"), deterministic))
    return [[int(a[i]) for a in actions[:length]] for i, length in enumerate(episodes.lengths)]


def played(agent: ActorCritic, lanes: int, mode: AutoresetMode, deterministic: bool) -> list[list[list[int]]]:
    """The actions of the first 60 steps of each lane, in a list for each episode; filler left out."""
    env = make_env(Noise, lanes, autoreset_mode=mode)
    player = Player.of(agent, env, deterministic, SEED)
    actions: list[list[list[int]]] = [[[]] for _ in range(lanes)]
    ended = np.zeros(lanes, bool)
    obs, _ = env.reset(seed=SEED)
    action = player.act(obs)
    for _ in range(60):
        for lane in range(lanes):
            if ended[lane]:
                actions[lane].append([])
            if not (ended[lane] and mode == AutoresetMode.NEXT_STEP):
                actions[lane][-1].append(int(action[lane]))
        obs, reward, terminated, truncated, _ = env.step(action)
        ended = terminated | truncated
        if mode == AutoresetMode.DISABLED and ended.any():
            obs, _ = env.reset(options={"reset_mask": ended})
        action = player.act(obs, reward, terminated, truncated)
    return actions


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_lanes_play_as_in_evaluation(agent: ActorCritic, mode: AutoresetMode, deterministic: bool) -> None:
    first = [episodes[0] for episodes in played(agent, LANES, mode, deterministic)]
    assert first == evaluated(agent, LANES, deterministic)
    assert max(map(len, first)) > 3


@pytest.mark.parametrize("mode", MODES[1:])
def test_later_episodes_are_the_same_in_every_autoreset_mode(agent: ActorCritic, mode: AutoresetMode) -> None:
    expected = played(agent, LANES, MODES[0], deterministic=True)
    for lane, episodes in enumerate(played(agent, LANES, mode, deterministic=True)):
        whole = min(len(episodes), len(expected[lane])) - 1
        assert whole > 1
        assert episodes[:whole] == expected[lane][:whole]


@pytest.mark.parametrize("resets_before_acting", [True, False])
def test_one_environment_plays_as_a_lane(agent: ActorCritic, resets_before_acting: bool) -> None:
    """However its loop resets it."""
    env, player = Noise(), Player(agent, deterministic=True, seed=SEED)
    episodes: list[list[int]] = [[]]
    obs, _ = env.reset(seed=SEED)
    action = player.act(obs)
    for _ in range(40):
        assert isinstance(action, int)
        episodes[-1].append(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        if ended := terminated or truncated:
            episodes.append([])
            if not resets_before_acting:
                player.act(obs, reward, terminated, truncated)
            obs, _ = env.reset()
        if ended and not resets_before_acting:
            action = player.act(obs)
        else:
            action = player.act(obs, reward, terminated, truncated)
    assert len(episodes) > 3
    assert episodes[0] == evaluated(agent, 1, deterministic=True)[0]
    assert episodes[:-1] == played(agent, 1, MODES[0], deterministic=True)[0][: len(episodes) - 1]


def test_gymnasiums_autoreset_wrapper_is_next_step(agent: ActorCritic) -> None:
    env = gym.wrappers.Autoreset(Noise())
    player = Player.of(agent, gym.wrappers.TimeLimit(env, 100), deterministic=True)
    ended, actions = False, [[]]
    obs, _ = env.reset(seed=SEED)
    action = player.act(obs)
    for _ in range(40):
        actions[-1].append(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        if ended:
            actions.append([])
            actions[-2].pop()  # filler
        ended = terminated or truncated
        action = player.act(obs, reward, terminated, truncated)
    assert actions[:4] == played(agent, 1, MODES[0], deterministic=True)[0][:4]


def test_reset_forgets_and_seeds_the_draws(agent: ActorCritic) -> None:
    player = Player(agent, num_envs=2, seed=3)
    obs = np.random.default_rng(0).uniform(-1, 1, (9, 2, 3)).astype(np.float32)

    def play_all() -> list[list[int]]:
        return [player.act(obs[0]).tolist()] + [player.act(x, [0.5, 1], [False] * 2, [False] * 2).tolist() for x in obs]

    first = play_all()
    player.reset(seed=3)
    assert play_all() == first
    random = [Player(agent, num_envs=2, seed=None) for _ in range(2)]
    assert random[0]._generator.initial_seed() != random[1]._generator.initial_seed()


def test_a_learned_initial_state_has_no_gradient(agent: ActorCritic) -> None:
    class Learned(LSTM):
        def initial_leaves(self) -> Any:
            return map_leaves(lambda leaf: leaf + self.bias.sum(), super().initial_leaves())

    player = Player(ActorCritic(agent.spec, partial(Learned, hidden_size=4)))
    assert not any(leaf.requires_grad for leaf in player._state)
    obs = np.float32([0.1, 0.2, 0.3])
    assert copy.deepcopy(player).act(obs) == player.act(obs)  # deepcopy takes no tensors of a graph


def test_attention_is_that_of_the_last_step() -> None:
    agent = ActorCritic(SpaceSpec.of(Noise()), partial(RMC, mem_slots=3, head_size=4, num_heads=2))
    player = Player(agent)
    assert player.attention is None
    obs = np.float32([0.1, 0.2, 0.3])
    player.act(obs)
    plain = player.attention
    assert plain is not None
    assert plain.shape == (1, 2, 3, 4)  # blocks, heads, slots, slots and the input
    lanes = Player(agent, num_envs=2)
    lanes.act(np.stack([obs, -obs]))
    assert lanes.attention is not None
    torch.testing.assert_close(lanes.attention[0], plain)
    before = plain.clone()
    player.act(-obs, 1.0, False, False)
    assert not torch.equal(player.attention, before)
    assert Player(ActorCritic(SpaceSpec.of(Noise()), "lstm")).attention is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((np.zeros(3),), "in the middle of an episode"),
        ((np.zeros(2), 0.0, False, False), r"obs: expected \[3\] or \[1, 3\] of float32.* got \[2\] of float64"),
        (({"image": 0}, 0.0, False, False), "got dict"),
        ((np.zeros(3), 0.0), "terminated: expected a bool.* got None"),
        ((np.zeros(3), False, 1.0, False), r"terminated: expected a bool.* got \[\] of float64"),
        ((np.zeros((1, 3)), 0.0, [False], [False]), r"reward: expected a number per lane, \[1\].* got \[\] of float64"),
        ((np.full(3, 1e300), 0.0, False, False), "obs: expected finite numbers"),
        ((np.zeros(3), math.nan, False, False), "reward: expected finite numbers"),
        ((np.zeros(3), -1e39, False, False), r"reward: expected finite numbers of float32, got \[-1e\+39\]"),
    ],
)
def test_what_is_given_wrongly_is_named(agent: ActorCritic, arguments: tuple, expected: str) -> None:
    player = Player(agent)
    player.act(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=expected):
        player.act(*arguments)


def test_what_cannot_play_is_refused(agent: ActorCritic) -> None:
    with pytest.raises(ValueError, match=r"expected an ActorCritic or the result of rmc.load, got Linear"):
        Player(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_envs: expected an int of at least 1, got 0"):
        Player(agent, num_envs=0)


def test_the_name_of_an_autoreset_mode_is_refused(agent: ActorCritic) -> None:
    with pytest.raises(ValueError, match=r"autoreset_mode: expected a .*AutoresetMode.NEXT_STEP, got 'NEXT_STEP'"):
        Player(agent, 2, autoreset_mode="NEXT_STEP")  # type: ignore[arg-type]


def test_a_number_where_make_env_gives_one_hot_is_explained() -> None:
    player = Player(ActorCritic(SpaceSpec.of(make_env("FrozenLake-v1", 1)), "none"))
    with pytest.raises(
        ValueError, match=r"expected \[16\] or .*; Discrete ones as np.eye\(16, dtype=np.uint8\)\[obs\]"
    ):
        player.act(3)
    player.act(np.eye(16, dtype=np.uint8)[3])


def test_a_bit_out_of_range_is_refused() -> None:
    player = Player(ActorCritic(SpaceSpec.from_spaces(MultiBinary(2), Discrete(2)), "none"))
    with pytest.raises(ValueError, match="obs: expected categories from 0 to 1, got 5"):
        player.act(np.int8([5, 0]))


def test_integers_do_not_wrap() -> None:
    player = Player(ActorCritic(SpaceSpec.from_spaces(MultiBinary(2), Discrete(2)), "none"))
    with pytest.raises(ValueError, match="obs: expected numbers that int8 can hold, got -200"):
        player.act(np.int64([-200, 1]))


def test_a_category_out_of_range_is_refused() -> None:
    player = Player(ActorCritic(SpaceSpec.from_spaces(Discrete(3, start=5), Discrete(2)), "none"))
    player.act(np.int64(7))
    with pytest.raises(ValueError, match="obs: expected categories from 5 to 7, got 8"):
        player.act(np.int64(8), 0.0, False, False)


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_scalar_observation_is_taken_as_the_environment_returns_it(num_envs: int) -> None:
    agent = ActorCritic(SpaceSpec((1,), "float32", 1.0, num_actions=3), "lstm")  # what make_env makes of Box(.., ())
    own, ours = Player(agent, num_envs), Player(agent, num_envs)
    lanes = () if num_envs == 1 else (num_envs,)
    for scalars in np.random.default_rng(0).normal(size=(5, *lanes)):
        step = (np.zeros(lanes), np.zeros(lanes, bool), np.zeros(lanes, bool))
        assert np.array_equal(own.act(scalars, *step), ours.act(scalars[..., None], *step))
        assert all(map(torch.equal, own._state, ours._state))


def test_the_actions_are_the_callers(agent: ActorCritic) -> None:
    """Who changes them in place, as an environment that counts from 1 may, does not change what the agent has done."""
    obs, one, other = np.zeros((2, *agent.spec.obs_shape), np.float32), Player(agent, 2), Player(agent, 2)
    for step in ((), (np.zeros(2), np.zeros(2, bool), np.zeros(2, bool))):
        action = one.act(obs, *step)
        assert np.array_equal(action, other.act(obs, *step))
        action += 1
    assert torch.equal(one._action, other._action)


def test_a_mask_must_not_go_missing() -> None:
    player = Player(ActorCritic(SpaceSpec((2,), "float32", 1.0, num_actions=3), "none", encoder_sizes=(4,)))
    obs = np.zeros((1, 2), np.float32)
    with pytest.raises(ValueError, match="expected at least one allowed action"):
        player.act(obs, action_mask=[[0, 0, 0]])
    player.act(obs)
    player.reset()
    assert player.act(obs, action_mask=[[0, 0, 1]]) == 2
    with pytest.raises(ValueError, match=r"action_mask: expected one, as in .* the steps before, got none"):
        player.act(obs, [0.0], [False], [False])
    player.act(obs, [0.0], [True], [False])  # the action after the last observation is ignored
    player.reset()
    player.act(obs)


def test_the_mask_at_the_end_of_an_episode_may_allow_nothing() -> None:
    agent = ActorCritic(SpaceSpec((2,), "float32", 1.0, num_actions=3), "none", encoder_sizes=(4,))
    player, obs = Player(agent), np.zeros(2, np.float32)
    player.act(obs, action_mask=[0, 0, 1])
    player.act(obs, 1.0, True, False, action_mask=[0, 0, 0])
    assert player.act(obs, 1.0, True, False, action_mask=[0, 1, 0]) == 1  # the caller has reset
    with pytest.raises(ValueError, match="expected at least one allowed action"):
        player.act(obs, 1.0, False, False, action_mask=[0, 0, 0])


def test_the_mask_at_the_end_of_an_episode_may_allow_nothing_for_one_choice() -> None:
    player = Player(ActorCritic(SpaceSpec.from_spaces(Box(-1, 1, (2,)), MultiDiscrete([2, 3])), "none"))
    player.act(np.zeros(2), action_mask=[0, 1, 0, 0, 1])
    player.act(np.zeros(2), 1.0, True, False, action_mask=[0, 0, 0, 0, 1])
    player.reset()
    with pytest.raises(ValueError, match="expected at least one allowed action for each choice"):
        player.act(np.zeros(2), action_mask=[0, 0, 0, 0, 1])


def test_a_mask_of_continuous_actions_is_ignored_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    player = Player(ActorCritic(SpaceSpec.from_spaces(Box(-1, 1, (2,)), Box(-1, 1, (2,))), "none"))
    player.act(np.zeros(2), action_mask=[1, 0])
    assert "action_mask of Player.act is ignored" in caplog.text


def test_the_parts_of_an_observation_are_all_plain_or_all_of_lanes() -> None:
    space = Dict({"a": Box(-1, 1, (3,)), "b": Box(-1, 1, (2,))})
    player = Player(ActorCritic(SpaceSpec.from_spaces(space, Discrete(2)), "none"))
    with pytest.raises(ValueError, match="obs b: expected"):
        player.act({"a": np.zeros(3), "b": np.zeros((1, 2))})


def test_an_agent_of_ones_own_loop_with_masks_asks_for_one_from_the_first_step_on() -> None:
    env = make_env("Zoo-MaskInfo-v0", 2)
    agent = ActorCritic(SpaceSpec.of(env), "none", encoder_sizes=(4,))
    assert not agent.spec.is_masked
    Collector(agent, env, 3)
    with pytest.raises(ValueError, match="action_mask: expected one"):
        Player(agent, 2).act(env.reset(seed=0)[0])


def test_a_refused_step_can_be_given_again() -> None:
    agent = ActorCritic(SpaceSpec((2,), "float32", 1.0, num_actions=3), "lstm", encoder_sizes=(4,))
    obs, one, other = np.ones((1, 2), np.float32), Player(agent), Player(agent)
    for step in ((), ([0.5], [False], [False]), ([0.5], [True], [False]), ([0.0], [False], [False])):
        for mask in ([[1, 1]], [[1, 1, 1]] * 2):
            with pytest.raises(ValueError, match="action_mask: expected"):
                one.act(obs, *step, action_mask=mask)
        for player in (one, other):
            player.act(obs, *step, action_mask=[[0, 1, 0]])
        assert all(map(torch.equal, one._state, other._state))
