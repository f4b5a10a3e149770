"""BoxWorld's levels and rules: a solver checks levels, and the compiled engine is compared with a plain oracle."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from oracles.boxworld import GEM, Ending, Room, endings, shortest_solution
from rmc_agents.envs.boxworld import BoxWorldVectorEnv
from rmc_agents.envs.boxworld.palette import PALETTE
from rmc_agents.envs.boxworld.state import AGENT, smallest_room

LETTERS = [".", *map(chr, range(ord("a"), ord("a") + 20)), GEM, "#", "@"]
COLOURS = {letter: tuple(PALETTE[cell].tolist()) for cell, letter in enumerate(LETTERS)}


def rooms_of(env: BoxWorldVectorEnv) -> list[Room]:
    texts = env.render()
    assert texts is not None
    return [Room.parse(str(text)) for text in texts]


def solution_of(room: Room) -> Ending:
    [solution] = [ending for ending in endings(room) if ending.has_gem]
    return solution


def eager_action(room: Room, random: np.random.Generator) -> int:
    """A random action, mostly one that opens or takes something, if there is one: random walks solve few levels."""
    eventful = [action for action in range(4) if room.step(action)[1]]
    return int(random.choice(eventful)) if eventful and random.random() < 0.8 else int(random.integers(4))


def check_level(room: Room, solution_length: int, num_distractors: int) -> None:
    """One sequence of boxes takes the gem; every other opens the first of them and then one distractor."""
    all_endings = list(endings(room))
    [solution] = [ending.boxes for ending in all_endings if ending.has_gem]
    dead_ends = [ending.boxes for ending in all_endings if not ending.has_gem]
    assert len(solution) == solution_length
    assert len(dead_ends) == num_distractors
    for boxes in dead_ends:
        *first, distractor = boxes
        assert first == list(solution[: len(first)])
        assert distractor not in solution
    boxes = list(room.boxes().values())
    assert Counter(boxes) == Counter([*solution, *(boxes[-1] for boxes in dead_ends)])
    # Every key exists once, and opening a box uses it up.
    [loose] = [mark for _, mark in room.things if mark.islower() and mark not in {content for content, _ in boxes}]
    assert max(Counter([loose, *(content for content, _ in boxes)]).values()) == 1
    assert room.held == "-"


def check_places(room: Room) -> None:
    """Things do not touch, except a box's two cells, of which the lock is on the right."""
    locks, cells = room.boxes(), [cell for cell, _ in room.things]
    assert room.agent not in cells
    for one, other in combinations(sorted(cells), 2):
        if abs(one[0] - other[0]) <= 1 and abs(one[1] - other[1]) <= 1:
            assert other in locks
            assert one == (other[0], other[1] - 1)


@pytest.mark.parametrize(
    ("levels", "settings"),
    [
        (10_000, {}),
        (500, {"room_size": 8, "max_solution_length": 2, "max_distractors": 2}),
        (500, {"room_size": smallest_room(7), "max_solution_length": 4, "max_distractors": 3}),
        (300, {"room_size": 4, "max_solution_length": 1, "max_distractors": 0}),
        (100, {"room_size": 18, "max_solution_length": 10, "max_distractors": 10}),
    ],
)
def test_levels_have_one_solution_and_distractors_lead_nowhere(levels: int, settings: dict[str, int]) -> None:
    env = BoxWorldVectorEnv(levels, **settings, render_mode="ansi")
    _, infos = env.reset(seed=0)
    for lane, room in enumerate(rooms_of(env)):
        check_level(room, infos["solution_length"][lane], infos["num_distractors"][lane])
        if lane < 1000:
            check_places(room)


def test_levels_of_choices_have_no_distractors_beside_the_gem() -> None:
    settings = {"max_solution_length": 3, "min_solution_length": 2, "max_distractors": 3, "min_distractors": 2}
    env = BoxWorldVectorEnv(400, room_size=11, **settings, gem_distractors=False, render_mode="ansi")
    _, infos = env.reset(seed=0)
    assert set(infos["solution_length"]) == {2, 3}
    assert set(infos["num_distractors"]) == {2, 3}
    closed = set()  # how many boxes of the solution a distractor leaves closed
    for lane, room in enumerate(rooms_of(env)):
        length = int(infos["solution_length"][lane])
        check_level(room, length, infos["num_distractors"][lane])
        closed |= {length - len(ending.boxes) + 1 for ending in endings(room) if not ending.has_gem}
    assert closed == {2, 3}


def test_levels_are_uniform_and_use_all_colours_and_places() -> None:
    env = BoxWorldVectorEnv(12_000)
    _, infos = env.reset(seed=3)
    state = env.get_state()
    for name, values in (("solution_length", range(1, 6)), ("num_distractors", range(6))):
        counts = [int((infos[name] == value).sum()) for value in values]
        assert sum(counts) == 12_000
        np.testing.assert_allclose(counts, 12_000 / len(values), rtol=0.06)
    np.testing.assert_allclose(np.bincount(state["path"][:, 0], minlength=21)[1:], 600, rtol=0.15)
    longest = np.flatnonzero(infos["solution_length"] == 5)
    for place in range(5):  # each key exists once and has one lock in the solution; its other locks are distractors'
        cells = state["board"][longest] == state["path"][longest, place][:, None, None]
        assert abs(cells.sum(axis=(1, 2)).mean() - 2 - 2.5 / 5) < 0.06
    for occupied in (state["board"] > 0).mean(axis=0), np.eye(14)[state["row"]].T @ np.eye(14)[state["column"]]:
        assert occupied.min() > 0.5 * occupied.mean()  # beside a wall there are fewer places for a box
        assert occupied.max() < 1.6 * occupied.mean()


def test_episodes_of_a_lane_are_different_levels() -> None:
    env = BoxWorldVectorEnv(2, render_mode="ansi")
    env.reset(seed=1)
    first = rooms_of(env)
    env.reset()
    assert len({*first, *rooms_of(env)}) == 4


def test_colours_are_far_apart() -> None:
    assert len(PALETTE) == AGENT + 1
    distances = [np.linalg.norm(one.astype(float) - other) for one, other in combinations(PALETTE, 2)]
    assert min(distances) > 100


@pytest.mark.slow
def test_the_engine_plays_as_the_oracle_does() -> None:
    """Through several viewports at once."""
    lanes, max_steps, viewports = 16, 60, (5, 11, None)
    settings = {"room_size": 7, "max_solution_length": 2, "max_distractors": 1, "max_steps": max_steps}
    views = [BoxWorldVectorEnv(lanes, **settings, viewport=viewport, render_mode="ansi") for viewport in viewports]
    env, observations = views[0], [view.reset(seed=7)[0] for view in views]
    rooms, random, seen = rooms_of(env), np.random.default_rng(7), Counter[str]()
    wanted, steps, ended = [set(solution_of(room).boxes) for room in rooms], [0] * lanes, [False] * lanes
    for _ in range(500):
        for seen_through, viewport in zip(observations, viewports, strict=True):
            np.testing.assert_array_equal(seen_through, [room.picture(viewport, COLOURS) for room in rooms])
        actions = [eager_action(room, random) for room in rooms]
        observations = [view.step(actions)[0] for view in views[1:]]
        first, rewards, terminated, truncated, infos = env.step(actions)
        observations.insert(0, first)
        now = rooms_of(env)
        for lane in range(lanes):
            if ended[lane]:
                rooms[lane], wanted[lane], steps[lane] = now[lane], set(solution_of(now[lane]).boxes), 0
                expected = (0.0, False, False, False)
            else:
                rooms[lane], event = rooms[lane].step(actions[lane])
                steps[lane] += 1
                what = "box" if event in wanted[lane] else "distractor" if isinstance(event, tuple) else event
                seen[what if what in ("box", "distractor", GEM, "") else "key"] += 1
                is_over = what in ("distractor", GEM)
                reward = {"box": 1.0, "distractor": -1.0, GEM: 10.0}.get(what, 0.0)  # type: ignore[arg-type]
                expected = (reward, is_over, steps[lane] >= max_steps and not is_over, what == GEM)
                seen["cut"] += expected[2]
            assert now[lane] == rooms[lane]
            got = (rewards[lane], terminated[lane], truncated[lane], infos["is_success"][lane])
            assert got == expected
            ended[lane] = expected[1] or expected[2]
    for what in ("key", "box", "distractor", GEM, "cut"):
        assert seen[what] > 10, seen


def test_solved_levels_return_ten_and_their_length_within_the_cap() -> None:
    lanes = 24
    env = BoxWorldVectorEnv(lanes, render_mode="ansi", autoreset_mode="disabled")
    _, infos = env.reset(seed=2)
    lengths, returns, rooms = infos["solution_length"], np.zeros(lanes), rooms_of(env)
    for lane, room in enumerate(rooms):
        solution = solution_of(room)
        single = BoxWorldVectorEnv(1, autoreset_mode="disabled")
        single.reset(seed=2 + lane)
        for move in shortest_solution(room, frozenset(solution.boxes)):
            _, rewards, terminated, truncated, infos = single.step([move])
            returns[lane] += rewards[0]
        assert terminated[0]
        assert not truncated[0]
        assert infos["is_success"][0]
        assert infos["boxes_opened"][0] == lengths[lane]
    np.testing.assert_array_equal(returns, 10 + lengths)
