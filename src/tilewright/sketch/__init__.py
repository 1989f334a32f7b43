"""Kernels of our own: from a site's ops to a tensor expression, to schedules with knobs, to what
plain `iree-compile` takes."""
