"""The command line."""

from __future__ import annotations

import time

#: When the process began, by `time.monotonic`: what it imports is part of a user's time limit.
BEGAN = time.monotonic()
