"""The trainer's side: what changed, when to write it and how, and what to keep.

`manager` is what a trainer calls; `saving` has one checkpoint under way, `checkpointer` makes one after the other;
`policies` and `bits` decide, `snapshot` encodes, `writing` commits.
"""
