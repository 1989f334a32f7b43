"""Reads a schedule's JSON and applies it; a fault of the file is one line, as of a command."""

from __future__ import annotations

import sys
from pathlib import Path

from tilewright import te
from tilewright.errors import UserError


def main(path: str) -> int:
    a = te.placeholder((16, 24), name="A")
    b = te.placeholder((24, 8), name="B")
    k = te.reduce_axis(24, "k")
    c = te.compute((16, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    try:
        schedule = te.Trace.from_json(Path(path).read_text(errors="replace")).apply(c)
        te.lower(schedule, [a, b, c])
    except OSError:
        return 0
    except (UserError, te.ScheduleError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
