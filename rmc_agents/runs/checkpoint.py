"""Checkpoints: one file each, written atomically, with a checksum, and unable to carry code.

A checkpoint is a tree of dicts and lists with tensors, NumPy arrays and plain values as leaves. It is stored as one
safetensors file: the tensors as tensors, the tree as JSON in the file's metadata, with a SHA-256 over both and the
version, because neither safetensors nor torch detects a flipped bit.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rmc_agents import __version__
from rmc_agents.files import write_atomically

if TYPE_CHECKING:
    import torch

FORMATS = "rmc-agents-checkpoint-"
FORMAT = f"{FORMATS}1"
FOLDER = "checkpoints"
SUFFIX = ".safetensors"
PROGRAMS = {"onnx": ".onnx", "torch": ".pt2"}
"""Suffixes of agents that were exported for other runtimes, by format."""
UNREADABLE = ".unreadable"
MAX_HEADER = 100_000_000  # bytes, the limit of safetensors
MAX_PROBLEM_LENGTH = 300  # characters of another library's error message; torch's can be a page long
_NAME = re.compile(r"update-\d+")

Opened = TypeVar("Opened")
logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or not from this project; the message is for the user."""


def save(path: Path, tree: dict[str, Any]) -> None:
    """Write the tree to `path` atomically: after a crash the file is either the old one or the new one.

    Raises:
      OSError: if the disk is full or the folder cannot be written to; nothing is left behind.
      TypeError: for a key that is not a string, or a leaf that is not a tensor, array or plain value.
    """
    write_atomically(path, to_bytes(tree))


def to_bytes(tree: dict[str, Any]) -> bytes:
    """The contents of a checkpoint's file. Raises TypeError as `save` does."""
    from safetensors.torch import save as to_safetensors

    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_take_tensors(tree, "", tensors), allow_nan=True)
    metadata = {"format": FORMAT, "version": __version__, "tree": text, "sha256": _digest(__version__ + text, tensors)}
    return to_safetensors(tensors, metadata)


def load(path: Path) -> dict[str, Any]:
    """The tree that was saved, tensors on the CPU.

    Raises:
      CheckpointError: if the file is missing, damaged, or not a checkpoint of this project.
    """
    with opening(path):
        check_regular(path)
        return from_bytes(path.read_bytes(), str(path))


def check_header(path: Path) -> None:
    """Check quickly, without loading the tensors, that a file is a checkpoint of this version.

    Raises:
      CheckpointError: if it is not, or is missing.
    """
    with opening(path):
        check_regular(path)
        with path.open("rb") as file:
            length = file.read(8)
            _check_format(_metadata(length + file.read(min(int.from_bytes(length, "little"), MAX_HEADER))), str(path))


def check_regular(path: Path) -> None:
    """Raises CheckpointError unless it is a regular file: reading a pipe or a device can hang."""
    if not path.exists():
        raise CheckpointError(f"there is no checkpoint {path}")
    if not path.is_file():
        raise CheckpointError(f"{path} is not a checkpoint: expected a regular file")
    if path.suffix in PROGRAMS.values():
        expected = f"expected a run, a checkpoint or a {SUFFIX} file"
        raise CheckpointError(f"{path} is a program for other runtimes: {expected}")


@contextmanager
def opening(source: Path | str, passing: type[Exception] = CheckpointError) -> Iterator[None]:
    """Context that turns any error, from contents that can be anything, into a CheckpointError that names the source.

    Except for failures of the disk, lack of memory and exceptions of type `passing`, which have other causes.
    """
    try:
        yield
    except (CheckpointError, OSError, MemoryError, passing):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # by name, because torch may not have been imported
            raise
        problem = " ".join(str(error).split())[:MAX_PROBLEM_LENGTH] or type(error).__name__
        what = "is damaged or not a checkpoint of this version, or its core or encoder has changed"
        raise CheckpointError(f"{source} {what}: {problem}") from error


def from_bytes(content: bytes, source: str) -> dict[str, Any]:
    """The inverse of `to_bytes`, with tensors on the CPU.

    Raises:
      CheckpointError: if it is damaged or not from this project; the message names the source.
    """
    with opening(source):
        metadata = _metadata(content)
        _check_format(metadata, source)
        from safetensors.torch import load as from_safetensors  # imports torch, so only when needed

        tensors = from_safetensors(content)
        text, version = metadata.get("tree", ""), metadata.get("version", "")
        sealed = version + text, text  # older files seal only the text
        if not any(metadata.get("sha256") == _digest(each, tensors) for each in sealed):
            raise CheckpointError(
                f"{source} is damaged: its contents do not match its checksum; use another checkpoint"
            )
        tree = _put_tensors(json.loads(text), tensors)
        if not isinstance(tree, dict):
            raise TypeError(f"expected a dict, got a {type(tree).__name__}")
        return tree


def _metadata(content: bytes) -> dict[str, str]:
    """The metadata in safetensors' JSON header, which follows eight bytes with its length."""
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except ValueError:
        raise ValueError("expected the contents of a .safetensors file") from None
    metadata: dict[str, str] = header.get("__metadata__", {})
    return metadata


def _check_format(metadata: dict[str, str], source: str) -> None:
    found = metadata.get("format", "")
    if found == FORMAT:
        return
    if not found.startswith(FORMATS):
        raise CheckpointError(f"{source} is not a checkpoint of rmc-agents (expected format {FORMAT})")
    made_by = metadata.get("version", "unknown")
    raise CheckpointError(
        f"{source} is a checkpoint of another version of rmc-agents: made by version {made_by} in format "
        f"{found.removeprefix(FORMATS)}; version {__version__} reads format {FORMAT.removeprefix(FORMATS)}"
    )


def write_numbered(run_dir: Path, update: int, content: bytes, keep: int, suffix: str = SUFFIX) -> Path:
    """Write a run's checkpoint of an update atomically, then delete all but the newest `keep`.

    A resumed run has set the damaged ones aside (`rename_unreadable`), so none of them counts.
    """
    path = run_dir / FOLDER / f"update-{update:09d}{suffix}"
    path.parent.mkdir(exist_ok=True)  # without parents: a missing run folder was deleted, or the current folder changed
    write_atomically(path, content)
    interrupted = path.parent.glob(".update-*")  # temporary files of a process that was killed
    for other in [*list(numbered(run_dir, suffix))[keep:], *interrupted]:
        if other != path and other.is_file():
            other.unlink(missing_ok=True)
    return path


def is_saved(run_dir: Path, update: int) -> bool:
    """Whether a run has a checkpoint of an update."""
    found = (run_dir / FOLDER).glob(f"update-{update:09d}.*")
    return any(not path.name.endswith(UNREADABLE) for path in found)


def find(path: Path, open_one: Callable[[Path], Opened], suffix: str = SUFFIX) -> Opened:
    """Open the checkpoint at `path` with `open_one`: the file itself, or the newest valid one of a run's folder.

    If `open_one` raises CheckpointError for a run's checkpoint, the next older one is tried, with a warning.

    Raises:
      CheckpointError: if none is valid; the message says what is wrong with the newest.
    """
    if not path.is_dir():
        return open_one(path)
    problems: list[str] = []
    for candidate in numbered(path, suffix):
        try:
            opened = open_one(candidate)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            logger.warning("skipped: %s", problem)
        return opened
    if problems:
        raise CheckpointError(f"{path} holds no valid checkpoint; {problems[0]}")
    expected = path / FOLDER / f"update-*{suffix}"
    raise CheckpointError(f"{path} holds no checkpoint (expected {expected}){nearby_run(path)}")


def nearby_run(path: Path) -> str:
    """The end of a message about a path that is no run's folder: a run that it lies in or holds; '' if none is near."""
    if not path.is_dir():
        return ""
    inside = sorted((each for each in path.iterdir() if each.is_dir()), key=_modified, reverse=True)
    outside = path.parent if path.name not in ("", "..") else path.absolute().parent
    near = (each for each in (outside, *inside) if any(True for _ in (each / FOLDER).glob("update-*.*")))
    found = next(near, None)
    return f"; did you mean {found}?" if found else ""


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # it was temporary
        return 0.0


def numbered(run_dir: Path, suffix: str = SUFFIX) -> Iterator[Path]:
    """A run's checkpoints, newest first."""
    found = (run_dir / FOLDER).glob(f"update-*{suffix}")
    return iter(sorted((path for path in found if _NAME.fullmatch(path.stem) and path.is_file()), reverse=True))


def rename_unreadable(path: Path) -> list[Path]:
    """Rename the unreadable checkpoints that are newer than the one a run continues from; returns their new paths.

    Otherwise they would be kept in place of valid ones.
    """
    newer = [other for other in numbered(path.parent.parent, path.suffix) if other.name > path.name]
    return [other.rename(other.with_name(other.name + UNREADABLE)) for other in newer]


def _digest(text: str, tensors: "dict[str, torch.Tensor]") -> str:
    import torch

    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # an empty tensor may have stride 0, which `view` rejects
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


MARKS = ("tensor", "array", "dict")
"""A dict with one of these as its only key stands for a tensor, an array, or a dict with such a key."""


def _take_tensors(tree: Any, name: str, tensors: "dict[str, torch.Tensor]") -> Any:
    """The tree with every tensor and array moved to `tensors`, under the name of its path.

    The parts of a path are separated by slashes; a slash inside a key is written ~1, as in JSON pointers.
    """
    import torch

    if isinstance(tree, dict):
        if other := [key for key in tree if not isinstance(key, str)]:
            raise TypeError(f"a checkpoint holds dicts with string keys; {name} has the key {other[0]!r}")
        taken = {key: _take_tensors(value, f"{name}/{_escaped(key)}", tensors) for key, value in tree.items()}
        return {"dict": taken} if len(tree) == 1 and not tree.keys().isdisjoint(MARKS) else taken
    if isinstance(tree, list | tuple):
        return [_take_tensors(value, f"{name}/{i}", tensors) for i, value in enumerate(tree)]
    if isinstance(tree, torch.Tensor):
        tensors[name] = tree.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(tree, np.ndarray):
        tensors[name] = torch.from_numpy(np.ascontiguousarray(tree).reshape(tree.shape).copy())
        return {"array": name}
    if tree is None or isinstance(tree, str | bool | int | float):
        return tree
    raise TypeError(f"a checkpoint holds tensors, arrays and plain values; {name} is a {type(tree).__name__}")


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _put_tensors(tree: Any, tensors: "dict[str, torch.Tensor]") -> Any:
    """Put the tensors back into the tree, each once: a file that uses one twice raises KeyError."""
    if isinstance(tree, list):
        return [_put_tensors(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"tensor"}:
        return tensors.pop(tree["tensor"])
    if tree.keys() == {"array"}:
        return tensors.pop(tree["array"]).numpy()
    if tree.keys() == {"dict"}:
        tree = tree["dict"]
    return {key: _put_tensors(value, tensors) for key, value in tree.items()}
