"""The pages tell the truth: their commands run, their links lead somewhere, nothing is stale."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from console import blocks, commands

from warm_start import run_warm

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if commands(page)]
# Pages show efforts that a reader would choose; the tests have less time. What a page says itself
# of variants and kernels comes later on the line, and counts.
FEWER = {
    "tilewright tune examples/mlp": "tilewright tune --only dispatch_1 examples/mlp",
    "tilewright tune": "tilewright tune --max-trials 1 --variants default --kernels off",
    "--runs 10": "--runs 2",
    "--points 16": "--points 6",
    "sample:2": "sample:1",
    "64:192:64": "64:128:64",
    "--repetitions 20": "--repetitions 2",
    "1,4,16": "4",
}
# What these show takes 7 s and more; the parts of it are tested by themselves.
LONG = (
    "ci.md",
    "compare.md",
    "config-file.md",
    "database.md",
    "kernels.md",
    "profiler.md",
    "replay.md",
    "result-folder.md",
    "run-and-bench.md",
    "strategies.md",
    "strategy-libraries.md",
    "tracing.md",
    "tutorial-matmul.md",
    "tutorial-model.md",
)


_LINK = re.compile(r"\]\(([^)]+)\)")


def page_id(page: Path) -> str:
    return page.name


def test_the_tutorials_have_commands() -> None:
    names = {page.name for page in WITH_COMMANDS}
    assert {"tutorial-first-run.md", "tutorial-matmul.md", "tutorial-model.md"} <= names


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in LONG else [])
        for page in WITH_COMMANDS
    ],
    ids=page_id,
)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "TILEWRIGHT_DB": str(tmp_path / "trials.db"),
        "TILEWRIGHT_TRACEBACK": "1",
    }
    for command in commands(page):
        shown = command
        for many, few in FEWER.items():
            shown = shown.replace(many, few)
        done = run(shown, tmp_path, environment)
        assert done.returncode == 0, f"$ {shown}\n{done.stdout}\n{done.stderr}"


def run(
    command: str, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run it as a shell does; what is but our command, without the start."""
    name, *arguments = shlex.split(command)
    if name == "tilewright" and ">" not in arguments:
        return run_warm(arguments, module=name, folder=folder, environment=environment)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in headings(file), f"{page.name}: {target}"


def test_the_readme_leads_to_every_page() -> None:
    linked = set(_LINK.findall((ROOT / "README.md").read_text()))
    assert not [page.name for page in PAGES[1:] if f"docs/{page.name}" not in linked]


def test_the_links_are_seen() -> None:
    assert sum(len(_LINK.findall(page.read_text())) for page in PAGES) > 40


def headings(page: Path) -> set[str]:
    """The anchors that a page has on GitHub."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_file_on_its_page_is_the_example() -> None:
    shown = blocks(ROOT / "docs" / "config-file.md", "ini")[0]
    assert shown == (ROOT / "examples" / "auto-scheduler.cfg").read_text()


def test_python_blocks_are_python() -> None:
    found = [(page.name, block) for page in PAGES for block in blocks(page, "python")]
    assert len({name for name, _ in found}) >= 3
    for name, block in found:
        compile(block, name, "exec")


def test_the_result_folder_page_names_every_key_and_column() -> None:
    import dataclasses

    from tilewright.tuning.result import DispatchSummary, ProgramSummary, RunSummary, TuneResult
    from tilewright.tuning.tables import TRIAL_COLUMNS

    text = (ROOT / "docs" / "result-folder.md").read_text()
    keys = [
        f.name
        for kind in (ProgramSummary, DispatchSummary, RunSummary, TuneResult)
        for f in dataclasses.fields(kind)
    ]
    missing = [name for name in (*keys, *TRIAL_COLUMNS) if f"`{name}`" not in text]
    assert not missing


def test_the_design_names_every_package_and_ground_floor_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text()
    source = ROOT / "src" / "tilewright"
    names = [f"{p.parent.name}/" for p in source.glob("*/__init__.py")]
    names += [p.stem for p in source.glob("[a-z]*.py")]
    assert not [name for name in names if f"`{name}`" not in text]
