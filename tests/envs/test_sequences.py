"""Sequence environments: rewards and infos, states, pictures and names; what all kinds share is in test_native."""

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from helpers.native_kinds import SEQUENCES, Kind
from rmc_agents.envs.names import evaluation_kwargs
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.envs.sequences.base import Sequences
from rmc_agents.envs.sequences.names import find_sequences
from rmc_agents.envs.sequences.nth_farthest import NthFarthestVectorEnv
from rmc_agents.envs.sequences.programs import ProgramVectorEnv

every_kind = pytest.mark.parametrize("kind", SEQUENCES.values(), ids=SEQUENCES)


@every_kind
def test_only_right_answers_are_rewarded(kind: Kind) -> None:
    env = kind.lanes(8)
    assert isinstance(env.lanes, Sequences)
    _, infos = env.reset(seed=3)
    random = np.random.default_rng(3)
    right_so_far, waiting = np.ones(8, bool), np.zeros(8, bool)
    outcomes = set()
    for _ in range(300):
        targets = infos["target"]
        is_asked = targets >= 0
        actions = random.integers(0, env.lanes.action_space.n, 8)
        actions = np.where(is_asked & (random.random(8) < 0.9), targets, actions)
        _, rewards, terminated, truncated, infos = env.step(actions)
        right_so_far = (right_so_far | waiting) & ~(is_asked & (actions != targets))
        if isinstance(env, ProgramVectorEnv):
            expected = terminated & right_so_far
        else:
            is_rewarded = is_asked & terminated if kind.settings.get("ask") == "every" else is_asked
            expected = is_rewarded & (actions == targets)
        np.testing.assert_array_equal(rewards, expected)
        assert not is_asked[waiting].any()
        assert not truncated.any()
        if env.lanes.is_answer_whole and terminated.any():
            np.testing.assert_array_equal(infos["_is_success"], terminated)
            np.testing.assert_array_equal(infos["is_success"], terminated & right_so_far)
            outcomes |= set(infos["is_success"][terminated].tolist())
        waiting = terminated
    assert outcomes == ({True, False} if env.lanes.is_answer_whole else set())


@every_kind
def test_a_wrong_state_is_refused(kind: Kind) -> None:
    env = kind.lanes(2)
    env.reset(seed=0)
    state = env.get_state()
    for name, added in (("time", 1), ("length", 1000)):
        with pytest.raises(ValueError, match=r"state field '(time|length|begin)': expected .* got"):
            env.set_state({**state, name: state["length"] + added})


@every_kind
def test_pictures_change_with_the_steps(kind: Kind) -> None:
    env = kind.lanes(1, render_mode="rgb_array")
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
        ("program-mine-v0", None),
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
    ):
        with pytest.raises(ValueError, match=message):
            ProgramVectorEnv(1, **settings)
