"""What became of each mutant: kept for the next run, and as a report."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
from catalogue import MUTANTS, OFFSETS, RESULTS, ROOT
from mutant import Mutant

LAST_RUN = ROOT / "out" / "mutants.json"


@dataclass(frozen=True)
class Verdict:
    """`killer`: the test that failed, `crash`, `timeout`, or empty if all passed."""

    mutant: Mutant
    killer: str
    reason: str
    wall_s: float

    @property
    def is_killed(self) -> bool:
        return bool(self.killer)


def kernels_hash() -> str:
    """Return what changes when a kernel or a wrapper does."""
    digest = hashlib.sha256()
    for path in sorted({mutant.file for mutant in MUTANTS}):
        digest.update((ROOT / "gpu" / path).read_bytes())
    return digest.hexdigest()


def save(verdicts: Sequence[Verdict]) -> None:
    """Keep verdicts for `--survivors`."""
    LAST_RUN.parent.mkdir(exist_ok=True)
    rows = [[v.mutant.name, v.killer, v.reason, v.wall_s] for v in verdicts]
    LAST_RUN.write_text(json.dumps({"kernels": kernels_hash(), "verdicts": rows}))


def killed_before() -> list[Verdict]:
    """Return the kills of the last run, if it was of the same kernels: more tests only kill more."""
    if not LAST_RUN.exists():
        raise SystemExit(f"{LAST_RUN} is not there: run all mutants first")
    last = json.loads(LAST_RUN.read_text())
    if last["kernels"] != kernels_hash():
        raise SystemExit("the kernels have changed since the last run: run all mutants")
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    return [Verdict(by_name[name], *rest) for name, *rest in last["verdicts"] if rest[0]]


def render(verdicts: Sequence[Verdict], num_before: int = 0) -> str:
    """Return the report; `num_before` of the verdicts are kills of an earlier run."""
    order = {mutant.name: number for number, mutant in enumerate(MUTANTS)}
    verdicts = sorted(verdicts, key=lambda verdict: order[verdict.mutant.name])
    num_killed = sum(verdict.is_killed for verdict in verdicts)
    survivors = [verdict.mutant for verdict in verdicts if not verdict.is_killed]
    proved = [mutant for mutant in survivors if mutant.why_equivalent]
    num_real = len(verdicts) - len(proved)
    lines = [
        "# Mutants of the kernels",
        "",
        "`make mutants`",
        "",
        "Each line is one fault planted in a copy of the kernels, run in Triton's interpreter on a CPU, and the first",
        "test that fails. Nothing here ran on a GPU: what a compiler does wrong, or a race that needs two programs at",
        "once, is not planted.",
        "",
        f"{len(verdicts)} mutants: {num_killed} killed, {len(proved)} equivalent, "
        f"{len(survivors) - len(proved)} survived: {num_killed / num_real:.1%} of those that are faults.",
        *(
            [f"{num_before} of the kills are of a run before, of the same kernels (`--survivors`)."]
            if num_before
            else []
        ),
        "",
        "| mutant | file | first test that fails | how |",
        "|---|---|---|---|",
    ]
    for verdict in verdicts:
        killer = verdict.killer.removeprefix("tests/gpu/") or "**none**"
        reason = verdict.reason.replace("|", "\\|")[:120]
        lines.append(f"| {verdict.mutant.name} | {verdict.mutant.file} | {killer} | {reason} |")
    lines += ["", "## Survivors", ""]
    for mutant in survivors:
        lines.append(f"- {mutant.name}: {mutant.why_equivalent or '**not explained**'}")
    if not survivors:
        lines.append("None.")
    lines += [
        "",
        f"torch {torch.__version__}, triton {triton.__version__}; tests: {', '.join([*RESULTS, *OFFSETS])}.",
    ]
    return "\n".join(lines) + "\n"
