"""The release of this library, and its single source.

``pyproject.toml`` reads it when a package is built and ``cnrfmt.__version__`` repeats it, so that
the two agree also where the library is run from a checkout without being installed. It isn't the
version of the format: that stands in ``spec/`` and in every segment's header.
"""

from __future__ import annotations

__version__ = "0.1.0"
