"""The uncalibrated cost model: a step lasts as long as its bytes or its FLOPs take.

Memory: weights once, KV read and written, at the HBM's full rate. Compute: 2 FLOPs per active
parameter and token, and 4 per query-key pair, head and head element and layer (a multiply and an
add in QK^T and in PV), at the shares of the bf16 peak that gpu.mfu_* say. Fixed overhead,
all-reduces and moves are added to both.
"""

from fractions import Fraction

from .catalog import GpuSpec
from .model import ModelSpec

NS_PER_S = 10**9
# Scheduler, kernel launches, sampling, detokenising. A round number: no source fits every engine.
# (Mean batch sizes of the PagedAttention paper's Figure 13 imply 45 ms an output token where the
# bytes alone take 24.5 ms.)
STEP_OVERHEAD_NS = 2_000_000
ACTIVATION_ELEMENT_BYTES = 2  # all-reduces carry bf16
ALL_REDUCES_PER_LAYER = 2  # behind attention and behind the feed-forward


def roofline_terms(
    model: ModelSpec, gpu: GpuSpec, kv_cache_dtype: str, tensor_parallel_size: int
) -> tuple[list[tuple[str, Fraction, dict[str, Fraction]]], tuple[str, ...]]:
    """(name, constant ns, ns for one of each total) of the two terms, exact; and notes."""
    ranks = tensor_parallel_size
    kv_bytes = model.kv_bytes_per_token(kv_cache_dtype, ranks)
    kv_ns = Fraction(kv_bytes * NS_PER_S, gpu.hbm_bytes_per_s)  # one slot, read or written
    reduce_ns = _all_reduce_ns(model, gpu, ranks)
    added = {"moved_slots": 2 * kv_ns}
    overhead = Fraction(STEP_OVERHEAD_NS)

    weights_ns = Fraction(model.weight_bytes * NS_PER_S, ranks * gpu.hbm_bytes_per_s)
    memory = added | {
        "num_prefill_tokens": kv_ns + reduce_ns,
        "prefill_pairs": Fraction(0),
        "prefill_context_slots": kv_ns,
        "num_decode_tokens": kv_ns + reduce_ns,
        "decode_context_slots": kv_ns,
    }
    token_flops = 2 * model.num_active_params
    pair_flops = 4 * model.num_heads * model.head_dim * model.num_layers
    prefill_ns = Fraction(NS_PER_S, ranks * gpu.bf16_flops_per_s) / _exact(gpu.mfu_prefill)
    decode_ns = Fraction(NS_PER_S, ranks * gpu.bf16_flops_per_s) / _exact(gpu.mfu_decode)
    compute = added | {
        "num_prefill_tokens": token_flops * prefill_ns + reduce_ns,
        "prefill_pairs": pair_flops * prefill_ns,
        "prefill_context_slots": Fraction(0),
        "num_decode_tokens": token_flops * decode_ns + reduce_ns,
        "decode_context_slots": pair_flops * decode_ns,
    }
    terms = [("memory", overhead + weights_ns, memory), ("compute", overhead, compute)]
    return terms, _notes(model, gpu)


def _all_reduce_ns(model: ModelSpec, gpu: GpuSpec, ranks: int) -> Fraction:
    """ns of one token's all-reduces: a ring moves 2 (t - 1) / t of a message over each link."""
    message = (
        ALL_REDUCES_PER_LAYER * model.num_layers * model.hidden_size * ACTIVATION_ELEMENT_BYTES
    )
    link = gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s
    return Fraction(2 * (ranks - 1) * message * NS_PER_S, ranks * link)


def _exact(share: float) -> Fraction:
    """The decimal that the catalogue wrote, not the binary float nearest to it."""
    return Fraction(str(share))


def _notes(model: ModelSpec, gpu: GpuSpec) -> tuple[str, ...]:
    notes = [
        "UNCALIBRATED: a roofline of published figures, not measured steps",
        f"compute at {gpu.mfu_prefill:g} (prefill) and {gpu.mfu_decode:g} (decode) of the bf16 "
        f"peak: {gpu.mfu_source}; memory at the full rate of the HBM",
        f"{STEP_OVERHEAD_NS / 1e6:g} ms of fixed overhead in every step: assumed",
    ]
    if model.precision:
        notes.append(
            f"weights in {model.precision} are read as stored, and computed with at the bf16 peak"
        )
    if model.num_active_experts > 1:
        notes.append("every expert's weights are read in every step: too slow for small batches")
    if model.sliding_window:
        notes.append("every layer reads the whole context: too slow where that is beyond a window")
    if model.mla_latent_dim:
        notes.append(
            "attention FLOPs of the plain form: too fast where decodes attend to the latent"
        )
    return tuple(notes)
