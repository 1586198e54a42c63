"""Compile every kernel for GPUs that are not there, and hold the code to its limits.

`python -m kvtwin.gpu.compile_table` writes reports/kernels-compiled.md; `--json` prints the same
instead. Nothing runs on a GPU, so nothing here is a measurement of time.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton

from .tools.compile_cases import CompileCase, compile_cases
from .tools.fake_driver import compile_only
from .tools.machine_code import MachineCode, machine_code

COMMAND = "python -m kvtwin.gpu.compile_table"
# Largest shared memory of a thread block in bytes (CUDA C++ Programming Guide, technical
# specifications per compute capability: 163 KB for 8.0, 227 KB for 9.0).
MAX_SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
# The pointers behind which K and V of the pool are read in the attention kernels.
KV_POINTERS = ("k_ptr", "v_ptr")
ATTENTION_KERNELS = ("decode_kernel", "prefill_kernel")


@dataclass(frozen=True)
class CompiledRow:
    """One kernel of one case for one arch, and the limits that it breaks."""

    case: CompileCase
    arch: int
    kernel_name: str
    code: MachineCode
    broken_limits: list[str]


def compiled_rows(cases: Sequence[CompileCase], archs: Sequence[int]) -> Iterator[CompiledRow]:
    """Compile the kernels of each case for each arch."""
    codes: dict[str, MachineCode] = {}  # by triton's hash: cases that differ elsewhere share code
    for case in cases:
        for arch in archs:
            with compile_only(arch) as launches:
                case.launch()
            for launch in launches:
                key = launch.compiled.hash
                code = codes[key] = codes.get(key) or machine_code(launch.compiled)
                broken = broken_limits(case, arch, launch.kernel_name, code)
                yield CompiledRow(case, arch, launch.kernel_name, code, broken)


def broken_limits(case: CompileCase, arch: int, kernel_name: str, code: MachineCode) -> list[str]:
    """Return what the code of a kernel does that it must not, a phrase each."""
    broken = []
    if code.shared_bytes > MAX_SHARED_BYTES[arch]:
        broken.append(f"{code.shared_bytes} bytes of shared memory, {MAX_SHARED_BYTES[arch]} exist")
    in_ptx = {width for widths in code.load_widths.values() for width in widths}
    if set(code.binary_load_widths) != in_ptx:
        broken.append(f"loads of {sorted(code.binary_load_widths)} bytes, {sorted(in_ptx)} in PTX")
    if not case.is_held_to_limits:
        return broken
    if code.num_spills or code.stack_bytes:
        broken.append(f"{code.num_spills} spills, {code.stack_bytes} bytes of stack")
    if kernel_name in ATTENTION_KERNELS:
        for pointer in KV_POINTERS:
            if set(code.load_widths.get(pointer, {})) != {16}:
                broken.append(f"{pointer} loaded by {code.load_widths.get(pointer)}, not 16 bytes")
        if code.num_dots != 2 or code.num_matrix_dots != 2:
            broken.append(f"{code.num_matrix_dots} of {code.num_dots} dots by matrix instructions")
        if code.num_matrix_instructions == 0:
            broken.append("no matrix instructions")
    return broken


def render(rows: Sequence[CompiledRow], archs: Sequence[int], command: str = COMMAND) -> str:
    """Return the report of what `command` compiled."""
    num_broken = sum(bool(row.broken_limits) for row in rows)
    num_spilling = sum(row.code.num_spills > 0 for row in rows)
    names = " and ".join(f"sm_{arch}" for arch in archs)
    lines = [
        "# Compiled kernels",
        "",
        f"`.venv/bin/{command}`",
        "",
        f"Compiled for {names} by triton {triton.__version__} on a machine without a GPU, through the wrappers, with",
        "the argument specialisation of a launch. **Nothing here was run or measured on a GPU.** Held to limits in",
        "float16 and bfloat16 at head dims up to 128: no spills, loads of K and V of 16 bytes a thread, a matrix",
        "instruction for every dot. All: shared memory within the arch, loads no narrower in the binary than in PTX.",
        "Tables of loads and stores: bytes a thread x instructions in PTX, prologue and loop body. Dots: by matrix",
        "instruction / all, and their instructions in the binary. float32 is multiplied in full precision, without.",
        "A case is named by what differs from the plain one.",
        "",
        f"{len(rows)} compiled, {num_broken} beyond a limit, {num_spilling} with spills.",
    ]
    for operation in dict.fromkeys(row.case.operation for row in rows):
        lines += [
            "",
            f"## {operation}",
            "",
            "| case | arch | kernel | registers | spills | shared bytes | K, V loads | other loads | stores | dots |"
            " held to limits |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in rows if row.case.operation == operation]
    return "\n".join(lines) + "\n"


def _line(row: CompiledRow) -> str:
    code = row.code
    kv = {name: widths for name, widths in code.load_widths.items() if name in KV_POINTERS}
    others = {name: widths for name, widths in code.load_widths.items() if name not in KV_POINTERS}
    dots = "-"
    if code.num_dots:
        dots = f"{code.num_matrix_dots}/{code.num_dots}, {code.num_matrix_instructions}"
    verdict = "; ".join(row.broken_limits)
    if not verdict:
        verdict = "yes" if row.case.is_held_to_limits else "shared memory only"
    return (
        f"| {row.case} | sm_{row.arch} | {row.kernel_name} | {code.registers} | {code.num_spills} | "
        f"{code.shared_bytes:,} | {_widths(kv)} | {_widths(others)} | {_widths(code.store_widths)} | {dots} | "
        f"{verdict} |"
    )


def _widths(by_name: dict[str, dict[int, int]]) -> str:
    texts = [
        f"{name.removesuffix('_ptr')} "
        + " + ".join(f"{width}x{count}" for width, count in sorted(widths.items(), reverse=True))
        for name, widths in by_name.items()
    ]
    return ", ".join(texts) or "-"


def _as_json(row: CompiledRow) -> dict[str, Any]:
    case = asdict(row.case) | {"dtype": str(row.case.dtype).removeprefix("torch.")}
    return asdict(row) | {"case": case, "name": str(row.case)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, write or print, and return 1 if a limit is broken."""
    parser = argparse.ArgumentParser(prog=COMMAND)
    parser.add_argument("--arch", type=int, nargs="+", choices=sorted(MAX_SHARED_BYTES))
    parser.add_argument("--quick", action="store_true", help="a few cases of each kernel")
    parser.add_argument("--json", action="store_true", help="print one object, write nothing")
    parser.add_argument("--out", type=Path, default=Path("reports/kernels-compiled.md"))
    options = parser.parse_args(arguments)
    if not options.json and (options.out.is_dir() or not options.out.parent.is_dir()):
        parser.error(f"--out {options.out}: must be a file in a folder that exists")
    archs = sorted(set(options.arch or MAX_SHARED_BYTES))
    command = COMMAND + " --quick" * options.quick
    if options.arch:
        command += f" --arch {' '.join(map(str, archs))}"
    try:
        rows = list(compiled_rows(list(compile_cases(is_quick=options.quick)), archs))
    except RuntimeError as error:
        print(f"kvtwin: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"triton": triton.__version__, "rows": [_as_json(row) for row in rows]}))
    else:
        options.out.write_text(render(rows, archs, command), encoding="utf-8")
        print(f"{len(rows)} compiled, written to {options.out}")
    for row in rows:
        for phrase in row.broken_limits:
            print(f"sm_{row.arch} {row.kernel_name} {row.case}: {phrase}", file=sys.stderr)
    return 1 if any(row.broken_limits for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
