"""Damage: every way to spoil a golden container, and whether it is found."""
