"""Reading `summary.json` of runs."""

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from rmc_agents.files import read_regular
from rmc_agents.runs.folder import SUMMARY

from .statistics import Statistics

Kind = TypeVar("Kind")
Count = Annotated[int, Field(gt=0, lt=2**63)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Statistics):
    """Statistics of a run's evaluation, with those of uniform random play."""

    random_mean_return: float
    random_success_rate: float | None
    chance: float | None = None


@dataclass(frozen=True)
class Summary:
    """A completed run and its evaluation."""

    frames: Count
    seconds: Seconds
    frames_per_second: float
    evaluation: Evaluation | None
    """None: not evaluated, or not yet."""
    parameters: Count | None = None
    """The agent's parameters; None in older runs."""


def read_summary(folder: str | PathLike[str]) -> Summary:
    """The summary of the run in `folder`. Raises ValueError if there is none or it is damaged."""
    return read_json(Summary, Path(folder) / SUMMARY, "summary of rmc-train")


def read_evaluated(folder: str | PathLike[str]) -> tuple[Summary, Evaluation] | None:
    """The summary of a run, with its evaluation; None if the run is not finished or evaluated, or the file damaged."""
    try:
        summary = read_summary(folder)
    except ValueError:
        return None
    return None if summary.evaluation is None else (summary, summary.evaluation)


def read_json(kind: type[Kind], path: str | PathLike[str], what: str) -> Kind:
    """The content of a JSON file.

    Args:
      kind: its type, for pydantic.
      path: the file.
      what: the expected content, for the error message.

    Raises:
      ValueError: if the file is missing or holds anything else; one line with the file and the place in it.
    """
    try:
        return TypeAdapter(kind).validate_json(read_regular(path))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "content"
        raise ValueError(f"{path} is not a {what}: {place}: {problem['msg']}") from None
