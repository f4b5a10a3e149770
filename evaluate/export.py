"""rmc-export: exports an agent to one small file."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from rmc_agents import __version__, command_line, plugins
from rmc_agents.command_line import parsing
from rmc_agents.files import check_writable, write_atomically
from rmc_agents.pretrained import SUFFIX

from .opening import find
from .progress import shown
from .statistics import EVALUATION_SEED, MAX_STEPS, cut_note

if TYPE_CHECKING:
    from rmc_agents.agent import ActorCritic
    from rmc_agents.runs.saved import SavedAgent

    from .exported import Compared

DESCRIPTION = """Evaluate a saved agent and export it, without optimizer and training state, to one file.

The file holds settings, weights and the evaluation. rmc-evaluate and rmc-watch open it like a run. The formats onnx
and torch hold the agent's step as a program that does not need this package; throughout the evaluation its outputs
are compared with the agent's.

  rmc-export runs/lstm lstm.safetensors
  rmc-export runs/lstm --format onnx"""

SUFFIXES = {"safetensors": SUFFIX, "onnx": ".onnx", "torch": ".pt2"}
FOR_ONNX = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Arguments:
    """The options of an export."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|CHECKPOINT")]
    """A run's folder (the newest valid checkpoint is used), a checkpoint, or a pretrained policy's name."""
    out: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[OUT]")] = None
    """The file to write, with the format's suffix: .safetensors, .onnx or .pt2. Default: RUN's name, in this folder."""
    format: Literal["safetensors", "onnx", "torch"] = "safetensors"
    """safetensors: for this package; onnx: for onnxruntime and others; torch: for torch.export.load."""
    episodes: int = 200
    """Whole episodes of the evaluation; episode i starts from seed + i."""
    seed: int = EVALUATION_SEED
    """Seed of the environments and of action sampling."""
    max_steps: int = MAX_STEPS
    """Maximum steps of an episode; a longer one is cut off and counts with the return so far."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if a working GPU is available, else cpu. The formats onnx and torch are made on the CPU."""
    imports: parsing.Imports = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    return command_line.run("rmc-export", lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    arguments = parsing.parse(Arguments, argv, "rmc-export", DESCRIPTION)
    out = _checked_out(arguments)
    path = find(arguments.run, None, trust=True)  # an archive is rejected below without opening it
    plugins.load(arguments.imports)

    import torch

    from rmc_agents.runs.saved import Provenance, load_agent, pick_device, save_agent, saved_env

    from .episodes import PlaySettings, check_fits, evaluate_beside_random

    torch.set_num_threads(1)  # see docs/decisions/threads.md
    device = pick_device(arguments.device if arguments.format == "safetensors" else "cpu")
    saved = load_agent(path, device)
    if out.exists() and out.samefile(saved.path):
        raise ValueError(f"{out} is the file to export: expected another file to write to")
    env = saved_env(saved)
    check_fits(saved.spec, env)

    console = command_line.console()
    compared = None if arguments.format == "safetensors" else _compared(saved, arguments.format)
    policy = compared or saved.agent
    with shown(console, f"playing {saved.config.env.env}, and randomly", 2 * arguments.episodes) as on_progress:
        settings = PlaySettings(arguments.seed, device, saved.config.train.is_greedy, arguments.max_steps)
        result = evaluate_beside_random(policy, env, arguments.episodes, settings, on_progress)
    if note := cut_note(result):
        command_line.say(console, f"{note} (--max-steps)")
    provenance = Provenance(__version__, result["mean_return"], result["ci95"], result["episodes"], arguments.seed)
    if compared is None:
        save_agent(out, saved, provenance)
    else:
        write_atomically(out, compared.program.data)
    size = out.stat().st_size
    command_line.say(console, f"{out} ({size / 1e6:.2f} MB): {provenance}")
    if compared is not None:
        console.print(f"its probabilities differ by at most {compared.largest:.0e} from the agent's in these episodes")
    return 0


def _checked_out(arguments: Arguments) -> Path:
    """The output path. Raises ValueError for invalid arguments, before any episode is played."""
    parsing.check_numbers(arguments, "episodes", "max_steps", "seed")
    suffix = SUFFIXES[arguments.format]
    out = arguments.out or Path(arguments.run.resolve().name.removesuffix(SUFFIX) + suffix)
    if out.suffix != suffix:
        raise ValueError(f"{out}: expected a file name that ends in {suffix} for --format {arguments.format}")
    if arguments.format == "onnx" and not all(map(find_spec, FOR_ONNX)):
        raise ValueError(f"--format onnx needs {', '.join(FOR_ONNX)}: pip install 'rmc-agents[onnx]'")
    check_writable(out)
    return out


def _compared(saved: "SavedAgent[ActorCritic]", format: str) -> "Compared":
    """The agent, compared at every step with its exported program."""
    from .exported import Compared, make_program

    config = saved.config
    about = {"env": config.env.env, "core": config.core.core, "frames": str(saved.frames), "rmc_agents": __version__}
    return Compared(saved.agent, make_program(saved.agent, format, about))
