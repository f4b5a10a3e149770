"""How cost grows with lanes, slots, slot width and unroll length: frames/s, peak memory, the scan's time.

    python -m benchmarks.speed.scaling [--quick] [--seconds 10] [--threads 1] [--device cpu] [--cores rmc lstm]

One parameter is varied at a time around one point: 256 lanes, T = 20, an RMC with 4 slots of width 128 and 4 heads, an
LSTM with 256 units. Every point is a separate `rmc-bench` process, to measure its peak memory, with as many rounds as
fit into --seconds, at least one. A point that fails (for example for lack of memory) is reported and left out.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from rmc_agents.evaluate.plot import plain_axes, write_png
from rmc_agents.files import write_atomically, write_json

BENCH = "import sys; from rmc_agents.train.bench.cli import main; sys.exit(main())"
HEADS = 4
Y_AXES = {"frames_per_second": "training, frames/s", "peak_memory_mib": "peak memory, MiB"}
COLOURS = {"rmc": "C0", "lstm": "C1"}


@dataclass(frozen=True)
class Point:
    """A measured configuration; a slot of the RMC, or the whole LSTM, is `width` wide."""

    core: str
    lanes: int
    unroll_length: int
    slots: int
    width: int

    @property
    def flags(self) -> list[str]:
        """As rmc-bench takes it."""
        settings: dict[str, object] = {
            "algo": "a2c",
            "optimizer": "adam",
            "core": self.core,
            "num-envs": self.lanes,
            "unroll-length": self.unroll_length,
            "mem-slots": self.slots,
            "num-heads": HEADS,
            "head-size": self.width // HEADS,
            "hidden-size": self.width,
        }
        return [text for name, value in settings.items() for text in (f"--{name}", str(value))]


class Axis(NamedTuple):
    """A varied parameter."""

    name: str
    field: str  # of Point
    values: tuple[int, ...]
    cores: tuple[str, ...]


BOTH = ("rmc", "lstm")
CENTRES = {"rmc": Point("rmc", 256, 20, 4, 128), "lstm": Point("lstm", 256, 20, 1, 256)}
AXES = (
    Axis("lanes", "lanes", (16, 64, 256, 1024, 4096), BOTH),
    Axis("slots", "slots", (1, 2, 4, 8, 16), ("rmc",)),
    Axis("width of a slot, units", "width", (64, 128, 256, 512), BOTH),
    Axis("unroll length T", "unroll_length", (8, 16, 20, 32, 64, 128), BOTH),
)
QUICK_CENTRES = {"rmc": Point("rmc", 16, 8, 2, 32), "lstm": Point("lstm", 16, 8, 1, 32)}
QUICK_AXES = (
    AXES[0]._replace(values=(8, 16, 32)),
    AXES[1]._replace(values=(1, 2, 4)),
    AXES[2]._replace(values=(16, 32)),
    AXES[3]._replace(values=(4, 8)),
)


def points(axis: Axis, core: str, centre: Point) -> list[Point]:
    """The points along an axis; none if the core does not have the parameter."""
    if core not in axis.cores:
        return []
    return [replace(centre, **{axis.field: value}) for value in axis.values]  # type: ignore[arg-type]


def measure(point: Point, flags: Sequence[str]) -> dict[str, Any] | None:
    """The report of rmc-bench for a point; None if it fails, after a line with the reason."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "point.json"
        command = [sys.executable, "-c", BENCH, *point.flags, *flags, "--json", str(target)]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            print(f"{point}: failed with {done.returncode}: {reason[0]}", file=sys.stderr, flush=True)
            return None
        return {**asdict(point), **figures(json.loads(target.read_text()))}


def figures(report: dict[str, Any]) -> dict[str, Any]:
    """The figures kept from a report of rmc-bench."""
    training = report["parts"]["training"]
    scan = next(iter(report["scan"].values()))  # by the backend that training uses
    return {
        "frames_per_second": training["frames_per_second"],
        "spread": training["spread"],
        "training_ms": training["ms"],
        "scan_ms": scan["ms"],
        "scan_gflop_per_second": scan["gflop_per_second"],
        "scan_of_products": scan["of_products"],
        "outside_scan": report["outside_scan"],
        "peak_memory_mib": report["peak_memory_mib"],
        "rounds": report["rounds"],
        "machine": {"device": report["device"], "threads": report["settings"]["threads"], **report["versions"]},
    }


def of(results: Iterable[dict[str, Any]], wanted: Sequence[Point]) -> list[dict[str, Any]]:
    """The results of these points, in their order; those that failed are left out."""
    by_point = {Point(*(result[field.name] for field in fields(Point))): result for result in results}
    return [by_point[point] for point in wanted if point in by_point]


def table(results: list[dict[str, Any]], axes: Sequence[Axis], centres: dict[str, Point]) -> Iterator[str]:
    """The lines of a Markdown table for each axis."""
    names = ("frames/s", "±", "training ms", "scan ms", "scan GFLOP/s", "of its products", "peak MiB", "rounds")
    for axis in axes:
        yield f"\n| core | {axis.name} | {' | '.join(names)} |"
        yield "|---" * (len(names) + 2) + "|"
        for core, centre in centres.items():
            for result in of(results, points(axis, core, centre)):
                cells = [core, str(result[axis.field])]
                cells += [f"{result['frames_per_second']:,.0f}", percent(result["spread"])]
                cells += [f"{result['training_ms']:,.1f}", f"{result['scan_ms']:,.1f}"]
                cells += [f"{result['scan_gflop_per_second']:,.1f}", percent(result["scan_of_products"])]
                cells += [f"{result['peak_memory_mib']:,.0f}", str(result["rounds"])]
                yield f"| {' | '.join(cells)} |"


def percent(share: float | None) -> str:
    """A share as a table shows it."""
    return "-" if share is None else f"{share:.0%}"


def document(results: list[dict[str, Any]], axes: Sequence[Axis], centres: dict[str, Point]) -> str:
    """The Markdown file: around which point, on what, and the tables."""
    around = "; ".join(
        f"{core}: {point.lanes} lanes, T = {point.unroll_length}, "
        + (f"{point.slots} slots {point.width} wide, {HEADS} heads" if core == "rmc" else f"{point.width} units")
        for core, point in centres.items()
    )
    machine = results[0]["machine"]
    lines = [
        "# How cost grows",
        "",
        "Made by `python -m benchmarks.speed.scaling`: one thing varied at a time, each point in a process of its own,",
        f"around {around}.",
        f"On {machine['device']}, {machine['threads']} threads, torch {machine['torch']}. Terms are those of",
        "`rmc-bench --help`; ± is the interquartile range over the median.",
        *table(results, axes, centres),
    ]
    return "\n".join(lines) + "\n"


def draw(results: list[dict[str, Any]], axes: Sequence[Axis], centres: dict[str, Point]) -> Figure:
    """Frames per second above, peak memory below, a column for each axis."""
    figure = Figure(figsize=(13, 6), layout="constrained")
    panels = figure.subplots(2, len(axes), sharex="col", sharey="row")
    for column, axis in enumerate(axes):
        for core, centre in centres.items():
            found = of(results, points(axis, core, centre))
            x = [result[axis.field] for result in found]
            for panel, name in zip(panels[:, column], Y_AXES, strict=True):
                y = [result[name] for result in found]
                panel.plot(x, y, color=COLOURS[core], marker="o", markersize=4, label=core if found else None)
                if (common := getattr(centre, axis.field)) in x:
                    panel.plot(common, y[x.index(common)], color=COLOURS[core], marker="o", markersize=9)
        for panel in panels[:, column]:
            style(panel, axis.values)
        panels[1, column].set_xlabel(axis.name)
    for panel, (name, label) in zip(panels[:, 0], Y_AXES.items(), strict=True):
        values = [result[name] for result in results]
        panel.set_ylim(min(values) / 1.5, max(values) * 1.5)  # room for a tick at least
        panel.set_ylabel(label)
    panels[0, 0].legend(frameon=False)
    figure.suptitle("How cost grows, one thing at a time (large dots: the point in common)", fontweight="bold")
    return figure


def style(panel: Axes, ticks: Sequence[int]) -> None:
    """Logarithmic axes with the measured values as ticks."""
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(EngFormatter(sep=""))
    panel.yaxis.set_minor_locator(NullLocator())
    plain_axes(panel)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two rounds: to try whether it works")
    parser.add_argument("--seconds", type=float, default=10.0, help="of rounds for each point")
    parser.add_argument("--cores", nargs="+", choices=BOTH, default=BOTH)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--out", type=Path, help="without suffix; benchmarks/results/scaling, or runs/scaling if --quick"
    )
    parser.add_argument("flags", nargs="*", help="after --: further flags of rmc-bench")
    return parser.parse_args()


def main() -> None:
    """Measures point by point, then writes the table and draws the figure."""
    arguments = parse()
    axes = QUICK_AXES if arguments.quick else AXES
    centres = {core: (QUICK_CENTRES if arguments.quick else CENTRES)[core] for core in arguments.cores}
    out = arguments.out or Path("runs/scaling" if arguments.quick else "benchmarks/results/scaling")
    out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    repeats = ["--repeats", "2"] if arguments.quick else ["--repeats", "1000000", "--seconds", str(arguments.seconds)]
    flags = [*repeats, "--threads", str(arguments.threads), "--device", arguments.device, *arguments.flags]

    began = time.perf_counter()
    for point in dict.fromkeys(p for core in centres for axis in axes for p in points(axis, core, centres[core])):
        if (result := measure(point, flags)) is None:
            continue
        results.append(result)
        write_json(out.with_suffix(".json"), results)
        print(f"{time.perf_counter() - began:6.0f} s  {point}: {result['frames_per_second']:,.0f} frames/s", flush=True)
    if not results:
        sys.exit("no point could be measured")
    text = document(results, axes, centres)
    write_atomically(out.with_suffix(".md"), text.encode())
    write_png(draw(results, axes, centres), out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
