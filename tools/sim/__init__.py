"""A simulator of checkpoints in a cluster: what intervals, policies and bits cost, at rates that were measured."""
