"""One episode of each of several saved agents, for one page."""

from collections.abc import Sequence
from typing import Any

from rmc_agents.envs.making import name_of
from rmc_agents.evaluate.episodes import PlaySettings
from rmc_agents.evaluate.opening import Opened
from rmc_agents.evaluate.video.panels import plain_number
from rmc_agents.runs.folder import run_of

from .recorder import record


def record_all(
    opened: Sequence[Opened], *, seed: int, deterministic: bool, max_steps: int, window: int
) -> list[dict[str, Any]]:
    """Play the same seed with every agent.

    Raises:
      ValueError: for agents of different environments, or an environment whose `render` fails.
    """
    names = list(dict.fromkeys(name_of(one.env) for one in opened))
    if len(names) > 1 or not all(opened[0].saved.spec.fits(one.saved.spec) for one in opened):
        raise ValueError(
            f"expected runs of one environment, got {', '.join(names)}; --env NAME plays all of them in the same one"
        )
    return [
        record(
            one.saved.agent,
            one.env,
            PlaySettings.of(one.saved, seed, deterministic, max_steps),
            name=run.name if (run := run_of(one.saved.path)) else one.saved.path.stem,
            facts=f"{one.title} · seed {seed}",
            window=window,
            reward_scale=one.saved.config.train.reward_scale,
        )
        for one in opened
    ]


def summary(run: dict[str, Any]) -> str:
    """A summary of the episode, with the steps at which memory matters most."""
    line = f"{run['name']}: return {plain_number(sum(run['rewards']))} in {run['length']} steps, {run['end']}"
    if run["compared"]:
        reset, recent = run["compared"]
        line += f"; resetting the memory changes the most likely action at {reset['changed']} of them"
        line += f", keeping only the {recent['name'].removesuffix(' only')} at {recent['changed']}"
    if run["peaks"]:
        line += f"; memory matters most at steps {', '.join(map(str, run['peaks']))}"
    return line
