"""Sequence environments against gymnasium's contracts, their rewards and infos, and their names."""

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from helpers.vector_env_checker import check_vector_env
from rmc_agents.envs.names import evaluation_kwargs
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.envs.sequences.environment import SequenceEnv, SequenceVectorEnv
from rmc_agents.envs.sequences.names import find_sequences
from rmc_agents.envs.sequences.nth_farthest import NthFarthestVectorEnv
from rmc_agents.envs.sequences.programs import ProgramVectorEnv

LANES = 5
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "nth-farthest": ("NthFarthest-v0", {"vectors": 4, "size": 3, "fewest": 2, "thinking": 1}),
    "asked every time": ("NthFarthest-v0", {"vectors": 4, "size": 3, "most": 3, "active": 2, "ask": "every"}),
    "program": ("Program-v0", {"nesting": 1, "length": 1}),
    "copy": ("Program-v0", {"task": "copy", "length": 3, "teacher_forcing": True}),
    "text": ("Text-v0", {"steps": 7}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """An id and settings with which sequences end within a few steps."""
    name, settings = KINDS[request.param]
    if name == "Text-v0":
        settings = {**settings, "path": str(tmp_path)}
        (tmp_path / "a.txt").write_bytes(b"What is read here is short.")
        (tmp_path / "b.txt").write_bytes(b"And so is this.")
    return f"rmc_agents.envs:{name}", settings


def single(kind: tuple[str, dict[str, Any]], **more: Any) -> SequenceEnv:
    env = gym.make(kind[0], **kind[1], **more).unwrapped
    assert isinstance(env, SequenceEnv)
    return env


def lanes_of(kind: tuple[str, dict[str, Any]], num_envs: int = LANES, **more: Any) -> SequenceVectorEnv:
    env = gym.make_vec(kind[0], num_envs, vectorization_mode="vector_entry_point", **kind[1], **more)
    assert isinstance(env, SequenceVectorEnv)
    return env


def test_gymnasium_checker_raises_no_warning(kind: tuple[str, dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(single(kind))


def test_vector_env_is_a_sync_vector_env(kind: tuple[str, dict[str, Any]]) -> None:
    check_vector_env(lambda mode: lanes_of(kind, autoreset_mode=mode), lambda: single(kind), steps=120)


def test_lanes_do_not_depend_on_their_number(kind: tuple[str, dict[str, Any]]) -> None:
    few, many = lanes_of(kind, 2), lanes_of(kind, 7)
    np.testing.assert_array_equal(few.reset(seed=9)[0], many.reset(seed=7)[0][2:4])
    for _ in range(60):
        one, other = few.step(np.zeros(2, int)), many.step(np.zeros(7, int))
        for got, expected in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(got, expected[2:4])
        np.testing.assert_array_equal(one[4]["target"], other[4]["target"][2:4])


def test_only_right_answers_are_rewarded(kind: tuple[str, dict[str, Any]]) -> None:
    env = lanes_of(kind, 8)
    _, infos = env.reset(seed=3)
    random = np.random.default_rng(3)
    right_so_far, waiting = np.ones(8, bool), np.zeros(8, bool)
    outcomes = set()
    for _ in range(300):
        targets = infos["target"]
        is_asked = targets >= 0
        actions = random.integers(0, env.single_action_space.n, 8)  # type: ignore[attr-defined]
        actions = np.where(is_asked & (random.random(8) < 0.9), targets, actions)
        _, rewards, terminated, truncated, infos = env.step(actions)
        is_rewarded = is_asked & terminated if kind[1].get("ask") == "every" else is_asked
        np.testing.assert_array_equal(rewards, is_rewarded & (actions == targets))
        assert not is_asked[waiting].any()
        assert not truncated.any()
        right_so_far = (right_so_far | waiting) & ~(is_asked & (actions != targets))
        if env.lanes.is_answer_whole and terminated.any():
            np.testing.assert_array_equal(infos["_is_success"], terminated)
            np.testing.assert_array_equal(infos["is_success"], terminated & right_so_far)
            outcomes |= set(infos["is_success"][terminated].tolist())
        waiting = terminated
    assert outcomes == ({True, False} if env.lanes.is_answer_whole else set())


@pytest.mark.parametrize("autoreset_mode", ["NEXT_STEP", "same_step"])
def test_a_new_environment_continues_from_a_state(kind: tuple[str, dict[str, Any]], autoreset_mode: str) -> None:
    first, second = (lanes_of(kind, 16, autoreset_mode=autoreset_mode) for _ in range(2))
    first.reset(seed=2)
    actions = np.random.default_rng(2).integers(0, first.single_action_space.n, (80, 16))  # type: ignore[attr-defined]
    for before in actions[:40]:
        first.step(before)
    state = first.get_state()
    second.set_state(state)
    for array in state.values():
        array[...] = 0
    for after in actions[40:]:
        for one, other in zip(first.step(after)[:4], second.step(after)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    for name, value in first.get_state().items():
        np.testing.assert_array_equal(second.get_state()[name], value)


def test_a_wrong_state_is_refused(kind: tuple[str, dict[str, Any]]) -> None:
    env = lanes_of(kind, 2)
    env.reset(seed=0)
    state = env.get_state()
    for name, value in {
        "time": state["length"] + 1,
        "length": state["length"] + 1000,
        "all_right": state["all_right"][:1],
    }.items():
        with pytest.raises(ValueError, match=r"state field '(time|length|begin|all_right)': expected .* got"):
            env.set_state({**state, name: value})
    with pytest.raises(ValueError, match=r"missing \['time'\], unknown \['tide'\]"):
        env.set_state({"tide" if name == "time" else name: value for name, value in state.items()})


def test_calls_out_of_place_are_refused(kind: tuple[str, dict[str, Any]]) -> None:
    env, one = lanes_of(kind, 2, autoreset_mode="disabled", render_mode="ansi"), single(kind)
    calls: tuple[Callable[[], Any], ...] = (lambda: env.step([0, 0]), env.render, lambda: one.step(0))
    for call in calls:
        with pytest.raises(ResetNeeded):
            call()
    with pytest.raises(ValueError, match="non-negative"):
        env.reset(seed=[0, -1])
    env.reset(seed=0)
    one.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions: expected 0\.\."):
        env.step([0, env.single_action_space.n])  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"action: expected an int in 0\.\."):
        one.step(-1)
    terminated = np.zeros(2, bool)
    while not terminated.any():
        terminated = env.step([0, 0])[2]
    with pytest.raises(ResetNeeded, match="have ended"):
        env.step([0, 0])
    is_over = False
    while not is_over:
        is_over = one.step(0)[2]
    with pytest.raises(ResetNeeded, match="after the episode's end"):
        one.step(0)


def test_pictures_change_with_the_steps(kind: tuple[str, dict[str, Any]]) -> None:
    env = lanes_of(kind, 1, render_mode="rgb_array")
    env.reset(seed=0)
    (first,) = env.render() or ()
    env.step([0])
    (second,) = env.render() or ()
    assert isinstance(first, np.ndarray)
    assert isinstance(second, np.ndarray)
    assert first.shape == second.shape
    assert first.shape[1:] == (480, 3)
    assert (first != second).any()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nth-farthest", ("NthFarthest", {})),
        (
            "nth-farthest-vectors4-size8-from2-thinking3",
            ("NthFarthest", {"vectors": 4, "size": 8, "fewest": 2, "thinking": 3}),
        ),
        ("program", ("Program", {})),
        ("program-addition", ("Program", {"task": "addition"})),
        ("program-maxima", ("Program", {"at_maxima": True})),
        (
            "program-reverse-nesting1-length3-forced",
            ("Program", {"task": "reverse", "nesting": 1, "length": 3, "teacher_forcing": True}),
        ),
        ("text:a/b-stack4", ("Text", {"path": "a/b-stack4"})),
        ("text:C:/a.txt", ("Text", {"path": "C:/a.txt"})),
        (
            "text-words-heldout-vocabulary100-steps9:a-b",
            ("Text", {"path": "a-b", "unit": "words", "part": "heldout", "vocabulary_size": 100, "steps": 9}),
        ),
        ("recall", None),
        ("textual:Id-v0", None),
        ("programs", None),
    ],
)
def test_names_stand_for_settings(name: str, expected: tuple[str, dict[str, Any]] | None) -> None:
    assert find_sequences(name) == (expected and (f"rmc_agents.envs:{expected[0]}-v0", expected[1]))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nth-farthest-vectors1", "vectors: expected an int from 2 to 64, got 1"),
        ("nth-farthest-size0", "size: expected an int from 1 to 1024, got 0"),
        ("nth-farthest-vectors4-from5", "fewest: expected an int from 2 to 4, got 5"),
        ("nth-farthest-thinking1001", "thinking: expected an int from 0 to 1000, got 1001"),
        (
            "nth-farthest-vectors",
            "expected -vectorsN, -sizeN, -fromN, -mostN, -activeN, -thinkingN, -every; got '-vectors'",
        ),
        ("nth-farthest-size3-size4", "expected size once, got it twice"),
        ("program-nesting7", "nesting: expected an int from 1 to 6, got 7"),
        ("program-control-length10", "length: expected an int from 1 to 9, got 10"),
        ("program-adition", "expected -addition, -control, .*, -nestingN, -lengthN, .*; got '-adition'"),
        ("program-maxima1", "got '-maxima1'"),
        ("text:", "expected a file, a folder or a pattern behind text:, got none"),
        ("text-sentences:a", "expected -words, -heldout, .*; got '-sentences'"),
        ("nth-farhest", "there is no environment 'nth-farhest'; did you mean 'nth-farthest'?"),
    ],
)
def test_wrong_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make_vector_env(name, 1)
    assert "\n" not in str(caught.value)


def test_names_make_native_lanes() -> None:
    env = make_vector_env("nth-farthest-vectors4", 3)
    assert isinstance(env, NthFarthestVectorEnv)
    assert env.single_observation_space.shape == (28,)
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    assert isinstance(make_vector_env("program-copy", 3, backend="native"), ProgramVectorEnv)
    stacked = make_vector_env("program-stack2", 3)
    assert stacked.single_observation_space.shape == (2,)


HELD_OUT = {"part": "heldout", "steps": 10_000}


@pytest.mark.parametrize(
    ("name", "trained", "evaluated"),
    [
        ("program-control-nesting3", {}, {"at_maxima": True}),
        ("program-copy-stack2", {"at_maxima": False}, {"at_maxima": True}),
        ("rmc_agents.envs:Program-v0", {"task": "copy"}, {"task": "copy", "at_maxima": True}),
        ("program-maxima", {}, {}),
        ("text-words:a:b", {}, HELD_OUT),
        ("text:a", {"part": "train", "held_out": 0.2}, HELD_OUT | {"held_out": 0.2}),
        ("Text-v0", {"path": "a", "steps": 5}, {"path": "a", "part": "heldout", "steps": 5}),
        ("text-all-steps7:a", {}, {}),
        ("nth-farthest-from2-stack2", {"ask": "every"}, {"ask": "every"}),
        ("minipacman", {}, {}),
    ],
)
def test_agents_are_evaluated_at_the_maxima_and_on_what_was_held_out(
    name: str, trained: dict[str, Any], evaluated: dict[str, Any]
) -> None:
    assert evaluation_kwargs(name, trained) == evaluated


def test_other_tasks_and_types_are_refused() -> None:
    for settings, message in (
        ({"task": "sums"}, "task: expected one of full, addition, .*; got 'sums'"),
        ({"nesting": 2.0}, "nesting: expected an int from 1 to 6, got 2.0"),
        ({"num_envs": 0}, "num_envs: expected an int of at least 1, got 0"),
        ({"render_mode": "human"}, "render_mode: expected None or one of rgb_array, ansi; got 'human'"),
    ):
        with pytest.raises(ValueError, match=message):
            ProgramVectorEnv(**{"num_envs": 1, **settings})  # type: ignore[arg-type]


def test_environments_need_no_torch() -> None:
    command = (
        "import sys, rmc_agents.envs.sequences.text, rmc_agents.envs.sequences.programs; print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
