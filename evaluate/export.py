"""rmc-export: one small file that plays, out of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console

from rmc_agents import __version__, command_line, plugins
from rmc_agents.evaluate.statistics import EVALUATION_SEED, MAX_STEPS, cut_note
from rmc_agents.pretrained import SUFFIX

from .cli import check_writable, find

DESCRIPTION = """Evaluate a saved agent and write it, without what only training needs, to one file.

The file holds settings, weights and how well the agent did. rmc-evaluate and rmc-watch open it as they open a run.

  rmc-export runs/lstm lstm.safetensors"""


@dataclass(frozen=True)
class Arguments:
    """What to export, and where to."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    """A run's folder (its newest valid checkpoint is taken), a checkpoint, or a pretrained policy's name."""
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT.safetensors")]
    """The file to write."""
    episodes: int = 200
    """Whole episodes of the evaluation; episode i begins from seed + i."""
    seed: int = EVALUATION_SEED
    """Seeds environments and the draws of actions."""
    max_steps: int = MAX_STEPS
    """An episode is cut after so many steps, and counts with the return it has reached."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is a GPU that works, else cpu."""
    imports: command_line.Imports = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-export", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = command_line.parse(Arguments, argv, "rmc-export", DESCRIPTION)
    _check(arguments)
    path = find(arguments.run, None, trust=True)  # an archive is refused below, unopened
    plugins.load(arguments.imports)

    import torch

    from rmc_agents.evaluate.episodes import check_fits, evaluate
    from rmc_agents.runs.saved import Provenance, load_agent, pick_device, save_agent, saved_env

    torch.set_num_threads(1)  # see docs/decisions/threads.md
    device = pick_device(arguments.device)
    saved = load_agent(path, device)
    if arguments.out.exists() and arguments.out.samefile(saved.path):
        raise ValueError(f"{arguments.out} is what would be exported: expected another file to write to")
    env = saved_env(saved)
    check_fits(saved.spec, env)

    console = Console()
    with console.status(f"playing {arguments.episodes} episodes of {saved.config.env.env}"):
        result = evaluate(saved.agent, env, arguments.episodes, arguments.seed, device, max_steps=arguments.max_steps)
    if note := cut_note(result):
        console.print(f"{note} (--max-steps)", highlight=False, markup=False, soft_wrap=True)
    provenance = Provenance(__version__, result["mean_return"], result["ci95"], arguments.episodes, arguments.seed)
    save_agent(arguments.out, saved, provenance)
    size = arguments.out.stat().st_size
    console.print(f"{arguments.out} ({size / 1e6:.2f} MB): {provenance}", highlight=False, markup=False, soft_wrap=True)
    return 0


def _check(arguments: Arguments) -> None:
    """Refuse before anything is played what cannot end well."""
    if arguments.episodes < 1:
        raise ValueError(f"--episodes: expected at least 1, got {arguments.episodes}")
    if arguments.seed < 0:
        raise ValueError(f"--seed: expected at least 0, got {arguments.seed}")
    if arguments.max_steps < 1:
        raise ValueError(f"--max-steps: expected at least 1, got {arguments.max_steps}")
    if arguments.out.suffix != SUFFIX:
        raise ValueError(f"{arguments.out}: expected a file name that ends in {SUFFIX}")
    check_writable(arguments.out)
