"""Policies that come with the project, one file each. rmc-export makes them; they play wherever a checkpoint does."""

import difflib
from os import PathLike
from pathlib import Path

FOLDER = Path(__file__).parent
SUFFIX = ".safetensors"


def names() -> list[str]:
    """The policies' names."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def listed() -> str:
    """The policies' names, in words."""
    return ", ".join(names()) or "none"


def find(name: str) -> Path:
    """The file of a policy.

    Raises:
      ValueError: if there is none of that name; the message has the nearest and all that there are.
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no pretrained policy {name!r}{hint} (there are: {listed()})")
    return FOLDER / f"{name}{SUFFIX}"


def check(source: str, flag: str) -> None:
    """Raises ValueError, beginning with the flag, if that is neither a path nor a policy's name."""
    if not Path(source).exists() and source not in names():
        raise ValueError(f"{flag}: expected a run, a file or a pretrained policy ({listed()}), got {source!r}")


def choose(run: str | PathLike[str] | None, name: str | None = None) -> Path:
    """What a command opens: the path of its argument RUN, or the policy of its flag --pretrained.

    A RUN that does not exist may be a policy's name.

    Raises:
      ValueError: if both are given or neither is, or there is no such policy.
    """
    if run is not None and name is None:
        path = Path(run)
        is_name = not path.exists() and difflib.get_close_matches(str(run), names(), n=1, cutoff=0.8)
        if not is_name and not path.exists():
            raise ValueError(f"there is no checkpoint {run}, nor a pretrained policy of that name ({listed()})")
        return find(str(run)) if is_name else path
    if name is not None and run is None:
        return find(name)
    got = "neither" if run is None else "both"
    raise ValueError(f"expected a RUN or --pretrained NAME, got {got} (pretrained policies: {listed()})")
