"""Bytes to objects and back, as `spec/format.md` lays them down. No I/O, no numba."""
