"""The page: its own markup, style and code, and the episodes as data, in one file that needs nothing else."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from rmc_agents.runs.checkpoint import write_atomically

SCRIPTS = ("data.js", "pictures.js", "plots.js", "episode.js", "player.js")
LARGEST_PAGE = 3_000_000


def write(path: Path, runs: Sequence[Mapping[str, Any]]) -> int:
    """Write episodes of `recorder.record` as one page; returns its size in bytes.

    Raises:
      ValueError: for a page above `LARGEST_PAGE`.
      OSError: if it cannot be written.
    """
    page = build(runs).encode()
    if len(page) > LARGEST_PAGE:
        raise ValueError(
            f"{path}: expected a page of at most {LARGEST_PAGE / 1e6:.0f} MB, got {len(page) / 1e6:.1f}; "
            "take fewer steps (--max-steps) or fewer runs"
        )
    write_atomically(path, page)
    return len(page)


def build(runs: Sequence[Mapping[str, Any]]) -> str:
    """The page as text.

    Texts of environments and runs are in the data alone, which the page's code puts into text nodes. The page's policy
    lets no other script run than its own, known by its hash, and nothing be fetched.
    """
    folder = files(__package__)
    style = folder.joinpath("page.css").read_text("utf-8")
    script = "".join(folder.joinpath(name).read_text("utf-8") for name in SCRIPTS)
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    page = folder.joinpath("page.html").read_text("utf-8")
    # The data come last: nothing in them is taken for a place to fill.
    for place, text in {"POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": as_data({"runs": runs})}.items():
        page = page.replace(f"@@{place}@@", text)
    return page


def as_data(values: Any) -> str:
    """JSON that ends no script element and opens no comment, whatever the texts in it."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
