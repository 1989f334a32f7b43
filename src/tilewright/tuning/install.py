"""A finished folder put in the place of an earlier one, in one step where the system has it."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

# linux/fs.h, fcntl.h: exchange two names; paths relative to the working directory.
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


def install_folder(staging: Path, output: Path, stale: Collection[str] = ()) -> None:
    """Make `staging` the folder `output`; what `output` was before is gone, as a whole.

    Whoever opens `output` by its name finds the old content or the new, whenever this process ends:
    the two folders change places in one step. Where the system cannot do that (it is not Linux, or
    the file system does not know how), there is an instant without `output`, and the old folder
    stands beside it then.

    Args:
        staging: a finished folder beside `output`, on the same file system.
        output: where it goes. What is there beyond `staging` stays.
        stale: names of entries of `output` that do not.

    Raises:
        OSError: `output` is as it was then.
    """
    staging.chmod(0o755)
    if not output.exists():
        output.parent.mkdir(parents=True, exist_ok=True)
        os.replace(staging, output)
        return
    for path in output.iterdir():
        if path.name not in stale and not os.path.lexists(staging / path.name):
            _link(path, staging / path.name)
    # A link to a folder stays one: its target is what is exchanged.
    place = output.resolve()
    if not _exchange(staging, place):
        staging = _replace(staging, place)
    shutil.rmtree(staging, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """The same file under a second name, or a copy; a folder with all that is in it."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True, copy_function=_link_file)
    else:
        _link_file(str(source), str(target))


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        # Some file systems have no hard links.
        shutil.copy2(source, target, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> bool:
    """Let two folders change places; False where that is not possible."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    names = (os.fsencode(one.absolute()), os.fsencode(other.absolute()))
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _replace(staging: Path, output: Path) -> Path:
    """Two renames; where the old folder is now."""
    aside = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent)) / "earlier"
    os.rename(output, aside)
    try:
        os.rename(staging, output)
    except BaseException:
        os.rename(aside, output)
        raise
    return aside.parent
