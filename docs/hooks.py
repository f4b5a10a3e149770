"""MkDocs hooks: add the reports in benchmarks/, the settings and the source to the site."""

import ast
import inspect
import json
import logging
import posixpath
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import rmc_agents
import rmc_agents.sb3
from rmc_agents.command_line.help_text import docstrings
from rmc_agents.config import Config

ROOT = Path(__file__).parent.parent
SOURCE = "build/api"
REPORTS = "benchmarks"
REPORT_SUFFIXES = (".md", ".png", ".json")
SETTINGS_MARK = "<!-- settings -->"
API_PAGE = "reference/api.md"
NOTEBOOKS = {"docs/examples/attention.ipynb": "guides/attention.md"}
"""Notebook -> its page."""
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
SOURCE_LINK = re.compile(r"\[(`[^`]+\.(?:py|yaml)`)\]\([^)]+\)")  # the site includes these files
NUMBERS = {"int": "integer", "float": "number"}
TYPES = {
    "Float": "number",
    "PositiveFloat": "number > 0",
    "NonNegativeFloat": "number ≥ 0",
    "UnitFloat": "number from 0 to 1",
    "PositiveInt": "integer > 0",
    "FewInt": "integer from 1 to 1000",
    "NonNegativeInt": "integer ≥ 0",
    "Sizes": "at most 100 integers > 0",
    "KeywordArguments": "NAME=VALUE ...",
    "Stages": "[stages](../guides/training.md#easier-tasks-first)",
    "None": "null",
    "bool": "true or false",
    "str": "text",
}
"""A setting's type as written in settings.py -> its text in the table."""

logger = logging.getLogger("mkdocs.hooks")


def on_startup(**_: Any) -> None:
    """Copy the source to folders with the packages' import names, which mkdocstrings needs."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    shutil.rmtree(ROOT / SOURCE, ignore_errors=True)
    for name, folder in {"rmc_agents": "rmc_agents", **folders}.items():
        target = ROOT / SOURCE / name.replace(".", "/")
        shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks, and the reports under benchmarks/, at the paths that the pages link to."""
    for notebook, page in NOTEBOOKS.items():
        files.append(File.generated(config, page, content=notebook_page(notebook)))
    for path in sorted((ROOT / REPORTS).rglob("*")):
        if path.suffix in REPORT_SUFFIXES:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the settings, and convert links between repository files to links between pages of the site; those to
    Python and YAML files, which the pages include, become plain text.
    """
    here = page.file.src_uri
    if here == API_PAGE:
        check_complete(markdown)
    if SETTINGS_MARK in markdown:
        markdown = markdown.replace(SETTINGS_MARK, settings_tables())
    markdown = SOURCE_LINK.sub(r"\1", markdown)
    return LINK.sub(lambda match: match[1] + site_link(match[2], here) + match[3], markdown)


def check_complete(api_page: str) -> None:
    """Warn about public names missing on the API page; a warning fails a strict build."""
    shown = {line.rpartition(".")[2] for line in api_page.splitlines() if line.startswith(":::")}
    if missing := {*rmc_agents.__all__, *rmc_agents.sb3.__all__} - shown:
        logger.warning("%s leaves out %s", API_PAGE, ", ".join(sorted(missing)))


def site_link(target: str, page: str) -> str:
    """Convert a link's target from the repository to the site; other links are unchanged.

    Args:
      target: relative to the page's file in the repository.
      page: the page's path in the site: that of its file, without the folder docs/.
    """
    if ":" in target:
        return target
    file = page if page.startswith(f"{REPORTS}/") else f"docs/{page}"
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
    if linked in NOTEBOOKS:
        return posixpath.relpath(NOTEBOOKS[linked], posixpath.dirname(page) or ".")
    if not linked.startswith(("docs/", f"{REPORTS}/")):
        return target
    return posixpath.relpath(linked.removeprefix("docs/"), posixpath.dirname(page) or ".")


def notebook_page(path: str) -> str:
    """A notebook with its outputs, in Markdown."""
    parts = []
    for cell in json.loads((ROOT / path).read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            else:
                parts.append(f"![what the cell above shows](data:image/png;base64,{output['data']['image/png']})")
    return "\n\n".join([*parts, f"*This page is the notebook `{path}`.*"]) + "\n"


def settings_tables() -> str:
    """All settings in Markdown, a table for each section."""
    lines: list[str] = []
    for section in fields(Config):
        values = getattr(Config(), section.name)
        lines += [f"## {section.name.capitalize()}", "", str(type(values).__doc__), ""]
        lines += ["| setting | default | values | meaning |", "|---|---|---|---|"]
        for name, kind, text in _settings(type(values)):
            cells = (f"`{name}`", f"`{_as_yaml(getattr(values, name))}`", kind, text)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _settings(section: type) -> Iterator[tuple[str, str, str]]:
    """For each setting in a section: its name, its values, and its docstring."""
    texts = docstrings(section)
    tree = ast.parse(inspect.getsource(section)).body[0]
    assert isinstance(tree, ast.ClassDef)
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign):
            name = ast.unparse(statement.target)
            yield name, _values(statement.annotation), texts[name]


def _values(annotation: ast.expr) -> str:
    """A setting's type in words."""
    match annotation:
        case ast.BinOp(left, ast.BitOr(), right):
            return f"{_values(left)}, or {_values(right)}"
        case ast.Subscript(ast.Name("Literal"), choices):
            each = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return ", ".join(f"`{ast.literal_eval(choice)}`" for choice in each)
        case ast.Subscript(ast.Name("Annotated"), ast.Tuple([ast.Name(kind), ast.Call(keywords=limits)])):
            signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
            return f"{NUMBERS[kind]} " + ", ".join(f"{signs[str(x.arg)]} {ast.unparse(x.value)}" for x in limits)
    return TYPES[ast.unparse(annotation)]


def _as_yaml(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case tuple():
            return str(list(value))
    return str(value)
