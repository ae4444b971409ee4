"""What a validation found."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cnrfmt.errors import DamagedError, UnsupportedError

Severity = Literal["damage", "note", "unjudged"]
Level = Literal["structure", "digests", "full"]


@dataclass(frozen=True)
class Finding:
    """One broken rule, or one thing worth knowing (a note), or one thing that can't be judged."""

    rule: str
    severity: Severity
    place: str
    expected: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{self.severity} {self.rule}: {self.place}: expected {self.expected}, found {self.found}"
        return f"{text}; {self.advice}" if self.advice else text


@dataclass
class Report:
    """The findings of `cnrfmt.verify`; `versions` are those that were looked at."""

    path: str
    level: Level
    versions: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _known: set[Finding] = field(default_factory=set, repr=False, compare=False)

    @property
    def sound(self) -> bool:
        """Whether no damage was found and nothing had to be left unjudged."""
        return self.verdict == "sound"

    @property
    def verdict(self) -> Literal["sound", "damaged", "unjudged"]:
        """Damage outweighs what can't be judged; notes don't count."""
        severities = {f.severity for f in self.findings}
        if "damage" in severities:
            return "damaged"
        return "unjudged" if "unjudged" in severities else "sound"

    @property
    def exit_code(self) -> int:
        """0 sound, 1 damaged, 3 can't judge."""
        return {"sound": 0, "damaged": 1, "unjudged": 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return {
            "path": self.path,
            "verdict": self.verdict,
            "level": self.level,
            "versions": self.versions,
            "findings": [asdict(f) for f in self.findings],
        }

    def note(self, name: str, place: str, found: object, advice: str = "") -> None:
        """Adds something worth knowing that is no damage."""
        self._add(Finding(name, "note", place, "nothing", str(found), advice))

    def add(self, error: DamagedError | UnsupportedError) -> None:
        """Adds what a parser or a reader raised; the same finding counts once."""
        if isinstance(error, DamagedError):
            self._add(
                Finding(
                    error.rule, "damage", error.place, error.expected, error.found, error.advice
                )
            )
        else:
            self._add(
                Finding(
                    "feature",
                    "unjudged",
                    error.place,
                    "features that this release knows",
                    error.feature,
                    "upgrade cnrfmt to judge it",
                )
            )

    def _add(self, finding: Finding) -> None:
        if finding not in self._known:
            self._known.add(finding)
            self.findings.append(finding)
