"""How many KV blocks a GPU holds, and why."""

import math
from dataclasses import dataclass

from kvtwin.traces import UserError

from .catalog import GpuSpec, find_gpu, find_model
from .config import RunConfig
from .model import ModelSpec

# What CUDA context, communication buffers and the like take outside the tensors. vLLM's start-up
# logs show 0.16 GiB (vllm-project/vllm#12126), 0.20 (#14447), 0.35 (Llama-3.1-8B on a 24 GB card)
# and 1.79 (#10511): an assumption.
NON_TORCH_BYTES = 35 * 2**30 // 100
MAX_BLOCKS = 50_000_000  # each is simulated; 1,000 times a large GPU's
ACTIVATION_ELEMENT_BYTES = 2  # bf16
# Logits in fp32 with their copies, sorted and summed, while a step's tokens are sampled: vLLM's log
# of a peak of 1.26 GiB for 256 sequences and a vocabulary of 128,256, the same on one rank as on
# two (vllm-project/vllm#10511).
SAMPLING_BYTES_PER_LOGIT = 41


@dataclass(frozen=True)
class PoolSize:
    """The KV pool of one rank; every rank holds the same blocks.

    `kv_bytes_per_token` is per rank. `terms` (name, bytes, source) explain the pool: the bytes add
    up to `pool_bytes`, what is subtracted is negative. `max_model_len` is resolved. `notes` are
    sentences a reader of the result must see.
    """

    num_slots: int
    num_blocks: int
    block_size: int
    kv_bytes_per_token: int
    pool_bytes: int
    max_model_len: int
    terms: tuple[tuple[str, int, str], ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        assert self.num_blocks >= 1, self.num_blocks
        slots = self.num_blocks * self.block_size
        assert self.num_slots == slots, (self.num_slots, slots)
        assert self.pool_bytes == slots * self.kv_bytes_per_token, (self.pool_bytes, slots)
        explained = sum(num_bytes for _, num_bytes, _ in self.terms)
        assert explained == self.pool_bytes, (explained, self.pool_bytes)


def size_pool(config: RunConfig) -> PoolSize:
    """The pool that `config` leaves for KV on each rank.

    `num_gpu_blocks_override`, else `kv_cache_memory_bytes`, else vLLM's arithmetic: memory x
    utilization, less weights, activations and what is not tensors; whole blocks of what is left.
    The activations are an uncalibrated estimate where vLLM runs a dummy step and measures, and
    memory for CUDA graphs is not taken off. Raises UserError if not one block fits.
    """
    model = find_model(config.model)
    kv_bytes_per_token = model.kv_bytes_per_token(
        config.kv_cache_dtype, config.tensor_parallel_size
    )
    block_bytes = config.block_size * kv_bytes_per_token
    terms = _terms(config, model, find_gpu(config.gpu), block_bytes)
    available = sum(num_bytes for _, num_bytes, _ in terms)
    num_blocks = available // block_bytes
    if num_blocks < 1:
        shown = " ".join(f"{num_bytes / 1e9:+.2f} ({name})" for name, num_bytes, _ in terms)
        raise UserError(
            f"no room for KV on {config.gpu}: {shown} = {available / 1e9:.2f} GB, and one block of "
            f"{config.block_size} tokens of {model.name} takes {block_bytes / 1e9:.2f} GB; "
            f"{_remedy(config)}"
        )
    if num_blocks > MAX_BLOCKS:
        raise UserError(
            f"the pool has {num_blocks:,} blocks of {config.block_size} tokens; at most {MAX_BLOCKS:,} can be "
            "simulated: use larger blocks or a smaller pool"
        )
    tail = available - num_blocks * block_bytes
    if tail:
        terms = (*terms, ("unused_tail", -tail, "the pool has whole blocks only"))
    return PoolSize(
        num_slots=num_blocks * config.block_size,
        num_blocks=num_blocks,
        block_size=config.block_size,
        kv_bytes_per_token=kv_bytes_per_token,
        pool_bytes=num_blocks * block_bytes,
        max_model_len=config.max_model_len or model.max_model_len,
        terms=terms,
        notes=_notes(config, model, num_blocks * config.block_size),
    )


def activation_bytes_per_token(model: ModelSpec, tensor_parallel_size: int) -> int:
    """Bytes of activations alive on one rank for each token of a step, where a layer is widest.

    3 x hidden_size (residual, normed input, attention output) + 3 x ffn_size x active experts /
    ranks (gate, up and their product) elements of 16 bits. An assumption, not calibrated: for
    Llama-3.1-8B it gives 110,592 B, where the peaks that vLLM printed for 20,000 and 29,000 tokens
    lie 109,800 B a token apart.
    """
    ffn_elements = 3 * model.ffn_size * model.num_active_experts
    elements = 3 * model.hidden_size + math.ceil(ffn_elements / tensor_parallel_size)
    return elements * ACTIVATION_ELEMENT_BYTES


def activation_peak_bytes(config: RunConfig) -> int:
    """Estimated peak of activations on one rank. Uncalibrated.

    The larger of the layers over a full step's tokens and of sampling for every sequence: the two
    are not alive together.
    """
    model = find_model(config.model)
    per_token = activation_bytes_per_token(model, config.tensor_parallel_size)
    layers = config.max_num_batched_tokens * per_token
    sampling = config.max_num_seqs * model.vocab_size * SAMPLING_BYTES_PER_LOGIT
    return max(layers, sampling)


def _terms(
    config: RunConfig, model: ModelSpec, gpu: GpuSpec, block_bytes: int
) -> tuple[tuple[str, int, str], ...]:
    if config.num_gpu_blocks_override is not None:
        num_bytes = config.num_gpu_blocks_override * block_bytes
        return (("num_gpu_blocks_override", num_bytes, "--num-gpu-blocks-override"),)
    if config.kv_cache_memory_bytes is not None:
        return (("kv_cache_memory_bytes", config.kv_cache_memory_bytes, "--kv-cache-memory-bytes"),)
    requested = math.ceil(gpu.memory_bytes * config.gpu_memory_utilization)
    ranks, share = config.tensor_parallel_size, config.gpu_memory_utilization
    shipped = f"1/{ranks} of {model.weight_bytes / 1e9:.2f} GB; {model.source}. {model.note}"
    return (
        ("gpu_memory", gpu.memory_bytes, gpu.source),
        ("held_back", requested - gpu.memory_bytes, f"--gpu-memory-utilization {share:g}"),
        ("weights", -math.ceil(model.weight_bytes / ranks), shipped.rstrip()),
        ("activations", -activation_peak_bytes(config), "UNCALIBRATED: estimated from shapes"),
        ("non_torch", -NON_TORCH_BYTES, "assumed: 0.35 GiB"),
    )


def _remedy(config: RunConfig) -> str:
    if config.num_gpu_blocks_override is None and config.kv_cache_memory_bytes is not None:
        return "raise --kv-cache-memory-bytes"
    return (
        "use a larger --gpu, raise --tensor-parallel-size or --gpu-memory-utilization, or lower "
        "--max-num-batched-tokens"
    )


def _notes(config: RunConfig, model: ModelSpec, num_slots: int) -> tuple[str, ...]:
    overridden = longer = ""
    if config.num_gpu_blocks_override is not None and config.kv_cache_memory_bytes is not None:
        overridden = "--kv-cache-memory-bytes has no effect: --num-gpu-blocks-override is given"
    longest = config.max_model_len or model.max_model_len
    if longest > num_slots:
        longer = (
            f"max_model_len is {longest:,} tokens, the pool holds {num_slots:,}: vLLM would not start; lower "
            "--max-model-len to what your requests need"
        )
    return tuple(note for note in (overridden, longer, model.window_note) if note)
