"""rmc-watch: a video of a saved agent at work."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from rmc_agents import command_line, pretrained
from rmc_agents.evaluate.episodes import EVALUATION_SEED, check_fits
from rmc_agents.evaluate.panels import plain_number
from rmc_agents.runs.checkpoint import FOLDER
from rmc_agents.runs.saved import load_policy, pick_device, saved_env_name

from . import video
from .cli import Pretrained, Run, Trust, check_writable

DESCRIPTION = """Play episodes with a saved agent and record a video of what it sees, expects and does,
and of where the memory slots of an rmc look.

  rmc-watch runs/lstm --episodes 3 --out lstm.gif"""


@dataclass(frozen=True)
class Arguments:
    """What to record, and where."""

    run: Run = None
    """A run's folder (its newest valid checkpoint is taken), a checkpoint, or a pretrained policy's name."""
    pretrained: Pretrained = None
    trust: Trust = False
    episodes: int = 1
    """Episodes, one after the other; episode i begins from seed + i."""
    out: Path | None = None
    """The file, .mp4 or .gif; None: in the run's folder under videos/, or beside the checkpoint, or here for
    --pretrained."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is a GPU that works, else cpu."""
    seed: int = EVALUATION_SEED
    """Seeds the environment and the draws of actions."""
    deterministic: bool = False
    """Take the likeliest action instead of drawing one."""
    fps: int = video.FRAMES_PER_SECOND
    """Steps shown per second."""
    max_steps: int = video.MOST_STEPS
    """An episode is cut after so many steps."""
    env: str | None = None
    """Another environment than the one trained on, with the same observations and actions."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-watch", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = command_line.parse(Arguments, argv, "rmc-watch", DESCRIPTION)
    if arguments.seed < 0:
        raise ValueError(f"--seed: expected at least 0, got {arguments.seed}")
    if arguments.out is not None:
        video.check_target(arguments.out)
        check_writable(arguments.out)
    command_line.find_modules_here(arguments.env)
    torch.set_num_threads(1)  # see docs/decisions/threads.md
    device = pick_device(arguments.device)
    saved = load_policy(pretrained.choose(arguments.run, arguments.pretrained), device, arguments.trust)
    env_name = arguments.env or saved_env_name(saved, arguments.trust)
    check_fits(saved.spec, env_name)

    console = Console()
    with console.status(f"recording {env_name}"):
        recorded = video.record(
            saved.agent,
            env_name,
            arguments.out or _default_path(saved.path, arguments.seed),
            episodes=arguments.episodes,
            seed=arguments.seed,
            device=device,
            deterministic=arguments.deterministic,
            title=f"{env_name} · {saved.config.core.core} · {saved.frames:,} frames",
            max_steps=arguments.max_steps,
            fps=arguments.fps,
            reward_scale=saved.config.train.reward_scale,
        )
    for i, (episode_return, is_cut) in enumerate(zip(recorded.returns, recorded.cut, strict=True)):
        note = f" when cut after {arguments.max_steps} steps (--max-steps)" if is_cut else ""
        console.print(
            f"seed {arguments.seed + i}: return {plain_number(episode_return)}{note}", highlight=False, markup=False
        )
    console.print(
        f"{recorded.path} ({recorded.frames / arguments.fps:.0f} s)", highlight=False, markup=False, soft_wrap=True
    )
    return 0


def _default_path(path: Path, seed: int) -> Path:
    """`RUN/videos/CHECKPOINT-seedN.mp4`; beside a checkpoint that lies in no run; here for a pretrained policy."""
    folder = path.parent
    if folder == pretrained.FOLDER:
        folder = Path()
    elif folder.name == FOLDER:
        folder = folder.parent / "videos"
        folder.mkdir(exist_ok=True)
    return folder / f"{path.stem}-seed{seed}.mp4"
