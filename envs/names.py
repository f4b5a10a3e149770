"""Short names of environments, and errors for unknown names; imports no environment."""

import difflib
import re
import sys
from collections.abc import Mapping
from typing import Any

from .sequences import names as sequences

MINIPACMAN = "rmc_agents.envs:MiniPacman-v0"
MINIPACMAN_MODES = ("avoid", "hunt", "ambush", "rush")
WINDOWS = (3, 5, 7, 9, 11, 15)  # sides, to measure the cost of the window; minipacman itself has 5
BOXWORLD = "rmc_agents.envs:BoxWorld-v0"
BOXWORLD_SIZES: dict[str, dict[str, Any]] = {  # a curriculum
    "boxworld": {},
    "boxworld-medium": {"room_size": 10, "max_solution_length": 3, "max_distractors": 3},
    "boxworld-small": {"room_size": 8, "max_solution_length": 2, "max_distractors": 2},
    "boxworld-tiny": {"room_size": 5, "max_solution_length": 1, "max_distractors": 1},
}

SHORT_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "minipacman": (MINIPACMAN, {}),
    **{f"minipacman-{mode}": (MINIPACMAN, {"mode": mode}) for mode in MINIPACMAN_MODES},
    **{f"minipacman-{whole}": (MINIPACMAN, {"viewport": None}) for whole in ("full", "map")},
    **{
        f"minipacman-{mode}-{whole}": (MINIPACMAN, {"mode": mode, "viewport": None})
        for mode in MINIPACMAN_MODES
        for whole in ("full", "map")
    },
    **{f"minipacman-window{side}": (MINIPACMAN, {"viewport": side}) for side in WINDOWS},
    **{name: (BOXWORLD, options) for name, options in BOXWORLD_SIZES.items()},
    **{f"{name}-full": (BOXWORLD, {**options, "viewport": None}) for name, options in BOXWORLD_SIZES.items()},
    "recall": ("rmc_agents.envs:Recall-v0", {}),
    **{f"memory-{size}": (f"MiniGrid-Memory{size.upper()}-v0", {}) for size in ("s7", "s9", "s11", "s13")},
    **{f"memory-{size}-random": (f"MiniGrid-Memory{size.upper()}Random-v0", {}) for size in ("s13", "s17")},
    **sequences.SHORT_NAMES,
}
"""Short name -> gymnasium id and arguments."""

MAPS = frozenset(name for name in SHORT_NAMES if name.endswith("-map"))
"""Names that show the whole map as tokens (see `MapTokens`)."""

NAMESPACE = "own/"
"""Prefix of the ids of environments given to `rmc.train` in Python: no other process can create these."""

MOVES_ONLY = frozenset(name for name in SHORT_NAMES if name.startswith("memory-"))
"""Names with only the actions left, right and forward (see `MiniGridView`)."""

STACKED = re.compile(r"(.+)-stack(\d\w*|)")
"""The suffix for stacked views, as in minipacman-stack4."""
MAX_VIEWS = 1000  # a mistyped number must not take all memory


def split_stack(name: str) -> tuple[str, int]:
    """A name without its -stackK, and K; 1 without the suffix.

    Raises:
      ValueError: for a K outside 2 to `MAX_VIEWS`.
    """
    stacked = None if sequences.is_text(name) else STACKED.fullmatch(name)
    if stacked is None:
        return name, 1
    base, num_views = stacked.groups()
    if not re.fullmatch("[0-9]{1,4}", num_views) or not 2 <= int(num_views) <= MAX_VIEWS:
        raise ValueError(
            f"environment {name!r}: expected a number from 2 to {MAX_VIEWS} after -stack, got {num_views!r}"
        )
    return base, int(num_views)


def evaluation_kwargs(name: str, env_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the environment in which an agent is evaluated.

    Programs are evaluated at their maxima, and texts in passages of the held-out part, except where the training's
    arguments differ from the defaults. All others are evaluated where they were trained.

    Args:
      name: the environment of the training.
      env_kwargs: its arguments besides those in the name.
    """
    base, _ = split_stack(name)
    env_id, arguments = sequences.find_sequences(base) or (base, {})
    found = next((known for known in sequences.EVALUATION if env_id in (known, known.partition(":")[2])), "")
    trained, evaluated = {**arguments, **env_kwargs}, dict(env_kwargs)
    for key, (default, value) in sequences.EVALUATION.get(found, {}).items():
        if trained.get(key, default) == default:
            evaluated[key] = value
    return evaluated


def check(name: str) -> None:
    """Check a name without creating the environment.

    Args:
      name: as in `registry.make_vector_env`; 'module:Id' passes.

    Raises:
      ValueError: for an unknown name; the message suggests the nearest.
    """
    base, _ = split_stack(name)
    if sequences.find_sequences(base) or base in SHORT_NAMES or ":" in base:
        return
    import gymnasium as gym

    if base not in gym.registry:
        import minigrid  # noqa: F401  # registers its environments

    if base not in gym.registry:
        raise unknown(base)


def unknown(name: str) -> ValueError:
    """The error for an unknown name, with the nearest known one."""
    import gymnasium as gym

    if name.startswith(NAMESPACE):
        return ValueError(
            f"environment {name!r} exists only in the Python process that passed it: pass it again, as "
            "rmc.resume(run, env=...) or rmc.evaluate(saved, env); commands take --env module:Class"
        )
    module, _, attribute = name.rpartition(":")
    if module in sys.modules and not hasattr(sys.modules[module], attribute):
        return ValueError(
            f"there is no environment {name!r}: {module} neither defines {attribute!r} nor registers it with gymnasium"
        )
    if module:
        return ValueError(
            f"there is no environment {name!r}: {module} has not registered {attribute!r} with gymnasium; if that is a "
            f"class or function, pass it as env={name!r} in Python, and as --env {name} to commands"
        )
    if name.partition("-")[0].lower() == "text":
        return ValueError(
            f"there is no environment {name!r}; expected {name.lower()}:PATH, of a file, a folder or a pattern"
        )
    if name.startswith("ALE/"):
        return ValueError(f"there is no environment {name!r}; Atari's are ale_py:{name} (pip install ale-py)")
    known = {each.lower(): each for each in [*gym.registry, *SHORT_NAMES]}
    near = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)]
    module, _, attribute = name.rpartition(".")
    if module and attribute[:1].isupper():  # a class; a text's file has a suffix
        near = [f"{module}:{attribute}"]
    variants = {each for each in SHORT_NAMES for root in SHORT_NAMES if each.startswith(f"{root}-")}
    few = ", ".join(each for each in SHORT_NAMES if each not in variants)
    listed = (
        f"short names are {few}, text:PATH, and variants such as minipacman-hunt, boxworld-small, program-copy; your "
        "own is module:Class (my_env.py: my_env:MyEnv), another package's package:ID (popgym:popgym-CountRecallEasy-v0)"
    )
    hint = f"did you mean {near[0]!r}?" if near else listed
    return ValueError(f"there is no environment {name!r}; {hint}")
