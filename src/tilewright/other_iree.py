"""Another version of IREE than the installed one, in a process of its own.

The compiler's bindings, its library and the runtime must be of one version, and a process has one
of each. So what another version is asked runs in a process whose path begins with a folder that has
that version's packages and nothing else; tilewright and all else stay this environment's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright import scratch
from tilewright.errors import UserError
from tilewright.files import user_folder_file
from tilewright.toolchain import ANY_VERSION, IREE_COMPILE, IREE_PACKAGES

_VERSION = re.compile(r"[0-9]+\.[0-9]+(\.[0-9]+[a-z0-9.+]*)?")
_ASK_TIMEOUT_S = 60.0
_INSTALL_TIMEOUT_S = 1800.0
# Run by the other environment's Python, which need not have tilewright.
_ASK = f"""
import importlib.metadata as metadata, json, sys
import iree.compiler, iree.runtime
import iree
found = [metadata.distribution(name) for name in {IREE_PACKAGES!r}]
print(json.dumps({{
    "tag": sys.implementation.cache_tag,
    "packages": list(iree.__path__),
    "versions": [one.version for one in found],
    "metadata": [str(one.locate_file("")) for one in found],
}}))
"""


@dataclass(frozen=True)
class OtherIree:
    """IREE's packages of one version. path: a folder that has them, for the front of a path."""

    version: str
    path: Path

    def run(self, arguments: Sequence[str]) -> int:
        """Run a command of tilewright with this version in a process of its own.

        Args:
            arguments: of `tilewright`.

        Returns:
            Its exit status; what it prints goes where this process prints.
        """
        places = [str(self.path), *(place for place in sys.path if place)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), ANY_VERSION: "1"}
        command = [sys.executable, "-P", "-m", "tilewright", *arguments]
        return subprocess.run(command, env=environment, check=False).returncode


@contextlib.contextmanager
def other_iree(wanted: str, option: str = "--against") -> Iterator[OtherIree]:
    """Find a version of IREE.

    Args:
        wanted: a version (`3.12`, `3.12.0`), which is installed into the user's cache; a Python
            environment or its interpreter; or a folder with `iree-compile`, of an environment or of
            an installed package.
        option: what asked for it, for messages.

    Yields:
        The version, until the block ends.

    Raises:
        UserError: it is none of these, or is for another version of Python.
    """
    given = Path(os.path.expanduser(wanted))
    with scratch.folder() as work:
        if _VERSION.fullmatch(wanted) and not given.exists():
            packages = _installed(wanted, option)
            python, extra = Path(sys.executable), [str(packages)]
        elif (packages_of := _packages_folder(given)) is not None:
            python, extra = Path(sys.executable), [str(packages_of)]
        else:
            python, extra = _interpreter(given, option), []
        found = _ask(python, extra, wanted, option)
        if found["tag"] != sys.implementation.cache_tag:
            raise UserError(
                f"{option}: {wanted} is an environment of {found['tag']}, this one is of "
                f"{sys.implementation.cache_tag}: make one with {sys.executable} -m venv, or run "
                "a tilewright that is installed there"
            )
        yield OtherIree(found["versions"][0], _linked(found, work / "iree-packages"))


def _packages_folder(given: Path) -> Path | None:
    """The folder of packages that a folder is, or is inside of, where no interpreter is beside."""
    for place in (given, *given.parents[:3]):
        if (place / "iree" / "compiler").is_dir() and not (given / "pyvenv.cfg").exists():
            return place.absolute()
    return None


def _interpreter(given: Path, option: str) -> Path:
    """The Python of an environment, of a folder of its tools, or that which is given itself."""
    if given.is_file() and os.access(given, os.X_OK) and given.name.startswith("python"):
        return given.absolute()
    for place in (given / "bin", given / "Scripts", given):
        for name in ("python", "python3", "python.exe"):
            if (place / name).is_file():
                # Not resolved: what an environment is, its own link says.
                return (place / name).absolute()
    if (given / IREE_COMPILE).is_file():
        raise UserError(
            f"{option}: {given} has {IREE_COMPILE}, but neither Python nor IREE's packages beside "
            "it, which read what it compiles: give a Python environment with "
            f"{' and '.join(IREE_PACKAGES)} of that version"
        )
    raise UserError(
        f"{option}: '{given}' is no version, no Python environment and no folder with "
        f"{IREE_COMPILE}; give a version such as 3.12, or the folder of an environment with "
        f"{' and '.join(IREE_PACKAGES)}"
    )


def _ask(python: Path, extra: Sequence[str], wanted: str, option: str) -> dict[str, Any]:
    """What an environment has of IREE."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if extra:
        environment["PYTHONPATH"] = os.pathsep.join([*extra, *(p for p in sys.path if p)])
    try:
        asked = subprocess.run(
            [str(python), "-P", "-c", _ASK],
            env=environment,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{option}: {wanted}: {python} does not run ({error})") from error
    if asked.returncode != 0:
        lines = asked.stderr.strip().splitlines()
        raise UserError(
            f"{option}: {wanted} has no IREE that can be imported "
            f"({lines[-1] if lines else f'exit status {asked.returncode}'}); install it there: "
            f"{python} -m pip install {' '.join(IREE_PACKAGES)}"
        )
    found: dict[str, Any] = json.loads(asked.stdout.strip().splitlines()[-1])
    return found


def _linked(found: dict[str, Any], folder: Path) -> Path:
    """A folder with links to IREE's packages and to what says their versions."""
    (folder / "iree").mkdir(parents=True)
    for portion in map(Path, found["packages"]):
        for part in portion.iterdir() if portion.is_dir() else ():
            link = folder / "iree" / part.name
            if not link.exists() and part.name != "__pycache__":
                link.symlink_to(part)
    for place, name in zip(found["metadata"], IREE_PACKAGES, strict=True):
        for part in Path(place).glob(f"{name.replace('-', '_')}-*.dist-info"):
            link = folder / part.name
            if not link.exists():
                link.symlink_to(part)
    return folder


def _installed(version: str, option: str) -> Path:
    """The packages of a version in the user's cache, where pip puts them the first time."""
    name = f"{version}-{sys.implementation.cache_tag}"
    place = user_folder_file("cache", "iree") / name
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    # It appears whole: an install that was ended is not taken for one.
    partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=place.parent))
    exact = version if version.count(".") > 1 else f"{version}.*"
    wanted = [f"{package}=={exact}" for package in IREE_PACKAGES]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial)]
    try:
        done = subprocess.run(
            [*pip, *wanted], capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            lines = [x for x in done.stderr.strip().splitlines() if "ERROR" in x or "error" in x]
            raise UserError(
                f"{option}: pip does not install IREE {version}: "
                f"{lines[-1] if lines else done.stderr.strip()[-200:] or 'it says nothing'}; give "
                "the folder of an environment that has it"
            )
        partial.rename(place)
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{option}: installing IREE {version} took over 30 minutes") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place
