"""Write, merge, check and explain tuning specs, which carry winners into `iree-compile`."""
