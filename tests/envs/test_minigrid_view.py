"""MiniGrid's observations as vectors of categories: other tasks, missions, and what is refused."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Discrete, MultiDiscrete
from minigrid.core.mission import MissionSpace
from minigrid.envs import MemoryEnv
from minigrid.wrappers import FullyObsWrapper

from rmc_agents.envs.minigrid.view import MiniGridView, MissionWords
from rmc_agents.envs.registry import make_vector_env


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MiniGrid-RedBlueDoors-6x6-v0", []),
        ("MiniGrid-KeyCorridorS3R1-v0", [6]),
        ("MiniGrid-ObstructedMaze-1Dl-v0", []),
        ("MiniGrid-DoorKey-5x5-v0", []),
        ("MiniGrid-PutNear-6x6-N2-v0", [6, 3, 6, 3]),
        ("MiniGrid-Fetch-5x5-N2-v0", [5, 6, 2]),
    ],
)
def test_other_tasks_have_all_their_actions_and_their_words(name: str, words: list[int]) -> None:
    env, plain = make_vector_env(name, 2), [gym.make(name) for _ in range(2)]
    assert env.single_action_space == Discrete(7)
    assert env.single_observation_space == MultiDiscrete([11, 6, 3] * 49 + [4, *words], dtype=np.uint8)
    seen = []
    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        assert env.observation_space.contains(obs)
        for lane, single in enumerate(plain):
            expected, _ = single.reset(seed=seed + lane)
            np.testing.assert_array_equal(obs[lane, :147], expected["image"].ravel())
            assert obs[lane, 147] == expected["direction"]
            seen.append((expected["mission"], tuple(obs[lane, 148:].tolist())))
        env.step(np.array([1, 2]))
    assert len(set(seen)) == len({mission for mission, _ in seen}) == len({numbers for _, numbers in seen})
    assert len(set(seen)) > 1 or not words


def test_missions_are_their_words_places_in_sorted_vocabularies() -> None:
    space = MissionSpace(
        lambda color, kind, size: f"put the {size} {kind} on {color}", [["red", "blue"], ["key"], ["big", "tiny"]]
    )
    words = MissionWords(space)
    assert words.categories == (2, 2)
    article = MissionWords(
        MissionSpace(lambda key: f"take {'an' if key[0] == 'o' else 'a'} {key} key", [["red", "orange"]])
    )
    assert article.numbers("take an orange key") == (0,)
    assert words.numbers("put the tiny key on blue") == (0, 1)
    assert words.numbers("put the big key on red") == (1, 0)
    for mission in ("put the big key on green", "put the big ball on red", "take the big key"):
        with pytest.raises(
            ValueError, match=r"is not of its MissionSpace, whose varying words are blue, red; big, tiny$"
        ):
            words.numbers(mission)


def test_what_cannot_be_encoded_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a MissionSpace, got a BabyAIMissionSpace \(as in BabyAI\), which agents"):
        MiniGridView(gym.make("BabyAI-GoToObj-v0"))
    sentences = type("Sentences", (MissionSpace,), {})(lambda color: f"take {color}", [["red", "blue"]])
    assert MissionWords(sentences).numbers("take red") == (1,)
    numbers = [str(number) for number in range(101)]
    with pytest.raises(ValueError, match=r"at most 10,000 different missions, got 10,201"):
        MissionWords(MissionSpace(lambda a, b: f"{a} {b}", [numbers, numbers]))
    directed_agent = MiniGridView(FullyObsWrapper(MemoryEnv(7)))
    directed_agent.reset(seed=0)
    for _ in range(2):
        directed_agent.step(1)
    with pytest.raises(ValueError, match=r"at most \(11, 6, 3\) objects, colours and states, got .* \(11, 6, 4\)"):
        directed_agent.step(1)
