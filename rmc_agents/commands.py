"""The commands, each a function: importing one takes a moment, in which Ctrl-C prints no traceback either."""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module

COMMANDS = {
    "rmc-train": ("train.cli", "train an agent, evaluate it, record a video"),
    "rmc-evaluate": ("evaluate.cli", "score a saved agent against random play; measure what its memory is worth"),
    "rmc-watch": ("evaluate.watch", "record a video of a saved agent, or a replay page"),
    "rmc-export": ("evaluate.export", "export a run's agent to one small file"),
    "rmc-plot": ("evaluate.plot", "plot learning curves"),
    "rmc-compare": ("evaluate.compare", "compare agents over several seeds in one table and one figure"),
    "rmc-sweep": ("train.sweep.cli", "search ranges of settings with many trainings"),
    "rmc-bench": ("train.bench.cli", "measure where training time goes"),
}
"""Names -> the module with the function `main`, and the purpose."""


def __getattr__(name: str) -> Callable[[], int]:
    """The function `rmc_train` is the command rmc-train. Raises AttributeError for other names."""
    if (program := name.replace("_", "-")) not in COMMANDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return partial(_run, program)


def _run(program: str) -> int:
    try:
        module = import_module(f"rmc_agents.{COMMANDS[program][0]}")
    except KeyboardInterrupt:  # later ones are for `command_line.run`
        print(f"{program}: interrupted", file=sys.stderr)
        return 130
    status: int = module.main()
    return status
