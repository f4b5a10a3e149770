"""From saved agents to a page with an episode of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmc_agents.envs.making import name_of
from rmc_agents.evaluate.cli import Opened
from rmc_agents.evaluate.panels import plain_number
from rmc_agents.runs.checkpoint import FOLDER

from . import page
from .recorder import record


def write(
    opened: Sequence[Opened], path: Path, *, seed: int, deterministic: bool, max_steps: int, window: int
) -> list[str]:
    """Play the same seed with every agent and write the page; returns what there is to say of it, line by line.

    Raises:
      ValueError: for agents of different environments, one that draws no pictures, and a page that is too large.
    """
    names = list(dict.fromkeys(name_of(one.env) for one in opened))
    if len(names) > 1 or any(one.saved.spec != opened[0].saved.spec for one in opened):
        raise ValueError(
            f"expected runs of one environment, got {', '.join(names)}; --env NAME plays all of them in the same one"
        )
    runs = [
        record(
            one.saved.agent,
            one.env,
            name=_name(one.saved.path),
            facts=f"{name_of(one.env)} · {one.saved.config.core.core} · {one.saved.frames:,} frames · seed {seed}",
            seed=seed,
            device=one.device,
            deterministic=deterministic,
            max_steps=max_steps,
            window=window,
            reward_scale=one.saved.config.train.reward_scale,
        )
        for one in opened
    ]
    size = page.write(path, runs)
    return [*map(_summary, runs), f"{path} ({size / 1e6:.1f} MB)"]


def _name(path: Path) -> str:
    return path.parent.parent.name if path.parent.name == FOLDER else path.stem


def _summary(run: dict[str, Any]) -> str:
    """How the episode went, and where its memory mattered most."""
    line = f"{run['name']}: return {plain_number(sum(run['rewards']))} in {run['length']} steps, {run['end']}"
    if run["compared"]:
        line += f"; without memory another likeliest action at {run['compared'][0]['changed']} of them"
    if run["peaks"]:
        line += f"; memory matters most at steps {', '.join(map(str, run['peaks']))}"
    return line
