"""Compiled loops: module-level functions, arrays in and out, no I/O, no validation.

Each runs on one thread and releases the interpreter's lock; callers spread work over threads.
"""
