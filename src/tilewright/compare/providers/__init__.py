"""Providers of code to compare, one module for each library or compiler."""
