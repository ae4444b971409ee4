"""How rows become the bytes of a part, and bytes rows: the encodings, and row indexes."""

from cnrfmt.encodings.base import Coder, Encoded, Encoder, Recipe, coder, encoder

__all__ = ["Coder", "Encoded", "Encoder", "Recipe", "coder", "encoder"]
