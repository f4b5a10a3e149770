"""Pretrained policies, one file each, made by rmc-export; usable wherever a checkpoint is."""

from os import PathLike
from pathlib import Path

from rmc_agents.formatting import did_you_mean

FOLDER = Path(__file__).parent
SUFFIX = ".safetensors"


def names() -> list[str]:
    """The policies' names."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def listed() -> str:
    """The policies' names as text."""
    return ", ".join(names()) or "none"


def find(name: str) -> Path:
    """The file of a policy.

    Raises:
      ValueError: for an unknown name; the message suggests the nearest or lists all.
    """
    if name not in names():
        hint = did_you_mean(name, names(), f"available: {listed()}")
        raise ValueError(f"there is no pretrained policy {name!r}; {hint}")
    return FOLDER / f"{name}{SUFFIX}"


def choose(run: str | PathLike[str] | None, name: str | None = None) -> Path:
    """The file that a command opens: the path of its argument RUN, or the policy of its flag --pretrained.

    If the path RUN does not exist, it may be a policy's name.

    Raises:
      ValueError: if both or neither are given, or there is no such policy.
    """
    if run is not None and name is None:
        path = Path(run)
        if path.exists():
            return path
        if str(path) in names():
            return find(str(path))
        hint = did_you_mean(path, names(), f"available: {listed()}")
        raise ValueError(f"there is no checkpoint {path}, nor a pretrained policy of that name; {hint}")
    if name is not None and run is None:
        return find(name)
    got = "neither" if run is None else "both"
    raise ValueError(f"expected a RUN or --pretrained NAME, got {got} (pretrained policies: {listed()})")
