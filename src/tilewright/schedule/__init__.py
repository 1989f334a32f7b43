"""Tensor expressions, schedules of them, and their lowering to loops (user-facing: `te`)."""
