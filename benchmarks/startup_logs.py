"""Predicted KV-cache sizes against those that engines printed in public start-up logs.

`python benchmarks/startup_logs.py > reports/startup-logs.md`. The logs are facts in
tests/cases/startup_logs.toml; each is sized as `kvtwin size --engine-log` does it, and once more
without its memory lines.
"""

import re
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvtwin.analysis.sizing.from_log import NEWEST
from kvtwin.analysis.sizing.options import SizeInputs
from kvtwin.analysis.sizing.setting import load_setting
from kvtwin.sim import find_gpu
from kvtwin.sim.sizing.engine_log import (
    LogFacts,
    check_log,
    first_disagreement,
    read_engine_log,
)
from kvtwin.sim.sizing.size import Sizing, size
from kvtwin.sim.sizing.stage_bytes import kv_bytes_per_token
from kvtwin.traces import UserError

LOGS = Path(__file__).parents[1] / "tests/cases/startup_logs.toml"
Record = dict[str, Any]
# Settings of a record that are flags of `kvtwin size`; what is absent is the engine's default.
FLAGS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
)
FRACTIONS = ("mem_fraction_static", "free_gpu_memory_fraction")
PAGES = ("page_size", "tokens_per_block")
FITTED_TO = "llm-d-incubation/llm-d-planner"
ALL_OF_MEMORY = "weights and peak"
KV_MEMORY = "KV memory"
INTRODUCTION = """Command: `python benchmarks/startup_logs.py > reports/startup-logs.md`.

{num_logs} logs were collected from public issues, pull requests, pages and posts; their facts are in
tests/cases/startup_logs.toml, each with its source. Each is sized twice: as `kvtwin size --engine-log`
does it, with whatever memory the log states, and without its memory lines, from shapes and settings
alone. The estimates of sampling and of memory outside torch were fitted to vLLM 0.19's peaks in the
logs of llm-d-planner, so those say little about them and are summed up apart; the assumed CUDA-graph
memory is the median of eleven other logs. The engines ran elsewhere; nothing was measured on a GPU here.

- weights and peak: the log states all that is taken off, so the arithmetic of blocks is tested.
- KV memory: the log states what is left, not why.
- part of the memory: the rest is estimated from shapes, or the memory fraction is the engine's present
  default where the log does not state it.
- nothing: weights from shapes, all else estimated; the GPU's memory from the log or the catalogue.

vLLM V0 is sized by the arithmetic of 0.32 with its own defaults: steps of max(max_model_len, 2048)
tokens, of 2,048 beyond a context of 32,768, and nothing set aside for CUDA graphs. A log contradicts
itself if its own figures and the model's bytes per token do not agree within rounding; with several
ranks, one that printed nothing may have decided."""
PART = "part of the memory"
NOTHING = "nothing"


@dataclass(frozen=True)
class Row:
    """One prediction: `known` says what of the memory came from the log."""

    record: Record
    known: str
    figure: str
    printed: int
    predicted: int
    remark: str = ""

    @property
    def is_fitted(self) -> bool:
        """Whether estimates were fitted to this log."""
        return str(self.record["source"]).startswith(FITTED_TO)

    @property
    def error(self) -> float:
        return self.predicted / self.printed - 1


def read_records() -> list[Record]:
    """Every log that was collected."""
    return list(tomllib.loads(LOGS.read_text(encoding="utf-8"))["log"])


def rows_of(record: Record) -> tuple[list[Row], list[str]]:
    """The predictions that can be made of one log, and why the others cannot."""
    rows, left_out = [], []
    log = _log_of(record)
    for wanted in ("log", NOTHING):
        try:
            row = _predict(record, log if wanted == "log" else None)
        except UserError as error:
            what = "with the log" if wanted == "log" else "without its memory lines"
            left_out.append(f"{record['id']}, {what}: {str(error).partition('; known are')[0]}")
            continue
        rows.append(row)
    return rows, left_out


def _log_of(record: Record) -> LogFacts:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{record['id']}.log"
        path.write_text("\n".join(record["lines"]) + "\n", encoding="utf-8")
        return read_engine_log(path)


def inputs_of(record: Record) -> SizeInputs:
    """The flags that a reader of the log would give."""
    given = {name: record[name] for name in FLAGS if name in record}
    for name in FRACTIONS:
        if name in record:
            given["gpu_memory_utilization"] = record[name]
    for name in PAGES:
        if name in record:
            given["block_size"] = record[name]
    if record.get("v1") is False:
        given = _v0_defaults(record) | given
    length = record.get("max_model_len", record["printed"].get("concurrency_at"))
    return SizeInputs(
        model=record.get("shape") or record["model"] or None,
        gpu=record["gpu"] if _is_known(record.get("gpu", "")) else None,
        gpu_memory_gib=record.get("total_gib"),
        accounting=record["engine"],
        max_model_len=length,
        kv_cache_dtype="fp8" if str(record.get("kv_cache_dtype")).startswith("fp8") else None,
        quantization=record.get("stored_as"),
        enforce_eager=record.get("enforce_eager"),
        **given,
    )


def _v0_defaults(record: Record) -> dict[str, Any]:
    """What vLLM V0 did where the flags say nothing (`engine/arg_utils.py` of 0.6 to 0.8)."""
    length = record.get("max_model_len", 0)
    # Longer contexts turned chunked prefill on, with steps of 2,048 tokens.
    tokens = max(length, 2048) if length <= 32768 else 2048
    return {"max_num_batched_tokens": tokens, "max_num_seqs": 256, "cuda_graph_gib": 0.0}


def _is_known(gpu: str) -> bool:
    try:
        find_gpu(gpu)
    except UserError:
        return False
    return True


def _predict(record: Record, log: LogFacts | None) -> Row:
    setting = load_setting(inputs_of(record), log)
    sizing = size(setting.logged or setting.deployment, setting.accounting)
    figure = "num_gpu_blocks" if "num_gpu_blocks" in record["printed"] else "num_tokens"
    if figure not in record["printed"]:
        raise UserError("the log prints neither blocks nor tokens")
    # The excerpts seldom state the version, the records do.
    numbers = re.match(r"(\d+)\.(\d+)", record["version"])
    version = (int(numbers[1]), int(numbers[2])) if numbers else NEWEST
    tokens = sizing.pool.num_tokens_printed_by(version)
    predicted = sizing.num_blocks if figure == "num_gpu_blocks" else tokens
    return Row(
        record=record,
        known=NOTHING if log is None else _known(sizing),
        figure="blocks" if figure == "num_gpu_blocks" else "tokens",
        printed=record["printed"][figure],
        predicted=predicted,
        remark="" if log is None else _contradiction(log, sizing),
    )


def _contradiction(log: LogFacts, sizing: Sizing) -> str:
    per_token = kv_bytes_per_token(sizing.deployment, sizing.stage)
    check = first_disagreement(check_log(log, per_token, sizing.pool.derived))
    return "" if check is None else f"the log contradicts itself: {check}"


def _known(sizing: Sizing) -> str:
    names = [term.name for term in sizing.terms]
    open_terms = [term for term in sizing.terms if "leaves open" in term.detail]
    if open_terms or "kv_cache_memory_bytes" in names:
        return KV_MEMORY
    # Without the memory fraction, which moves with versions, weights alone lead nowhere.
    guessed = sizing.deployment.memory_utilization is None
    if guessed or any(term.source == "estimate" for term in sizing.terms):
        return PART
    return ALL_OF_MEMORY


def all_rows() -> tuple[list[Row], list[str]]:
    """Every prediction that can be made, and why the others cannot."""
    rows, left_out = [], []
    for record in read_records():
        found, missing = rows_of(record)
        rows += found
        left_out += missing
    return rows, left_out


def main() -> None:
    records = read_records()
    rows, left_out = all_rows()
    print("# Predicted KV-cache sizes against public start-up logs")
    print()
    print(INTRODUCTION.format(num_logs=len(records)))
    print()
    print("| what the log gives | logs | median error % | worst error % |")
    print("|---|--:|--:|--:|")
    for known in (ALL_OF_MEMORY, KV_MEMORY, PART, NOTHING):
        of_kind = [row for row in rows if row.known == known]
        print(_summary(known, of_kind))
        agreeing = [row for row in of_kind if not row.remark]
        if len(agreeing) < len(of_kind):
            print(_summary(f"{known}, without logs that contradict themselves", agreeing))
    for words, fitted in (("that estimates were fitted to", True), ("of others", False)):
        some = [row for row in rows if row.known == NOTHING and row.is_fitted == fitted]
        print(_summary(f"{NOTHING}, logs {words}", some))
    for known in (ALL_OF_MEMORY, KV_MEMORY, PART, NOTHING):
        print(f"\n## Given: {known}\n")
        print("| log | engine | model | figure | printed | predicted | error % | source | remark |")
        print("|---|---|---|---|--:|--:|--:|---|---|")
        for row in rows:
            if row.known == known:
                print(_line(row))
    print(f"\n## Left out ({len(left_out)} predictions)\n")
    for reason in left_out:
        print(f"- {reason}")


def _summary(known: str, rows: list[Row]) -> str:
    errors = [100 * abs(row.error) for row in rows]
    return f"| {known} | {len(rows)} | {median(errors):.2f} | {max(errors):.2f} |"


def _line(row: Row) -> str:
    record = row.record
    engine = f"{record['engine']} {record['version'].partition('+')[0]}".strip()
    cells = (
        record["id"],
        engine,
        record["model"],
        row.figure,
        f"{row.printed:,}",
        f"{row.predicted:,}",
        f"{100 * row.error:+.2f}",
        record["source"],
        row.remark,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
