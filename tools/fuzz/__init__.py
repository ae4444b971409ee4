"""Coverage-guided fuzzing of every parser and of whole containers.

`targets.py` lists the targets; `run.py` runs them under atheris, resumably; `minimise.py` brings a corpus into its
minimal form. The inputs in `corpus/` are replayed by `tests/fuzz/test_corpus.py`, without atheris.
"""
