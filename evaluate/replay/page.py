"""The page: markup, style, code and the episodes' data in one self-contained file."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from rmc_agents.files import write_atomically

from .frames import REELS, SMALLER_SIDES, shrunk

SCRIPTS = ("data.js", "pictures.js", "plots.js", "episode.js", "player.js")
LIVE_SCRIPT = "live.js"
MAX_PAGE = 3_000_000


class Page(NamedTuple):
    """A page within the size limit."""

    content: bytes
    frame_side: int | None  # side in pixels that frames were reduced to; None: not reduced

    def __str__(self) -> str:
        size = f"{len(self.content) / 1e6:.2f} MB"
        note = f", frames reduced to {self.frame_side} pixels to keep it below {MAX_PAGE / 1e6:.0f} MB"
        return size + (note if self.frame_side else "")


def write(path: Path, runs: Sequence[Mapping[str, Any]]) -> Page:
    """Write episodes of `recorder.record` as one page.

    Raises:
      ValueError: as `fitted` does.
      OSError: if it cannot be written.
    """
    page = fitted(runs)
    write_atomically(path, page.content)
    return page


def fitted(runs: Sequence[Mapping[str, Any]], version: str = "") -> Page:
    """The page, with reduced frames if it would exceed `MAX_PAGE`; arguments as in `build`.

    Raises:
      ValueError: if it is still too large.
    """
    page = Page(build(runs, version).encode(), None)
    if len(page.content) > MAX_PAGE and any("frames" in (run[reel] or ()) for run in runs for reel in REELS):
        for side in SMALLER_SIDES:
            page = Page(build([shrunk(run, side) for run in runs], version).encode(), side)
            if len(page.content) <= MAX_PAGE:
                break
    if len(page.content) > MAX_PAGE:
        fitting = max(1, round(0.9 * MAX_PAGE / len(page.content) * max(run["length"] for run in runs)))
        raise ValueError(
            f"expected a page of at most {MAX_PAGE / 1e6:.0f} MB, got {len(page.content) / 1e6:.1f}; "
            f"take fewer runs, or fewer steps: --max-steps {fitting}"
        )
    return page


def build(runs: Sequence[Mapping[str, Any]], version: str = "") -> str:
    """The page as text; with a version, it polls the address `version` for a newer one and loads that.

    Texts of environments and runs are only in the data, which the page's code puts into text nodes. The page's content
    security policy allows only its own script, by its hash, and no requests.
    """
    folder = files(__package__)
    style = folder.joinpath("page.css").read_text("utf-8")
    script = "".join(
        folder.joinpath(name).read_text("utf-8") for name in (*SCRIPTS, *([LIVE_SCRIPT] if version else []))
    )
    policy = f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'"
    policy += "; connect-src 'self'" if version else ""
    page = folder.joinpath("page.html").read_text("utf-8")
    data = as_data({"runs": runs, "version": version})
    # The data come last, so that nothing in them is mistaken for a placeholder.
    for place, text in {"POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": data}.items():
        page = page.replace(f"@@{place}@@", text)
    return page


def as_data(values: Any) -> str:
    """JSON that cannot end a script element or open a comment, whatever texts it contains."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
