"""How fast the device reads memory and writes nothing: the measure for a decode, which does likewise."""

import torch
import triton
import triton.language as tl

from ..kernels.launch import Launch

CHUNK_ELEMENTS = 4096  # of 4 bytes: 16 KiB, as half a block of 16 tokens x 8 heads x 128 x 16 bits
PROGRAMS_PER_MULTIPROCESSOR = 16


@triton.jit
def read_sum_kernel(sums_ptr, chunks_ptr, order_ptr, num_chunks, num_programs, CHUNK: tl.constexpr):
    """Program p sums chunks order[p], order[p + programs], ... and writes one number."""
    program = tl.program_id(0)
    lanes = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], tl.float32)
    for number in range(program, num_chunks, num_programs):
        chunk = tl.load(order_ptr + number).to(tl.int64)
        total += tl.load(chunks_ptr + chunk * CHUNK + lanes)
    tl.store(sums_ptr + program, tl.sum(total, axis=0))


def read_sum_launch(chunks: torch.Tensor, order: torch.Tensor, multiprocessors: int) -> Launch:
    """Read fp32 `chunks` [num_chunks, CHUNK_ELEMENTS] once each, in `order` (int32)."""
    num_programs = PROGRAMS_PER_MULTIPROCESSOR * multiprocessors
    sums = torch.empty(num_programs, dtype=torch.float32, device=chunks.device)
    return Launch(
        read_sum_kernel,
        (num_programs,),
        {
            "sums_ptr": sums,
            "chunks_ptr": chunks,
            "order_ptr": order,
            "num_chunks": chunks.shape[0],
            "num_programs": num_programs,
            "CHUNK": chunks.shape[1],
        },
        {"num_warps": 8, "num_stages": 4},
    )
