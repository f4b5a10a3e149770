"""tyro's messages about wrong flags, in one line and in plain words."""

import difflib
import re

PLAIN = {
    r"invalid literal for int\(\) with base 10:": "expected an integer, got",
    r"could not convert string to float:": "expected a number, got",
    r"no type matching (.+) could be instantiated from \[(.+)\]": r"expected \1, got \2",
    r"expected \{None\}\|INT,": "expected an integer or None,",
    r"expected \{None\}\|FLOAT,": "expected a number or None,",
    r"expected INT\|\{auto\},": "expected an integer or auto,",
    r"Missing value for argument '(\S+)'\. Expected 1 values": r"\1: expected a value, got none",
    r"Missing from \S+: (\S+) (.*)\. \(required\)": r"expected \1: \2",
    r"invalid choice ('.*') for argument '(\S+)'\. Expected one of \((.*)\)": r"\2: expected one of \3, got \1",
    r"Could not find valid parse for arguments: \['([^']+,[^']+)'\]": r"expected values separated by spaces, got \1",
    r"Could not find valid parse for arguments: \[(.*)\]": r"expected numbers separated by spaces, got \1",
}
"""Patterns in messages of Python and tyro -> plainer words."""


def plain_message(text: str) -> str:
    """tyro's boxed error message, and the flags it suggests, in one line.

    Without UTF-8 the box has no sides, and its horizontal lines are made of '-', one of them below the title.
    """
    lines = [line.strip("│╭╮╰╯─ ") if line.strip(" -") else "" for line in text.splitlines()]
    body = [line for line in lines[1:] if not line.startswith("For full helptext")]
    body = body[next((i for i, line in enumerate(body) if line), 0) :]
    problem = " ".join(body[: body.index("")] if "" in body else body)
    meant = dict.fromkeys(_nearest(problem, line) for line in body if line.startswith("--"))
    hint = f"; did you mean {' or '.join(meant)}?" if meant and "Perhaps you meant" in text else ""
    problem = re.sub(r"^Error parsing (\w+: )?", "", problem)  # the section's name adds nothing to the setting's
    for pattern, plain in PLAIN.items():
        problem = re.sub(pattern, plain, problem)
    return problem.rstrip(".") + hint


def _nearest(problem: str, line: str) -> str:
    """Of the names of one flag, such as --video and --no-video, the one most similar to the unknown one."""
    names = [name for name in line.replace(",", " ").split() if name.startswith("--")]
    unknown = problem.rpartition(" ")[2]
    return max(names, key=lambda name: difflib.SequenceMatcher(None, unknown, name).ratio())
