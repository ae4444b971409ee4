"""From a checkpoint back into a model."""
