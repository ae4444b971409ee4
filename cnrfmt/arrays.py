"""The arrays that pass between the rooms, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
"""An array of any data type."""
Bytes = npt.NDArray[np.uint8]
"""Bytes as they lie in a file, 1-D unless said otherwise."""
Ids = npt.NDArray[np.int64]
"""Row ids, keys, or positions of rows."""
Words = npt.NDArray[np.uint64]
"""Digests, or the words of row indexes and bitmaps."""
