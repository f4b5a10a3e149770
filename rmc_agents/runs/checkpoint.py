"""Checkpoints: one file that is written whole or not at all, checks itself, and cannot carry code.

A checkpoint is a tree of dicts and lists whose leaves are tensors, numpy arrays and plain values. It is stored as one
safetensors file: the tensors as they are, the tree as JSON in the file's metadata, beside a SHA-256 over both, since
neither safetensors nor torch notices a flipped bit.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load as from_safetensors
from safetensors.torch import save as to_safetensors

FORMAT = "rmc-agents-checkpoint-1"
FOLDER = "checkpoints"
SUFFIX = ".safetensors"
_NAME = re.compile(r"update-\d+")


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged or no checkpoint of ours; the message is for the user."""


def save(path: Path, tree: dict[str, Any]) -> None:
    """Write the tree to `path`, atomically: whatever happens, the file is the old one or the new one, whole.

    Raises:
      OSError: if the disk is full or the folder cannot be written to; nothing is left behind.
      TypeError: for a leaf that is neither tensor, array nor plain value.
    """
    write_atomically(path, to_bytes(tree))


def to_bytes(tree: dict[str, Any]) -> bytes:
    """The contents of a checkpoint's file. Raises TypeError as `save` does."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(_take_tensors(tree, "", tensors), allow_nan=True)
    metadata = {"format": FORMAT, "tree": text, "sha256": _digest(text, tensors)}
    return to_safetensors(tensors, metadata)


def load(path: Path) -> dict[str, Any]:
    """The tree that was saved, tensors on the CPU.

    Raises:
      CheckpointError: if the file is missing, damaged, or no checkpoint of this project.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"there is no checkpoint {path}") from None
    except OSError as error:
        raise CheckpointError(f"{path} is damaged or no checkpoint: {error}") from None
    return from_bytes(content, str(path))


def from_bytes(content: bytes, source: str) -> dict[str, Any]:
    """The tree that `to_bytes` was given, tensors on the CPU.

    Raises:
      CheckpointError: if it is damaged or nothing of this project; the message names the source.
    """
    try:
        tensors = from_safetensors(content)
    except (safetensors.SafetensorError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{source} is damaged or no checkpoint: {error}") from None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # which was just found to be sound
    metadata = header.get("__metadata__", {})
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{source} is no checkpoint of rmc-agents (expected format {FORMAT})")
    if metadata.get("sha256") != _digest(metadata.get("tree", ""), tensors):
        raise CheckpointError(f"{source} is damaged: its contents do not match its checksum; use another checkpoint")
    return _put_tensors(json.loads(metadata["tree"]), tensors)


def save_numbered(run_dir: Path, update: int, tree: dict[str, Any], keep: int) -> Path:
    """Save as the checkpoint of an update in a run's folder; see `write_numbered`."""
    return write_numbered(run_dir, update, to_bytes(tree), keep)


def write_numbered(run_dir: Path, update: int, content: bytes, keep: int, suffix: str = SUFFIX) -> Path:
    """Write the checkpoint of an update in a run's folder, atomically, then delete all but the newest `keep`.

    Checkpoints of later updates go too: the run resumed from an earlier one because they were damaged.
    """
    path = run_dir / FOLDER / f"update-{update:09d}{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    found = list(numbered(run_dir, suffix))
    here = found.index(path)
    interrupted = path.parent.glob(".update-*")  # temporary files of a process that was killed
    for other in [*found[:here], *found[here + keep :], *interrupted]:
        other.unlink(missing_ok=True)
    return path


def find_and_load(path: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint a user means by `path`, and its tree: the file itself, or the newest valid one of a run's folder.

    Raises:
      CheckpointError: if there is none.
    """
    if not path.is_dir():
        return path, load(path)
    problem = f"{path} holds no checkpoint (expected {path / FOLDER / 'update-*.safetensors'})"
    for candidate in numbered(path):
        try:
            return candidate, load(candidate)
        except CheckpointError as error:
            problem = f"{path} holds no valid checkpoint; {error}"
    raise CheckpointError(problem)


def numbered(run_dir: Path, suffix: str = SUFFIX) -> Iterator[Path]:
    """A run's checkpoints, newest first."""
    found = [path for path in (run_dir / FOLDER).glob(f"update-*{suffix}") if _NAME.fullmatch(path.stem)]
    return iter(sorted(found, reverse=True))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file by way of a temporary one beside it, flushed to the disk before it takes the name.

    Raises:
      OSError: if it cannot be written; the old file, if any, stays as it was.
    """
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _digest(text: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # the stride of an empty one may be 0, which `view` refuses
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_tensors(tree: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """The tree with every tensor and array moved to `tensors` under its place's name."""
    if isinstance(tree, dict):
        return {key: _take_tensors(value, f"{name}/{key}", tensors) for key, value in tree.items()}
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


def _put_tensors(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, list):
        return [_put_tensors(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"tensor"}:
        return tensors[tree["tensor"]]
    if tree.keys() == {"array"}:
        return tensors[tree["array"]].numpy()
    return {key: _put_tensors(value, tensors) for key, value in tree.items()}
