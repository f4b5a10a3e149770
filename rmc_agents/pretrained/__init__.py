"""Pretrained policies, one file each, made by rmc-export; usable wherever a checkpoint is."""

import difflib
from os import PathLike
from pathlib import Path

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
      ValueError: for an unknown name; the message suggests the nearest and lists all.
    """
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no pretrained policy {name!r}{hint} (available: {listed()})")
    return FOLDER / f"{name}{SUFFIX}"


def check(source: str) -> None:
    """Raises ValueError for --init-from, unless `source` is an existing path or a policy's name."""
    if not Path(source).exists() and source not in names():
        raise ValueError(f"--init-from: expected a run, a file or a pretrained policy ({listed()}), got {source!r}")


def choose(run: str | PathLike[str] | None, name: str | None = None) -> Path:
    """The file that a command opens: the path of its argument RUN, or the policy of its flag --pretrained.

    If the path RUN does not exist, it may be a policy's name.

    Raises:
      ValueError: if both or neither are given, or there is no such policy.
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
