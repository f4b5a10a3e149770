"""Numbers as text, and suggestions for mistyped names."""

import difflib
import math
from collections.abc import Iterable, Sequence


def did_you_mean(name: object, known: Iterable[str], otherwise: str) -> str:
    """Asks for the most similar known name, in whatever case; `otherwise` if none is similar."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]!r}?" if near else otherwise


def agent_title(env: str, core: str, frames: int) -> str:
    """An agent in titles: its environment, its core and the frames of its training."""
    return f"{env} · {core} · {frames:,} frames"


def decimals(*scores: float) -> int:
    """Decimals that give the largest score three significant digits; at least one."""
    largest = max((abs(score) for score in scores if math.isfinite(score)), default=0.0)
    return max(1, 2 - math.floor(math.log10(largest))) if largest else 1


def counted(number: int, what: str) -> str:
    """'1 lane', '2 lanes'."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def as_printable(text: str) -> str:
    """The text on one line, without control characters: an environment's arguments may have any."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def plain_number(value: float) -> str:
    """At most two decimals, without trailing zeros; of small numbers two digits."""
    if 1e-6 < abs(value) < 0.01:  # less is rounding
        return f"{value:.2g}"
    return f"{round(value, 2) + 0.0:,.2f}".rstrip("0").rstrip(".")


def significant(values: Iterable[float]) -> list[float]:
    """Numbers with six significant digits, for JSON."""
    return [float(f"{value:.6g}") for value in values]


def with_interval(mean: float, interval: Sequence[float] | None, digits: int | None = None) -> str:
    """'MEAN (LOW to HIGH)', or only the mean; the number of digits defaults to `decimals`."""
    digits = decimals(mean) if digits is None else digits
    if interval is None:
        return f"{mean:.{digits}f}"
    return f"{mean:.{digits}f} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"
