"""Compares a native vector environment with gymnasium's SyncVectorEnv of the single environment, step by step."""

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

MakeVector = Callable[[AutoresetMode], VectorEnv]
MakeSingle = Callable[[], gym.Env]

SCRIBBLE = 113


def check_vector_env(make_vector: MakeVector, make_single: MakeSingle, steps: int = 100, seed: int = 5) -> None:
    """Checks all three autoreset modes: spaces, metadata, seeds, observations, rewards, flags, infos, reset_mask.

    Rewards are compared in the native environment's dtype. Every array that the native environment returns is
    overwritten at once and must stay so: it neither hands out an array twice nor reads one again.

    Args:
        make_vector: makes the native environment with a given autoreset mode.
        make_single: makes one single environment; its episodes should end several times within `steps`.
        steps: steps per autoreset mode.
        seed: of the environments and of the actions.

    Raises:
        AssertionError: naming the mode, the step and the place of the first difference.
    """
    for autoreset_mode in AutoresetMode:
        native = make_vector(autoreset_mode)
        reference = SyncVectorEnv([make_single] * native.num_envs, autoreset_mode=autoreset_mode)
        _check_attributes(native, reference)
        ended = _Comparison(native, reference, seed).play(steps)
        assert ended > 0, f"{autoreset_mode}: no episode ended within {steps} steps"
        native.close()
        native.close()
        reference.close()


def _check_attributes(native: VectorEnv, reference: VectorEnv) -> None:
    for name in (
        "num_envs",
        "single_observation_space",
        "single_action_space",
        "observation_space",
        "action_space",
    ):
        got, expected = getattr(native, name), getattr(reference, name)
        assert got == expected, f"{name}: expected {expected}, got {got}"
    for name in ("autoreset_mode", "render_fps"):
        got, expected = native.metadata[name], reference.metadata[name]
        assert got == expected, f"metadata[{name!r}]: expected {expected}, got {got}"


class _Comparison:
    """Plays both environments with the same calls."""

    def __init__(self, native: VectorEnv, reference: VectorEnv, seed: int) -> None:
        self.native, self.reference, self.seed = native, reference, seed
        self.mode = native.metadata["autoreset_mode"]
        self.random = np.random.default_rng(seed)
        self.returned: list[np.ndarray] = []

    def play(self, steps: int) -> int:
        """All checks; the number of episodes that ended."""
        lanes = self.native.num_envs
        self.reset("reset with an int", seed=self.seed)
        ended = self.steps("after an int seed", steps // 2)
        self.reset("reset without a seed")
        self.reset("reset with a list", seed=[11 * lane + 3 for lane in range(lanes)])
        ended += self.steps("after a list of seeds", steps - steps // 2)
        for what, seed in (("", None), (" and an int", self.seed + 1), (" and a list", list(range(lanes)))):
            mask = np.arange(lanes) % 2 == 0
            self.reset(f"reset with a mask{what}", seed=seed, mask=mask)
            ended += self.steps(f"after a mask{what}", 20)
        for array in self.returned:
            untouched = np.all(array == np.asarray(SCRIBBLE).astype(array.dtype))
            assert untouched, f"{self.mode}: an array that was returned earlier was written to again"
        return ended

    def steps(self, what: str, steps: int) -> int:
        """Random actions; with autoreset disabled, finished lanes are reset by mask. The number of ended episodes."""
        ended = 0
        for step in range(steps):
            actions = self.random.integers(0, self.native.single_action_space.n, self.native.num_envs)  # type: ignore[attr-defined]
            given = actions.copy()
            got, expected = self.native.step(given), self.reference.step(actions)
            finished = expected[2] | expected[3]
            self.compare(f"{what}, step {step}", got, expected)
            assert np.array_equal(given, actions), f"{self.mode}: step changed the actions it was given"
            ended += int(finished.sum())
            if self.mode == AutoresetMode.DISABLED and finished.any():
                self.reset(f"{what}, reset after step {step}", mask=finished)
        return ended

    def reset(self, what: str, seed: Any = None, mask: np.ndarray | None = None) -> None:
        """One reset of both. SyncVectorEnv takes reset_mask out of the dict it is given: each gets its own."""
        options = None if mask is None else {"reset_mask": mask.copy()}
        got = self.native.reset(seed=seed, options=options)
        assert options is None or list(options) == ["reset_mask"], f"{self.mode}: reset changed the caller's options"
        expected = self.reference.reset(seed=seed, options=None if mask is None else {"reset_mask": mask.copy()})
        self.compare(what, got, expected)

    def compare(self, what: str, got: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
        """Compares what both returned, then overwrites the native environment's arrays."""
        names = ["observations", "infos"]
        if len(expected) == 5:
            names = ["observations", "rewards", "terminated", "truncated", "infos"]
            assert got[1].dtype.kind == "f", f"{self.mode}, {what}: rewards are {got[1].dtype}"
            expected = (expected[0], expected[1].astype(got[1].dtype), *expected[2:])
        assert len(got) == len(expected), f"{self.mode}, {what}: {len(got)} values returned"
        for name, one, other in zip(names, got, expected, strict=True):
            _assert_same(f"{self.mode}, {what}, {name}", one, other)
        arrays = list(_arrays(got))
        for index, array in enumerate(arrays):
            for later in arrays[index + 1 :]:
                assert not np.shares_memory(array, later), f"{self.mode}, {what}: two returned arrays share memory"
        for array in arrays:
            array[...] = SCRIBBLE
        self.returned += arrays


def _assert_same(place: str, got: Any, expected: Any) -> None:
    """Equal in type, keys, shape, dtype and every value."""
    if isinstance(expected, dict):
        assert isinstance(got, dict), f"{place}: expected a dict, got {type(got)}"
        assert got.keys() == expected.keys(), f"{place}: expected {set(expected)}, got {set(got)}"
        for key in expected:
            _assert_same(f"{place}[{key!r}]", got[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert isinstance(got, np.ndarray), f"{place}: expected an array, got {type(got)}"
        kinds = [f"{array.dtype} {array.shape}" for array in (expected, got)]
        assert kinds[0] == kinds[1], f"{place}: expected {kinds[0]}, got {kinds[1]}"
        if expected.dtype == object:
            for index in np.ndindex(expected.shape):
                _assert_same(f"{place}{list(index)}", got[index], expected[index])
        else:
            difference = np.argwhere(got != expected)
            assert not len(difference), f"{place}: differs first at {difference[0].tolist()}"
    else:
        same = type(got) is type(expected) and got == expected
        assert same, f"{place}: expected {expected!r}, got {got!r}"


def _arrays(value: Any) -> Iterator[np.ndarray]:
    """All arrays of numbers within tuples, dicts and object arrays."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _arrays(item)
    elif isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, np.ndarray):
        yield value
