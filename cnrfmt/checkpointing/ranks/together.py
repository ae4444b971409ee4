"""What one rank raises, all raise: results and errors travel together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cnrfmt import errors
from cnrfmt.checkpointing.ranks.coordinator import Coordinator
from cnrfmt.errors import (
    CnrError,
    CommitError,
    CommitUnknownError,
    DamagedError,
    RankLostError,
    SilenceError,
    StorageError,
    UnsupportedError,
)
from cnrfmt.format import strict_json

PLAN = "plan"
"""Where ranks meet that plan a checkpoint."""


def together(coordinator: Coordinator, name: str, own: Callable[[], bytes]) -> list[bytes]:
    """What `own` gave on each rank, in the order of the ranks.

    Where it raised on some, all ranks raise an error of the class that the lowest of them met; on that rank it is the
    error itself. Raises `SilenceError` where the coordinator raises anything but a `RankLostError`.
    """
    mine: Exception | None = None
    try:
        payload = b"+" + own()
    except Exception as error:
        mine, payload = error, b"-" + _packed(error)
    try:
        told = coordinator.gather(name, payload)
    except RankLostError as error:
        raise error from mine
    except Exception as error:
        raise SilenceError(
            f"{name}: the coordinator failed ({type(error).__name__}: {error}), so that it isn't known what the other "
            "ranks said; end all ranks and start them together again"
        ) from error
    return opened(dict(enumerate(told)), coordinator.rank, mine)


def fail_together(coordinator: Coordinator, error: Exception) -> None:
    """Tells the others, where they plan a checkpoint, that this rank can't, and why. It doesn't raise."""

    def own() -> bytes:
        raise error

    # It is this very error that comes back, if no other.
    with suppress(Exception):
        together(coordinator, PLAN, own)


def opened(payloads: Mapping[int, bytes], rank: int, mine: Exception | None) -> list[bytes]:
    """What these ranks' `own` gave; raises the error of the lowest that has one, `mine` where that is `rank`."""
    for other, payload in sorted(payloads.items()):
        if payload[:1] == b"-":
            if other == rank and mine is not None:
                raise mine
            raise _unpacked(payload[1:], other) from mine
    return [payload[1:] for _, payload in sorted(payloads.items())]


def _packed(error: Exception) -> bytes:
    """An error as JSON: its class, its text, and what else its class keeps."""
    kind = next((k.__name__ for k in type(error).__mro__ if _SIMPLE.get(k.__name__) is k), None)
    text = str(error) if kind else f"{type(error).__name__}: {error}"
    said: dict[str, Any] = {"kind": kind, "text": _readable(text)}
    if isinstance(error, StorageError):
        said |= {"errno": error.errno, "text": _readable(str(error.strerror or error)), "file": None}
        said["file"] = None if error.filename is None else _readable(str(error.filename))
    elif isinstance(error, DamagedError):
        said["damage"] = [_readable(x) for x in (error.rule, error.place, error.expected, error.found, error.advice)]
    elif isinstance(error, UnsupportedError):
        said["needs"] = [_readable(error.place), _readable(error.feature)]
    elif isinstance(error, CommitUnknownError):
        said["version"] = error.version
        said["ids"] = [None if x is None else x.hex() for x in (error.commit_id, error.state)]
        said["state"] = None if error.state is None else error.state.hex()
    return strict_json.dump(said)


def _readable(text: str) -> str:
    """Text that UTF-8 can say: names of files may be none."""
    return text.encode("utf-8", "backslashreplace").decode()


_SIMPLE: dict[str, type[CnrError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, CnrError) and "__init__" not in vars(kind)
}
"""The errors that are a text and nothing more."""


def _unpacked(data: bytes, rank: int) -> CnrError:
    """The error of another rank; one that isn't ours becomes a `CommitError`."""
    said = strict_json.parse(data, f"the error of rank {rank}")
    text = f"rank {rank}: {said['text']}"
    if "damage" in said:
        rule, place, expected, found, advice = said["damage"]
        return DamagedError(rule, f"rank {rank}: {place}", expected=expected, found=found, advice=advice)
    if "needs" in said:
        return UnsupportedError(f"rank {rank}: {said['needs'][0]}", said["needs"][1])
    if "errno" in said:
        return StorageError(said["errno"], text, said["file"])
    error = _SIMPLE.get(said["kind"] or "", CommitError)(text)
    if isinstance(error, CommitUnknownError):
        error.version = said["version"]
        error.commit_id, error.state = (None if x is None else bytes.fromhex(x) for x in said["ids"])
        error.state = None if said["state"] is None else bytes.fromhex(said["state"])
    return error
