"""What the compiler made of a kernel: registers, spills, shared memory, access widths, tensor cores.

Read from the binary with the cuobjdump and nvdisasm that triton ships, so no GPU is needed.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from .ptx_accesses import access_widths

_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_LAYOUT = re.compile(r"^(#\w+) = (#[\w.]+)<", re.MULTILINE)
_DOT = re.compile(r"(?:tt\.dot|ttng\.warp_group_dot) .*-> tensor<[^,]+, (#\w+)>")
# Modifiers that give the bytes of a thread's access; 4 without one.
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_MATRIX_OPERATIONS = ("HMMA", "HGMMA", "IMMA", "IGMMA", "QMMA", "QGMMA")


@dataclass(frozen=True)
class MachineCode:
    """One kernel for one arch.

    `load_widths[tensor]` and `store_widths[tensor]` count PTX instructions by the bytes a thread
    moves; `binary_load_widths` counts the loads of the binary, of all tensors. `num_dots` are the
    dots of the program, `num_matrix_dots` those whose result has the layout of a matrix
    instruction, `num_matrix_instructions` the instructions they became, all copies of a loop.
    """

    registers: int
    stack_bytes: int
    num_spills: int
    shared_bytes: int
    load_widths: dict[str, dict[int, int]]
    store_widths: dict[str, dict[int, int]]
    binary_load_widths: dict[int, int]
    num_dots: int
    num_matrix_dots: int
    num_matrix_instructions: int


def machine_code(compiled: Any) -> MachineCode:
    """Read what `compiled`, a triton CompiledKernel for CUDA, consists of.

    Raises RuntimeError if a disassembler fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        resources = _RESOURCES.search(_tool("cuobjdump", "--dump-resource-usage", str(cubin)))
        opcodes = _INSTRUCTION.findall(_tool("nvdisasm", "--print-code", str(cubin)))
    assert resources is not None, "cuobjdump printed no resource usage"
    operations: Counter[str] = Counter()
    binary_load_widths: Counter[int] = Counter()
    for opcode in opcodes:
        operation, *modifiers = opcode.split(".")
        operations[operation] += 1
        if operation in ("LDG", "LDGSTS"):
            binary_load_widths[next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 4)] += 1
    layouts = dict(_LAYOUT.findall(compiled.asm["ttgir"]))
    dots = [layouts[name] for name in _DOT.findall(compiled.asm["ttgir"])]
    load_widths, store_widths = access_widths(compiled.asm["ptx"])
    return MachineCode(
        registers=int(resources[1]),
        stack_bytes=int(resources[2]),
        num_spills=operations["STL"] + operations["LDL"],
        shared_bytes=compiled.metadata.shared,
        load_widths=load_widths,
        store_widths=store_widths,
        binary_load_widths=dict(binary_load_widths),
        num_dots=len(dots),
        num_matrix_dots=dots.count("#ttg.nvidia_mma"),
        num_matrix_instructions=sum(operations[name] for name in _MATRIX_OPERATIONS),
    )


def _tool(name: str, *arguments: str) -> str:
    """Run a disassembler of triton's; raise RuntimeError with its last line if it fails."""
    program = getattr(triton.knobs.nvidia, name).path
    run = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if run.returncode != 0:
        last_line = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{name} failed with {run.returncode}: {last_line}")
    return run.stdout
