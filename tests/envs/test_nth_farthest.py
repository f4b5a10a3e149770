"""Nth Farthest: what is asked against exact arithmetic on what is shown, and the distribution of what is drawn."""

from typing import Any, Literal

import numpy as np
import pytest

from oracles.sequences import nth_farthest
from rmc_agents.envs.sequences.nth_farthest import NthFarthest, NthFarthestVectorEnv
from rmc_agents.envs.sequences.nth_farthest_drawing import RIGHT, WRONG
from rmc_agents.envs.sequences.nth_farthest_engine import GRID


def sequences_of(env: NthFarthestVectorEnv, steps: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The finished sequences of all lanes: observations [L + 1, D + 3 * V] and targets [L + 1]."""
    obs, infos = env.reset(seed=1)
    found, current = [], [([row], [target]) for row, target in zip(obs, infos["target"], strict=True)]
    ended = np.zeros(env.num_envs, bool)
    for _ in range(steps):
        was_ended = ended
        obs, _, ended, _, infos = env.step(np.zeros(env.num_envs, int))
        for lane in range(env.num_envs):
            if was_ended[lane]:
                current[lane] = ([], [])
            current[lane][0].append(obs[lane])
            current[lane][1].append(infos["target"][lane])
            if ended[lane]:
                found.append((np.array(current[lane][0]), np.array(current[lane][1])))
    return found


@pytest.mark.parametrize(
    ("vectors", "size", "fewest", "thinking"), [(8, 16, None, 0), (2, 1, None, 3), (5, 3, 2, 1), (20, 64, None, 0)]
)
def test_the_label_that_is_asked_for_is_the_nth_farthest(
    vectors: int, size: int, fewest: int | None, thinking: int
) -> None:
    env = NthFarthestVectorEnv(20, vectors=vectors, size=size, fewest=fewest, thinking=thinking)
    counts = set()
    for shown, targets in sequences_of(env, 4 * (vectors + thinking + 1)):
        assert targets[-2] == nth_farthest(shown[:-1], size)
        assert (targets[:-2] == -1).all()
        assert targets[-1] == -1
        assert not shown[-1].any()
        counts.add(len(shown) - 1 - thinking)
        if thinking:
            assert not shown[-1 - thinking : -1, : size + vectors].any()
    assert counts == set(range(fewest or vectors, vectors + 1))


@pytest.mark.parametrize(("thinking", "absent"), [(0, "nearest"), (2, "nearest"), (2, "farthest")])
def test_after_every_vector_the_answer_is_among_those_shown(
    thinking: int, absent: Literal["nearest", "farthest"]
) -> None:
    env = NthFarthestVectorEnv(20, vectors=5, size=4, fewest=2, thinking=thinking, ask="every", absent=absent)
    asked = right = 0.0
    for shown, targets in sequences_of(env, 200):
        count = len(shown) - 1 - thinking
        for time in range(count + thinking):
            so_far = nth_farthest(shown[: time + 1], 4, absent)
            assert targets[time] == (so_far if time < count or time == count + thinking - 1 else -1)
            asked += targets[time] >= 0
            right += (targets[time] >= 0) / min(time + 1, count)
        assert targets[-1] == -1
    assert env.metadata["chance"] == pytest.approx(right / asked, abs=0.03)


def test_of_all_answers_only_the_one_at_the_end_is_rewarded() -> None:
    env = NthFarthestVectorEnv(20, vectors=4, ask="every")
    _, infos = env.reset(seed=0)
    for _ in range(15):
        _, rewards, ended, _, infos = env.step(np.maximum(infos["target"], 0))
        np.testing.assert_array_equal(rewards, ended)


def test_few_vectors_and_few_numbers_keep_the_observations_shape() -> None:
    env = NthFarthestVectorEnv(20, vectors=6, size=5, fewest=3, most=4, active=2)
    assert env.single_observation_space.shape == (5 + 3 * 6,)
    counts = set()
    for shown, targets in sequences_of(env, 40):
        assert targets[-2] == nth_farthest(shown[:-1], 5)
        assert shown[:-1, :2].all()
        assert not shown[:, 2:5].any()
        count = len(shown) - 1
        np.testing.assert_array_equal(np.sort(shown[:-1, 5:11].argmax(axis=1)), np.arange(count))
        counts.add(count)
    assert counts == {3, 4}


def test_the_papers_inputs_are_forty_numbers() -> None:
    env = NthFarthestVectorEnv(50)
    assert env.single_observation_space.shape == (40,)
    for shown, targets in sequences_of(env, 9):
        assert len(shown) == 9
        labels, n, m = (shown[:8, 16 + 8 * i : 24 + 8 * i] for i in range(3))
        np.testing.assert_array_equal(np.sort(labels.argmax(axis=1)), np.arange(8))
        for one_hot in (labels, n, m):
            np.testing.assert_array_equal(one_hot.sum(axis=1), 1)
        for constant in (n, m):
            assert (constant == constant[0]).all()
        assert 0 <= targets[7] < 8


def test_everything_is_drawn_uniformly() -> None:
    lanes = 20_000
    engine = NthFarthest(lanes, fewest=2)
    engine.reset(np.ones(lanes, bool), range(lanes), np.random.default_rng(0))
    state = engine.state
    numbers = np.concatenate([state.vectors[state.shown > i, i].ravel() for i in range(8)]).astype(np.float64)
    assert abs(numbers).max() < 1
    assert abs(numbers.mean()) < 0.005
    assert abs(numbers.var() - 1 / 3) < 0.002
    histogram = np.histogram(numbers, 16, (-1, 1))[0] / len(numbers)
    np.testing.assert_allclose(histogram, 1 / 16, atol=0.002)
    eights = state.shown == 8
    for drawn in (state.reference, state.rank, state.answer, *state.labels.T):
        np.testing.assert_allclose(np.bincount(drawn[eights], minlength=8) / eights.sum(), 1 / 8, atol=0.025)
    np.testing.assert_allclose(np.bincount(state.shown, minlength=9)[2:] / lanes, 1 / 7, atol=0.012)


def test_no_two_distances_are_equal() -> None:
    """Of 64 numbers on a line, two in several thousand sequences would be equally far."""
    lanes = 30_000
    engine = NthFarthest(lanes, vectors=64, size=1)
    engine.reset(np.ones(lanes, bool), range(lanes), np.random.default_rng(0))
    numbers = np.rint(engine.state.vectors[..., 0].astype(np.float64) * GRID).astype(np.int64)
    place = np.argmax(engine.state.labels == engine.state.reference[:, None], axis=1)
    distances = np.sort(abs(numbers - numbers[np.arange(lanes), place, None]), axis=1)
    assert (np.diff(distances, axis=1) > 0).all()


def test_chance_is_to_guess_among_the_vectors_shown() -> None:
    assert NthFarthestVectorEnv(1).metadata["chance"] == 1 / 8
    assert NthFarthestVectorEnv(1, vectors=4, fewest=2).metadata["chance"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)


@pytest.mark.slow
@pytest.mark.parametrize(("vectors", "size", "most"), [(8, 16, 8), (4, 2, 3), (40, 64, 40)])
def test_pictures_show_the_answer_when_it_is_asked_and_whether_it_was_right(vectors: int, size: int, most: int) -> None:
    env = NthFarthestVectorEnv(2, vectors=vectors, size=size, most=most, render_mode="rgb_array")
    _, infos = env.reset(seed=0)
    before = env.render()
    assert env.metadata["action_names"][:2] == ["vector 1", "vector 2"]
    for _ in range(most):
        shown = env.render()
        _, _, ended, _, infos = env.step((infos["target"] + np.array([0, 1])) % vectors)
    assert ended.all()
    after = env.render()
    assert [(has(a, RIGHT), has(b, RIGHT)) for a, b in zip(before, shown, strict=True)] == [(False, True)] * 2
    assert [has(picture, WRONG) for picture in after] == [False, True]


def has(picture: np.ndarray, colour: tuple[int, ...]) -> bool:
    return bool((picture == colour).all(-1).any())


@pytest.mark.parametrize("name", ["reference", "rank", "answer", "shown"])
def test_a_state_out_of_bounds_is_refused(name: str) -> None:
    env = NthFarthestVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got .*9"):
        env.set_state({**env.get_state(), name: np.array([9, 0])})


def test_a_rank_beyond_the_shown_vectors_is_refused() -> None:
    env = NthFarthestVectorEnv(2, fewest=2, most=2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"state field 'rank': expected .* got"):
        env.set_state({**env.get_state(), "rank": np.array([2, 0])})


@pytest.mark.parametrize("number", [np.nan, 1.5, 0.5])
def test_a_state_with_other_numbers_is_refused(number: float) -> None:
    env = NthFarthestVectorEnv(2, active=15)
    env.reset(seed=0)
    state = env.get_state()
    state["vectors"][1, 2, 15] = number
    with pytest.raises(ValueError, match="state field 'vectors': expected 15 numbers from -1 to 1, then zeros"):
        env.set_state(state)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"ask": "first"}, "ask: expected one of last, every; got 'first'"),
        ({"most": 9}, "most: expected an int from 2 to 8, got 9"),
        ({"most": 3, "fewest": 4}, "fewest: expected an int from 2 to 3, got 4"),
        ({"size": 4, "active": 5}, "active: expected an int from 1 to 4, got 5"),
    ],
)
def test_options_out_of_range_are_named(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        NthFarthestVectorEnv(1, **settings)


@pytest.mark.parametrize("absent", ["nearest", "farthest"])
def test_the_info_nth_is_the_n_that_is_shown(absent: Literal["nearest", "farthest"]) -> None:
    env = NthFarthestVectorEnv(200, vectors=5, size=3, fewest=2, absent=absent)
    obs, infos = env.reset(seed=0)
    for _ in range(2):
        asked = obs[:, 3 + 5 : 3 + 2 * 5]  # n one-hot
        np.testing.assert_array_equal(infos["nth"], 1 + asked.argmax(axis=1))
        obs, *_, infos = env.step(np.zeros(200, int))
    assert {*infos["nth"]} == {1, 2, 3, 4, 5}
