"""Chains made shorter, bit for bit."""
