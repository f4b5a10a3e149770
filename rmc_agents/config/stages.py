"""The stages of a curriculum, as settings."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, ConfigDict, JsonValue, TypeAdapter, ValidationError

MAX_NUMBER = 10**15  # products of settings must stay below float32's limit, 3.4e38
MEASURES = ("accuracy", "success", "return")


def _plain(value: Any) -> Any:
    """Values as in a YAML file: numpy's and torch's numbers as Python's, tuples as lists."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _plain_if_finite(value: Any) -> Any:
    try:
        return _plain(value)
    except RecursionError:
        return value  # it contains itself, which pydantic reports


KeywordArguments = Annotated[dict[str, JsonValue], BeforeValidator(_plain_if_finite)]
"""Arguments of a custom core, encoder or environment, as in a YAML file."""
_ARGUMENTS = TypeAdapter(KeywordArguments, config=ConfigDict(allow_inf_nan=False))
Stages = Annotated[tuple[dict[str, Any], ...], BeforeValidator(_plain_if_finite)]
"""The stages of a curriculum, as in a YAML file."""


class Stage(NamedTuple):
    """An easier form of an environment, and the condition for leaving it.

        {"env_kwargs": {"most": 2}, "accuracy": 0.9, "frames": 2_000_000}  # whichever comes first; or one of them

    Attributes:
      env_kwargs: arguments of the environment, which override those of the setting `env_kwargs`.
      measure: accuracy, in supervised learning; success: the share of successful episodes; return: the mean
        return; None: frames alone end the stage.
      threshold: the next stage begins once the measure reaches this value.
      frames: the next stage begins after this many frames of all lanes at the latest.
    """

    env_kwargs: dict[str, Any]
    measure: str | None
    threshold: float
    frames: float

    @classmethod
    def of(cls, setting: Mapping[str, Any], name: str) -> Self:
        """A stage from a mapping. Raises ValueError, which begins with `name`, if the mapping is not a stage."""
        ends = [key for key in setting if key != "env_kwargs"]
        measures = [key for key in ends if key != "frames"]
        if not ends or len(measures) > 1 or not {*measures} <= {*MEASURES}:
            expected = f"env_kwargs and one of {', '.join(MEASURES)}, or frames, or both"
            raise ValueError(f"{name}: expected {expected}, got {', '.join(setting) or 'nothing'}")
        for key in ends:
            _check_threshold(f"{name}: {key}", key, setting[key])
        measure, given = next(iter(measures), None), setting.get("env_kwargs")
        try:
            kwargs = _ARGUMENTS.validate_python(given)
        except ValidationError:
            kwargs = {}
        if not kwargs:
            raise ValueError(f"{name}: env_kwargs: expected arguments of the environment, got {reprlib.repr(given)}")
        threshold = math.inf if measure is None else float(setting[measure])
        return cls(kwargs, measure, threshold, float(setting.get("frames", math.inf)))

    def __str__(self) -> str:
        arguments = " ".join(f"{name}={value}" for name, value in self.env_kwargs.items())
        ends = [] if self.measure is None else [f"{self.measure} {self.threshold:g}"]
        ends += [f"frames {self.frames:,.0f}"] if self.frames < math.inf else []
        return f"{arguments} until {' or '.join(ends)}"


def _check_threshold(name: str, key: str, threshold: Any) -> None:
    """Raises ValueError for a value that a stage's measure or its number of frames cannot have."""
    if isinstance(threshold, bool) or not isinstance(threshold, int | float):
        raise ValueError(f"{name}: expected a number, got {threshold!r}")
    if not abs(threshold) <= MAX_NUMBER:  # not NaN
        raise ValueError(f"{name}: expected a number up to {MAX_NUMBER:g}, got {threshold}")
    highest = 1 if key in ("accuracy", "success") else math.inf
    if key != "return" and not 0 < threshold <= highest:
        limits = "above 0, up to 1" if highest == 1 else "above 0"
        raise ValueError(f"{name}: expected a number {limits}, got {threshold}")


def stages_of(curriculum: Sequence[Mapping[str, Any]]) -> list[Stage]:
    """The stages of a setting `curriculum`. Raises ValueError for an invalid stage."""
    return [Stage.of(setting, f"curriculum: stage {number}") for number, setting in enumerate(curriculum, 1)]
