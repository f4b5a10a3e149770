"""Mutation testing: breaks the source in one place at a time and runs the tests that should detect it.

    python -m benchmarks.reliability.mutations [WORD ...]      # only mutations with one of these words in their names

`mutations.yaml` lists them: a file, a text that occurs in it once, its replacement, and pytest's arguments. Everything
happens on a copy in a temporary folder. The tests first have to pass on the unchanged copy.
Outcomes go to the table `benchmarks/results/mutations.md`, where those of other mutations stay. Exit status 1: some
mutation was missed, broke more than it should (nothing could be collected), or its place is no longer in the source.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).parent.parent.parent
LIST, RESULT = Path(__file__).with_suffix(".yaml"), ROOT / "benchmarks" / "results" / "mutations.md"
PARTS = ("envs", "train", "evaluate", "configs")
"""Folders at the top of the repository that are subpackages of rmc_agents."""
CAUGHT = ("caught", "hangs")
OUTCOMES = {0: "MISSED", 1: "caught"}  # by pytest's exit status
LONGEST = 600.0  # seconds after which tests count as hung


class Mutation(NamedTuple):
    """One fault."""

    name: str
    file: str
    old: str  # once in the file
    new: str
    tests: str  # pytest's arguments: a file, and which of its tests


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a mutation's name")
    words = parser.parse_args(argv).words
    mutations = [Mutation(**entry) for entry in yaml.safe_load(LIST.read_text())]
    chosen = [m for m in mutations if not words or any(word in m.name for word in words)]
    if not chosen:
        parser.error(f"expected part of a mutation's name, got {', '.join(words)}; names are in {LIST.name}")
    import_heavy_packages()
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        outcomes = []
        for mutation in chosen:
            outcomes.append(copy.outcome(mutation))
            print(f"{outcomes[-1]:<14} {mutation.name}", flush=True)
    print(f"{sum(outcome in CAUGHT for outcome in outcomes)} of {len(outcomes)} caught")
    RESULT.write_text(table(mutations, read_outcomes() | dict(zip((m.name for m in chosen), outcomes, strict=True))))
    return 0 if set(outcomes) <= set(CAUGHT) else 1


def import_heavy_packages() -> None:
    """Import them once for all forked processes, which import the project itself from the copy."""
    import numba  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401


class Copy:
    """The package as installed, in `site`, with its compiled passes, and the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.site, package = folder, folder / "site", folder / "site" / "rmc_agents"
        shutil.copytree(ROOT / "rmc_agents", package)
        for part in PARTS:
            shutil.copytree(ROOT / part, package / part)
        shutil.copytree(ROOT / "tests", folder / "tests")
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.passes = cache(lambda tests: self.run(tests) == "MISSED")

    def outcome(self, mutation: Mutation) -> str:
        """The outcome of a mutation: caught, missed, or why it is unknown."""
        path = self.site / (mutation.file if mutation.file.startswith("rmc_agents") else f"rmc_agents/{mutation.file}")
        text, times = path.read_text(), path.stat()
        if text.count(mutation.old) != 1:
            return "not in source"
        if not self.passes(mutation.tests):
            return "fails without"
        try:
            path.write_text(text.replace(mutation.old, mutation.new))
            return self.run(mutation.tests)
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # what was compiled before is still valid

    def run(self, tests: str) -> str:
        """The outcome of these tests on the copy; pytest stops at the first failure."""
        process = os.fork()
        if process == 0:
            self._run_here(tests)
        deadline = time.monotonic() + LONGEST
        while True:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                status = os.waitstatus_to_exitcode(status)
                return OUTCOMES.get(status, f"pytest: {status}")
            if time.monotonic() > deadline:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return "hangs"
            time.sleep(0.05)

    def _run_here(self, tests: str) -> None:
        """Ends the process with pytest's exit status."""
        import pytest

        os.setsid()
        os.chdir(self.folder)
        with open(self.folder / "output.log", "wb") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        os.environ |= {"PYTHONPATH": str(self.site), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(self.site), str(self.folder)]  # the tests' own processes import them from the folder
        status: int = 3
        try:
            status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)])
        finally:
            os._exit(status)


def read_outcomes() -> dict[str, str]:
    """The outcomes in the table so far, by mutation."""
    lines = RESULT.read_text().splitlines() if RESULT.exists() else []
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {row[0]: row[-1] for row in rows[2:]}


def table(mutations: Sequence[Mutation], outcomes: Mapping[str, str]) -> str:
    """The result in Markdown, of the mutations with an outcome."""
    rows = [f"| {m.name} | `{m.file}` | `{m.tests}` | {outcomes[m.name]} |" for m in mutations if m.name in outcomes]
    caught = sum(outcomes.get(m.name) in CAUGHT for m in mutations)
    summary = f"{caught} of {len(mutations)} mutations caught, by `benchmarks/reliability/mutations.py`."
    return "\n".join(
        ["# Mutations", "", summary, "", "| fault | file | tests | outcome |", "|---|---|---|---|", *rows, ""]
    )


if __name__ == "__main__":
    sys.exit(main())
