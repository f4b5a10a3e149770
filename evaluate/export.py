"""rmc-export: one small file that plays, out of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console

from rmc_agents import __version__, command_line, plugins
from rmc_agents.evaluate.statistics import EVALUATION_SEED, MAX_STEPS, cut_note
from rmc_agents.pretrained import SUFFIX
from rmc_agents.runs.checkpoint import write_atomically

from .cli import check_writable, find

if TYPE_CHECKING:
    from rmc_agents.agent import ActorCritic
    from rmc_agents.evaluate.programs import Compared
    from rmc_agents.runs.saved import SavedAgent

DESCRIPTION = """Evaluate a saved agent and write it, without what only training needs, to one file.

The file holds settings, weights and how well the agent did. rmc-evaluate and rmc-watch open it as they open a run. The
formats onnx and torch hold the agent's step as a program that needs nothing of this package; throughout the
evaluation it is checked that it does what the agent does.

  rmc-export runs/lstm lstm.safetensors
  rmc-export runs/lstm --format onnx"""

SUFFIXES = {"safetensors": SUFFIX, "onnx": ".onnx", "torch": ".pt2"}
FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Arguments:
    """What to export, and where to."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    """A run's folder (its newest valid checkpoint is taken), a checkpoint, or a pretrained policy's name."""
    out: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[OUT]")] = None
    """The file to write, with the format's suffix: .safetensors, .onnx or .pt2. Without it: RUN's name, here."""
    format: Literal["safetensors", "onnx", "torch"] = "safetensors"
    """safetensors: what this package opens; onnx: for onnxruntime and others; torch: for torch.export.load."""
    episodes: int = 200
    """Whole episodes of the evaluation; episode i begins from seed + i."""
    seed: int = EVALUATION_SEED
    """Seeds environments and the draws of actions."""
    max_steps: int = MAX_STEPS
    """An episode is cut after so many steps, and counts with the return it has reached."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where there is a GPU that works, else cpu. The formats onnx and torch are made on the CPU."""
    imports: command_line.Imports = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-export", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = command_line.parse(Arguments, argv, "rmc-export", DESCRIPTION)
    out = _checked_out(arguments)
    path = find(arguments.run, None, trust=True)  # an archive is refused below, unopened
    plugins.load(arguments.imports)

    import torch

    from rmc_agents.evaluate.episodes import check_fits, evaluate
    from rmc_agents.runs.saved import Provenance, load_agent, pick_device, save_agent, saved_env

    torch.set_num_threads(1)  # see docs/decisions/threads.md
    device = pick_device(arguments.device if arguments.format == "safetensors" else "cpu")
    saved = load_agent(path, device)
    if out.exists() and out.samefile(saved.path):
        raise ValueError(f"{out} is what would be exported: expected another file to write to")
    env = saved_env(saved)
    check_fits(saved.spec, env)

    console = Console()
    compared = None if arguments.format == "safetensors" else _compared(saved, arguments.format)
    policy = compared or saved.agent
    with console.status(f"playing {arguments.episodes} episodes of {saved.config.env.env}"):
        result = evaluate(policy, env, arguments.episodes, arguments.seed, device, max_steps=arguments.max_steps)
    if note := cut_note(result):
        console.print(f"{note} (--max-steps)", highlight=False, markup=False, soft_wrap=True)
    provenance = Provenance(__version__, result["mean_return"], result["ci95"], arguments.episodes, arguments.seed)
    if compared is None:
        save_agent(out, saved, provenance)
    else:
        write_atomically(out, compared.program.data)
    size = out.stat().st_size
    console.print(f"{out} ({size / 1e6:.2f} MB): {provenance}", highlight=False, markup=False, soft_wrap=True)
    if compared is not None:
        console.print(f"its probabilities differ by at most {compared.largest:.0e} from the agent's in these episodes")
    return 0


def _checked_out(arguments: Arguments) -> Path:
    """Where to write to. Raises ValueError, before anything is played, for what cannot end well."""
    for name, least in (("episodes", 1), ("seed", 0), ("max_steps", 1)):
        if (value := getattr(arguments, name)) < least:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {least}, got {value}")
    suffix = SUFFIXES[arguments.format]
    out = arguments.out or Path(arguments.run.resolve().name.removesuffix(SUFFIX) + suffix)
    if out.suffix != suffix:
        raise ValueError(f"{out}: expected a file name that ends in {suffix} for --format {arguments.format}")
    if arguments.format == "onnx" and not all(map(find_spec, FOR_ONNX)):
        raise ValueError(f"--format onnx needs {', '.join(FOR_ONNX)}: pip install 'rmc-agents[onnx]'")
    check_writable(out)
    return out


def _compared(saved: "SavedAgent[ActorCritic]", format: str) -> "Compared":
    """The agent and its program in a format, which plays beside it."""
    from rmc_agents.evaluate.programs import Compared, make_program

    config = saved.config
    about = {"env": config.env.env, "core": config.core.core, "frames": str(saved.frames), "rmc_agents": __version__}
    return Compared(saved.agent, make_program(saved.agent, format, about))
