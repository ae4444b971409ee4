"""``cnrfmt verify``: every finding, and what to do about them."""

from __future__ import annotations

import argparse

import cnrfmt
from cnrfmt.cli import output
from cnrfmt.cli.options import Verbs, add_path, add_threads, add_verb
from cnrfmt.verification import Report

_LEVELS = {
    "structure": "blocks, manifests and tables of contents fit together; rows and their digests were not looked at",
    "digests": "every byte matches its digest; what the rows say was not looked at",
    "full": "every byte matches its digest, and indexes, codes and dense entries keep their rules",
}
MAY_BE_FOREIGN = {"file-header", "directory-layout"}
"""Rules that anything breaks which is no container."""
_STYLES = {"sound": "good", "damaged": "bad", "unjudged": "doubtful"}


def add(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs,
        "verify",
        _run,
        "Checks every retained version of a checkpoint and lists all findings.",
        """Each finding names a rule of the format, the place, what was expected and what was found. Damage is what
        counts; a note is worth knowing and harmless, such as the remains of an interrupted write.""",
        """
        cnrfmt verify model.cnr
        cnrfmt verify run7 --level structure
        cnrfmt verify run7 --json
        """,
    )
    add_path(parser)
    parser.add_argument(
        "--level",
        choices=tuple(_LEVELS),
        default="full",
        help="how deep to look: structure reads metadata alone, digests reads every byte, "
        "full (the default) also judges what the rows say",
    )
    add_threads(parser)


def _run(args: argparse.Namespace) -> int:
    with output.progress("verifying", shown=not args.json) as progress:
        report = cnrfmt.verify(
            args.path, level=args.level, threads=args.threads, progress=progress
        )
    if args.json:
        output.write_json(report.to_json())
    else:
        _write(report)
    return report.exit_code


def _write(report: Report) -> None:
    for finding in report.findings:
        style = {"damage": "bad", "unjudged": "doubtful"}.get(finding.severity, "bold")
        output.write(f"{output.styled(finding.severity, style)} {output.clean(finding.rule)}")
        output.write(f"    at        {output.clean(finding.place)}")
        if finding.severity != "note":
            output.write(f"    expected  {output.clean(finding.expected)}")
        output.write(f"    found     {output.clean(finding.found)}")
        # The usual advice is to run this very verb; what is left of it stands in the verdict.
        if finding.advice and not finding.advice.startswith("run `cnrfmt verify`"):
            output.write(f"    advice    {output.clean(finding.advice)}")
    verdict = {"unjudged": "can't judge"}.get(report.verdict, report.verdict)
    shown = output.styled(verdict, _STYLES[report.verdict])
    output.write(f"{output.clean(report.path)}: {shown}: {_words(report)}")


def _words(report: Report) -> str:
    versions = report.versions
    noun = "version" if len(versions) == 1 else "versions"
    looked_at = f"{noun} {output.span_of(sorted(versions))}" if versions else "no version"
    notes = sum(f.severity == "note" for f in report.findings)
    if report.verdict == "sound":
        harmless = f"; {output.plural(notes, 'harmless note')} above" if notes else ""
        return f"{looked_at}: {_LEVELS[report.level]}{harmless}"
    if report.verdict == "unjudged":
        return "it needs features that this release of cnrfmt doesn't know; upgrade cnrfmt and verify again"
    damage = [f for f in report.findings if f.severity == "damage"]
    count = output.plural(len(damage), "finding")
    if {f.rule for f in damage} == {"slot"} and len(damage) == 1:
        return (
            f"{count}, and nothing is lost: the other slot names the newest version; the next append renews this one"
        )
    if {f.rule for f in damage} & MAY_BE_FOREIGN:
        return f"{count}; or it isn't a cnr container at all"
    if not versions:
        return (
            f"{count}, and no version can be read. Put a sound copy in its place, or what `cnrfmt salvage` makes of it"
        )
    return (
        f"{count} ({looked_at} looked at). Don't append to it; put a sound copy in its place, or what `cnrfmt salvage` "
        "makes of it. Until then reading is safe: whatever is damaged is refused with an error, other rows and "
        "versions can still be read"
    )
