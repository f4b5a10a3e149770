"""The report of `gpu/check.py`, in Markdown."""

from typing import Any


def report(result: dict[str, Any]) -> str:
    """The Markdown of a result."""
    about = ", ".join(f"{name} {value}" for name, value in result["machine"].items() if name != "device" and value)
    tests = result["tests"]
    counts = ", ".join(f"{number} {name}" for name, number in tests["counts"].items()) or "no result"
    lines = ["# GPU check", "", f"{result['machine']['device']}: {about}. `make gpu-check`; one run.", ""]
    lines += [
        f"**Tests** ({', '.join(tests['files'])}): {counts}.",
        "",
        "**Training speed** of the presets minipacman-rmc and minipacman-lstm:",
        "",
    ]
    lines += [
        "| core | lanes | backend | frames/s | of it acting | GPU busy | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [speed_row(row) for row in result["speed"]]
    lines += [
        "",
        "**A short training**, evaluated:",
        "",
        "| backend | frames | frames/s | mean return |",
        "|---|---|---|---|",
    ]
    lines += [training_row(row) for row in result["training"]]
    lines += [
        "",
        "**Resuming**, bitwise:",
        "",
        "| core | backend | two runs | resumed |",
        "|---|---|---|---|",
    ]
    words = {True: "equal", False: "differ", None: "failed"}
    for row in result["resume"]:
        cells = [row["core"], row["backend"], words[row.get("repeatable")], words[row.get("exact")]]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"**From the CPU to the GPU and back**: {words[result['move'].get('exact')]}."]
    errors = [row["error"] for row in [*result["resume"], result["move"]] if "error" in row]
    return "\n".join([*lines, *(f"\n    {error}" for error in errors)]) + "\n"


def speed_row(row: dict[str, Any]) -> str:
    """A row of the table of speeds."""
    cells = [row["core"], str(row["lanes"]), row["backend"]]
    if "error" in row:
        return f"| {' | '.join(cells)} | {one_line(row['error'])} | | | |"
    busy = "-" if row["busy"] is None else f"{row['busy']:.0%}"
    memory = "-" if row["peak_memory_mib"] is None else f"{row['peak_memory_mib']:,.0f}"
    return f"| {' | '.join(cells)} | {row['frames_per_second']:,.0f} | {row['acting']:.0%} | {busy} | {memory} |"


def training_row(row: dict[str, Any]) -> str:
    """A row of the table of trainings."""
    if row["status"] != 0:
        return f"| {row['backend']} | {problem(row)} | | |"
    summary = row["summary"]
    low, high = summary["evaluation"]["ci95"]
    score = f"{summary['evaluation']['mean_return']:.1f} ({low:.1f} to {high:.1f})"
    figures = f"{summary['frames']:,} | {summary['frames_per_second']:,.0f} | {score}"
    return f"| {row['backend']} | {figures} |"


def problem(row: dict[str, Any]) -> str:
    """The last line of what went wrong."""
    return one_line((row["end"].splitlines() or ["no output"])[-1])


def one_line(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.split()).replace("|", "/")[:300]
