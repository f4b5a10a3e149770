"""Short names of sequence environments, followed by options: nth-farthest-vectors4, program-control, text:PATH."""

import re
from typing import Any

NTH_FARTHEST, PROGRAM, TEXT = (f"rmc_agents.envs:{name}-v0" for name in ("NthFarthest", "Program", "Text"))

SHORT_NAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "nth-farthest": (NTH_FARTHEST, {}),
    "program": (PROGRAM, {}),
    **{f"program-{task}": (PROGRAM, {"task": task}) for task in ("addition", "control", "copy", "reverse", "double")},
}
"""Short name -> gymnasium id and arguments; text:PATH is one too."""

OPTIONS: dict[str, dict[str, str | tuple[str, Any]]] = {
    NTH_FARTHEST: {
        "vectors": "vectors",
        "size": "size",
        "from": "fewest",
        "most": "most",
        "active": "active",
        "thinking": "thinking",
        "every": ("ask", "every"),
    },
    PROGRAM: {
        "nesting": "nesting",
        "length": "length",
        "maxima": ("at_maxima", True),
        "forced": ("teacher_forcing", True),
    },
    TEXT: {
        "words": ("unit", "words"),
        "heldout": ("part", "heldout"),
        "all": ("part", "all"),
        "vocabulary": "vocabulary_size",
        "steps": "steps",
    },
}
"""For each id, the options of its names, each after a dash: the argument that a number sets, or an argument and its
value."""


PASSAGE = 10_000  # tokens

EVALUATION: dict[str, dict[str, tuple[Any, Any]]] = {
    PROGRAM: {"at_maxima": (False, True)},
    TEXT: {"part": ("train", "heldout"), "steps": (None, PASSAGE)},
}
"""For each id, the default of an argument, and its value in evaluations. All passages of a text are equally likely; if
episodes ran to the end of a document, its last tokens would be in most of them."""


def is_text(name: str) -> bool:
    """Whether a name is of the form text:PATH, with options before the colon."""
    return name.partition(":")[0].split("-")[0] == "text" and ":" in name


def find_sequences(name: str) -> tuple[str, dict[str, Any]] | None:
    """The gymnasium id and the arguments of a short name; None if it does not name a sequence environment.

    Raises:
        ValueError: for an unknown option, or for text without a path.
    """
    if is_text(name):
        options, _, path = name.removeprefix("text").partition(":")
        if not path:
            raise ValueError(f"environment {name!r}: expected a file, a folder or a pattern behind text:, got none")
        return TEXT, {"path": path, **_arguments(TEXT, options, name)}
    bases = [base for base in SHORT_NAMES if name == base or name.startswith(f"{base}-")]
    if not bases or re.search(r"-v\d+$", name):  # a gymnasium id, such as program-mine-v0
        return None
    base = max(bases, key=len)
    env_id, arguments = SHORT_NAMES[base]
    return env_id, {**arguments, **_arguments(env_id, name.removeprefix(base), name)}


def _arguments(env_id: str, options: str, name: str) -> dict[str, Any]:
    """The arguments of options such as -vectors4-from2."""
    arguments: dict[str, Any] = {}
    for option in options.split("-")[1:]:
        found = re.fullmatch(r"([a-z]+)(\d*)", option)
        meaning = OPTIONS[env_id].get(found[1]) if found else None
        if found is None or meaning is None or isinstance(meaning, str) != bool(found[2]):
            tasks = [key.removeprefix("program") for key in SHORT_NAMES if env_id == PROGRAM and "program-" in key]
            known = [f"-{key}N" if isinstance(m, str) else f"-{key}" for key, m in OPTIONS[env_id].items()]
            raise ValueError(f"environment {name!r}: expected {', '.join(tasks + known)}; got {'-' + option!r}")
        argument, value = (meaning, int(found[2])) if isinstance(meaning, str) else meaning
        if argument in arguments:
            raise ValueError(f"environment {name!r}: expected {argument} once, got it twice")
        arguments[argument] = value
    return arguments
