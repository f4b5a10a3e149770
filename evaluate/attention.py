"""What memory slots attend to before and after a cue, averaged over many episodes (Santoro et al., 2018, figure 3)."""

import textwrap
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rmc_agents.agent import ActorCritic
from rmc_agents.collect import choose
from rmc_agents.cores.inspection import is_window
from rmc_agents.envs.making import EnvFactory, make_env, name_of
from rmc_agents.stream import Lanes

from .episodes import PlaySettings, episodes_to_play, lanes_for
from .plot import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CUE = "cue"
"""The key of infos that marks the decisive observation of an episode."""
MAX_HEADS, MOST_TICKS = 8, 10
Floats = NDArray[np.float64]


class MeanAttention(NamedTuple):
    """Mean attention of the core's last block, by head: from N slots to N slots and, last, the input.

    Attributes:
      phases: before, at and after the cue, each `[heads, N, N+1]`; NaN for a phase without steps.
      steps: S step numbers, relative to the cue.
      on_input: the attention to the input at these steps, `[S, heads, N]`.
      episodes: number of episodes in the means: those with a cue.
    """

    phases: dict[str, Floats]
    steps: NDArray[np.int64]
    on_input: Floats
    episodes: int


@torch.no_grad()
def mean_attention(agent: ActorCritic, env: str | EnvFactory, episodes: int, settings: PlaySettings) -> MeanAttention:
    """Play episodes, each in its own lane, and average the memory's attention. For the arguments see
    `episodes.play`.

    Raises:
      ValueError: for a core without attention, or an environment that reports no cue.
    """
    with closing(make_env(env, 1)) as one:
        lanes = episodes_to_play(one, episodes)
    with closing(make_env(env, lanes)) as made:
        attention, is_cue, playing = _play(agent, lanes_for(agent, made, settings), settings, name_of(env))
    cued = is_cue.any(axis=0)
    if not cued.any():
        raise ValueError(f"environment {name_of(env)!r}: no episode has a cue within {len(is_cue)} steps")
    relative = np.arange(len(is_cue))[:, None] - is_cue.argmax(axis=0)  # [T, B]
    counts = playing & cued
    named = {"before": relative < 0, "at": relative == 0, "after": relative > 0}
    phases = {name: _mean(attention, counts & phase) for name, phase in named.items()}
    steps = np.unique(relative[counts])
    on_input = np.stack([_mean(attention, counts & (relative == step))[..., -1] for step in steps])
    return MeanAttention(phases, steps, on_input, int(cued.sum()))


def _play(
    agent: ActorCritic, lanes: Lanes, settings: PlaySettings, env: str
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Attention `[T, B, heads, N, N+1]`; whether a step shows the cue; whether it is in a lane's first episode."""
    generator = torch.Generator(lanes.device).manual_seed(settings.seed)
    state, playing = agent.initial_state(lanes.num_lanes), np.ones(lanes.num_lanes, bool)
    weights: list[NDArray[np.float32]] = []
    cues, played = [], []
    while playing.any() and len(weights) < settings.max_steps:
        if CUE not in lanes.infos:
            raise ValueError(
                f"environment {env!r}: expected one that marks the decisive observation of an episode in "
                f"infos['{CUE}'] at every step, such as nth-farthest"
            )
        attention = agent.attention(lanes.steps, state)
        if attention is None or is_window(*attention.shape[3:]):
            raise ValueError(f"core {agent.core.class_name()}: expected one whose memory slots attend, such as rmc")
        weights.append(attention[:, -1, :MAX_HEADS].cpu().numpy())
        cues.append(playing & np.asarray(lanes.infos[CUE], bool))
        played.append(playing)
        output, state = agent.step(lanes.steps, state)
        steps = lanes.step(choose(lanes.spec.distribution(output.policy_logits), generator, settings.is_greedy(lanes)))
        playing = playing & ~(steps.terminated | steps.truncated).cpu().numpy()
    return np.stack(weights), np.stack(cues), np.stack(played)


def _mean(attention: Floats, chosen: NDArray[np.bool_]) -> Floats:
    """The mean over the chosen steps `[T, B]`; NaN if there are none."""
    if not chosen.any():
        return np.full(attention.shape[2:], np.nan)
    return attention[chosen].mean(axis=0, dtype=np.float64)


def draw(mean: MeanAttention, title: str) -> "Figure":
    """A row for each head: its mean attention in the three phases, and each slot's attention to the input by step."""
    from matplotlib.figure import Figure

    heads, slots, _ = mean.phases["at"].shape
    figure = Figure(figsize=(12, 0.6 + 2.4 * heads), layout="constrained")
    lines = textwrap.fill(f"{title}, {mean.episodes:,} episodes", 100, break_on_hyphens=False)
    figure.suptitle(plain(lines), fontweight="bold")
    shown = range(0, slots, -(-slots // MOST_TICKS))
    grid = figure.subplots(heads, 4, squeeze=False, width_ratios=[1, 1, 1, 1.6])
    for head, (*matrices, along) in enumerate(grid):
        for axes, (name, phase) in zip(matrices, mean.phases.items(), strict=True):
            image = axes.imshow(phase[head], vmin=0, vmax=1, cmap="magma")
            axes.set(xticks=[*shown, slots], yticks=shown)
            axes.set_xticklabels([*(str(1 + slot) for slot in shown), "input"], fontsize="x-small")
            axes.set_yticklabels([str(1 + slot) for slot in shown], fontsize="x-small")
            axes.set_title(f"{name} the cue" if head == 0 else "")
        matrices[0].set_ylabel(f"head {head + 1}: slot")
        for slot in range(slots):
            along.plot(mean.steps, mean.on_input[:, head, slot], marker=".", label=f"slot {slot + 1}")
        along.axvline(0, color="0.6", linestyle="--")
        along.set(ylim=(0, 1), title="weight on the input" if head == 0 else "")
    grid[-1][0].set_xlabel("looks at")
    grid[-1][-1].set_xlabel("steps since the cue")
    if slots <= 16:
        grid[0][-1].legend(fontsize="xx-small", ncols=2)
    figure.colorbar(image, ax=grid[:, 2], label="attention")
    return figure
