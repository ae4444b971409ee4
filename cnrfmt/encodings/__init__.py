"""How rows become the bytes of a part, and bytes rows: raw and row-wise encodings, and row indexes."""

from cnrfmt.encodings.base import Coder, coder

__all__ = ["Coder", "coder"]
