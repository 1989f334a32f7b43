"""Compiled modules: made from programs, looked into, run and benchmarked."""
