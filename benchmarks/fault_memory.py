"""Runs `tilewright` with no more than so many MB of memory: MB, then the command line."""

from __future__ import annotations

import resource
import sys

from tilewright.cli.main import main

if __name__ == "__main__":
    most = int(sys.argv.pop(1)) << 20
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    main()
