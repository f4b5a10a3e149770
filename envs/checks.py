"""Argument checks of environments, evaluations and players, with the same messages for all."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import ArrayLike, NDArray


def checked_int(name: str, value: Any, low: int, high: int = sys.maxsize) -> int:
    """The value as an int. Raises ValueError unless it is an integer in low..high."""
    if not _is_int(value, low, high):
        wanted = (
            f"of at least {low}" if high == sys.maxsize and not _is_int(value, high, value) else f"from {low} to {high}"
        )
        raise ValueError(f"{name}: expected an int {wanted}, got {value!r}")
    return int(value)


def checked_odd(name: str, value: Any, low: int, high: int, otherwise: str = "") -> int:
    """The value as an int. Raises ValueError unless it is an odd integer in low..high; `otherwise`: what else fits."""
    if not _is_int(value, low, high) or value % 2 == 0:
        raise ValueError(f"{name}: expected an odd int from {low} to {high}{otherwise}, got {value!r}")
    return int(value)


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(low <= value <= high)


def checked_choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """The value. Raises ValueError if it is not one of those allowed."""
    if value not in (allowed := tuple(allowed)):
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}; got {value!r}")
    return str(value)


def checked_bool(name: str, value: Any) -> bool:
    """The value as a bool. Raises ValueError for anything else."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def checked_render_mode(render_mode: str | None, allowed: Sequence[str]) -> str | None:
    """The render mode. Raises ValueError for one that is not allowed."""
    if render_mode is not None and render_mode not in allowed:
        raise ValueError(f"render_mode: expected None or one of {', '.join(allowed)}; got {render_mode!r}")
    return render_mode


def as_autoreset_mode(autoreset_mode: AutoresetMode | str) -> AutoresetMode:
    """The mode, or the mode with that name in any spelling. Raises ValueError if there is none."""
    if isinstance(autoreset_mode, AutoresetMode):
        return autoreset_mode
    spelled = str(autoreset_mode).replace("_", "").lower()
    for candidate in AutoresetMode:
        if spelled == candidate.value.lower():
            return candidate
    names = ", ".join(candidate.name for candidate in AutoresetMode)
    raise ValueError(f"autoreset_mode: expected one of {names}; got {autoreset_mode!r}")


def lane_seeds(seed: int | Sequence[int | None] | None, num_envs: int) -> Sequence[int | None]:
    """A seed per lane: seed + i, or the i-th of a sequence. Raises ValueError for anything else."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, int | np.integer):
        seed = [int(seed) + lane for lane in range(num_envs)]
    if not isinstance(seed, Iterable):
        raise ValueError(f"seed: expected an int or a sequence of {num_envs}, got {seed!r}")
    seeds = list(seed)
    if len(seeds) != num_envs:
        raise ValueError(f"seed: expected an int or a sequence of {num_envs}, got {len(seeds)} seeds")
    for each in seeds:
        if each is not None and (not isinstance(each, int | np.integer) or each < 0):
            raise ValueError(f"seed: expected non-negative ints, got {each!r}")
    return [each if each is None else int(each) for each in seeds]


def checked_reset_mask(options: Mapping[str, Any] | None, was_reset: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The lanes that `options` select for a reset, bool [N]; all without `reset_mask`.

    Args:
        options: of `reset`.
        was_reset: [N], the lanes that have been reset before.

    Raises:
        ValueError: for a mask of wrong dtype or shape, without any True, or that leaves out a lane never reset.
    """
    if options is None or "reset_mask" not in options:
        return np.ones_like(was_reset)
    mask = options["reset_mask"]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != was_reset.shape:
        got = f"{mask.dtype} {mask.shape}" if isinstance(mask, np.ndarray) else type(mask).__name__
        raise ValueError(f"reset_mask: expected a bool array {was_reset.shape}, got {got}")
    if not mask.any():
        raise ValueError("reset_mask: expected at least one True, got none")
    if not was_reset[~mask].all():
        raise ValueError("reset_mask: expected True for every lane that was never reset, got False")
    return mask


def checked_actions(actions: ArrayLike, num_envs: int, num_actions: int) -> NDArray[np.int64]:
    """The actions, [N]. Raises ValueError for another shape, kind or range."""
    array = np.asarray(actions)
    if array.shape != (num_envs,) or array.dtype.kind not in "iu":
        raise ValueError(f"actions: expected ints ({num_envs},), got {array.dtype} {array.shape}")
    if array.min() < 0 or array.max() >= num_actions:
        raise ValueError(f"actions: expected 0..{num_actions - 1}, got {array.min()}..{array.max()}")
    return np.ascontiguousarray(array, np.int64)


def check_field_names(fields: Mapping[str, Any], expected: Sequence[str]) -> None:
    """Raises ValueError unless a saved state has exactly the expected fields."""
    if set(fields) != set(expected):
        missing, unknown = sorted(set(expected) - set(fields)), sorted(set(fields) - set(expected))
        raise ValueError(f"state: expected the fields {tuple(expected)}; missing {missing}, unknown {unknown}")


def copied_like(fields: Mapping[str, Any], models: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Copies of the named arrays. Raises ValueError if a shape or dtype differs from the model's."""
    for name, like in models.items():
        value = fields[name]
        if not isinstance(value, np.ndarray) or value.shape != like.shape or value.dtype != like.dtype:
            got = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ValueError(f"state field {name!r}: expected {like.dtype} {like.shape}, got {got}")
    return {name: np.array(fields[name], order="C") for name in models}


def check_range(name: str, values: NDArray[Any], low: int, high: int | None) -> None:
    """Raises ValueError if a state's field has values outside low..high; None: no upper limit."""
    if values.min(initial=low) < low or (high is not None and values.max(initial=low) > high):
        limits = f"{low}..{high}" if high is not None else f"at least {low}"
        raise ValueError(f"state field {name!r}: expected {limits}, got {values.min()}..{values.max()}")
