"""What checkpoints cost: foretold, measured, drawn."""
