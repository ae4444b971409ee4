"""What checkpoints cost in a cluster: stall, bandwidth, storage and lost work against interval, policy and bits.

    python -m tools.sim                                         measures this machine first, a quarter of a minute
    python -m tools.sim --text tools/sim/results/tradeoffs.txt --plot docs/images/checkpoint_tradeoffs.png
    python -m tools.sim --rank-gb 64 --storage 100 --failures 5000

Rates of one core and one disk are measured on this machine, or given; the command that is printed first gives them, and
repeats the run to the last digit. What is assumed of the cluster is printed, too. Sizes come from the library's own
estimates, which its tests hold against real files. Nothing here is a measurement of a cluster.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tools.progress import at_least, write_text
from tools.sim.cluster import Assumed, Measured
from tools.sim.measuring import BITS, as_options, measure
from tools.sim.report import Simulation, sections


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the simulator with these arguments (those of the process if None)."""
    parser = _parser()
    args = parser.parse_args(argv)
    assumed = Assumed(rank_bytes=args.rank_gb * 1e9, storage=args.storage * 1e9, failures=1 / args.failures)
    measured, given = _measured(parser, args, assumed)
    sim = Simulation(measured, assumed, args.seed, args.runs)
    defaults = Assumed()
    changed = [
        f" --{name} {value:g}"
        for name, value, usual in (
            ("rank-gb", args.rank_gb, defaults.rank_bytes / 1e9),
            ("storage", args.storage, defaults.storage / 1e9),
            ("failures", args.failures, 1 / defaults.failures),
        )
        if value != usual
    ]
    lines = [
        f"$ python -m tools.sim --seed {args.seed} --runs {args.runs}{''.join(changed)} {as_options(measured)}",
        f"rates in MB/s of one core and one disk, {'as given' if given else 'measured on this machine just now'}",
        "",
        *sections(sim),
    ]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if args.text is not None:
        write_text(args.text, text)
    if args.plot is not None:
        from tools.sim.plot import draw

        draw(sim, args.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, what in (("encode", "one behind the other"), ("gather", "from all over their table")):
        parser.add_argument(
            f"--{name}",
            nargs=len(BITS),
            metavar="BITS=MB/s",
            help=f"a core's rate of encoding float32 rows {what}, for {', '.join(map(str, BITS))} bits",
        )
    parser.add_argument("--copy", type=float, metavar="MB/s", help="of one core, into fresh memory")
    parser.add_argument("--disk", type=float, metavar="MB/s", help="of one disk, synced")
    parser.add_argument("--folder", type=Path, default=Path(), metavar="DIR", help="where writing is measured")
    parser.add_argument("--rounds", type=at_least(1), default=3, metavar="N", help="of measuring (default: 3)")
    parser.add_argument("--rank-gb", type=float, default=32, metavar="GB", help="tables of a rank (default: 32)")
    parser.add_argument("--storage", type=float, default=20, metavar="GB/s", help="of all ranks together (default: 20)")
    parser.add_argument("--failures", type=float, default=2000, metavar="H", help="a node's hours per failure (2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--runs", type=at_least(1), default=500, metavar="N", help="that are drawn (default: 500)")
    parser.add_argument("--text", type=Path, metavar="FILE", help="write what is printed there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it")
    return parser


def _measured(parser: argparse.ArgumentParser, args: argparse.Namespace, assumed: Assumed) -> tuple[Measured, bool]:
    """The rates, and whether they were given."""
    options = (args.encode, args.gather, args.copy, args.disk)
    if all(value is None for value in options):
        found = measure(args.folder, assumed.dim, args.rounds)
        # As they are printed, so that the printed command gives the same figures.
        args = _parser().parse_args(as_options(found).split())
    elif any(value is None for value in options):
        parser.error("--encode, --gather, --copy and --disk are given together, or measured together")
    try:
        encode, gather = (
            {int(bits): float(rate) * 1e6 for bits, _, rate in (word.partition("=") for word in words)}
            for words in (args.encode, args.gather)
        )
    except ValueError:
        parser.error("--encode and --gather take BITS=MB/s, such as 8=4000")
    if set(encode) != set(BITS) or set(gather) != set(BITS):
        parser.error(f"--encode and --gather take a rate for each of {', '.join(map(str, BITS))} bits")
    rates = [*encode.values(), *gather.values(), args.copy, args.disk]
    if min(rates) <= 0:
        parser.error("rates are above 0")
    return Measured(encode, gather, args.copy * 1e6, args.disk * 1e6), options[0] is not None


if __name__ == "__main__":
    raise SystemExit(main())
