"""TensorRT-LLM, PyTorch backend: one pool of blocks in which every layer stores every token."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..accounting import Accounting, SizedPool
from ..deployment import Deployment
from ..estimates import (
    activations_term,
    cuda_graphs_term,
    gpu_memory_terms,
    non_torch_term,
    weights_term,
)
from ..stage_bytes import kv_bytes_per_token, state_bytes_per_request
from ..terms import Term, sum_bytes

TOKENS_PER_BLOCK = 32  # `llmapi/llm_args.py`: KvCacheConfig.tokens_per_block


@dataclass(frozen=True)
class TrtllmPool(SizedPool):
    """Blocks that any request may use. A length that the pool does not hold is cut at start-up."""

    num_blocks: int
    block_size: int
    block_bytes: int
    available_bytes: int
    num_reserved_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_blocks * self.block_size

    def bytes_for(self, num_tokens: int) -> int:
        return math.ceil(num_tokens / self.block_size) * self.block_bytes

    def concurrency(self, num_tokens: int) -> Fraction:
        return Fraction(self.num_blocks, math.ceil(num_tokens / self.block_size))

    def fits(self, num_tokens: int) -> bool:
        return num_tokens <= self.num_tokens

    def sentences(self, deployment: Deployment) -> tuple[str, ...]:
        """`_torch/pyexecutor/_util.py`, `resource_manager.py`; C++ KVCacheManager::allocatePools."""
        said = [f"Estimated max memory in KV cache : {self.available_bytes / 2**30:.2f} GiB"]
        if not self.num_blocks:
            return (*said, "Impossible to fit in any sequence in kvCache")
        asked = deployment.max_model_len
        if not self.fits(asked):
            said += [
                f"Attention window size {asked} exceeds upper bound {self.num_tokens} for available "
                f"blocks. Reducing to {self.num_tokens}.",
                f"Adjusted max_seq_len to {self.num_tokens}",
            ]
        return (
            *said,
            f"Number of tokens per block: {self.block_size}.",
            f"[MemUsageChange] Allocated {self.pool_bytes / 2**30:.2f} GiB for max tokens in paged "
            f"KV cache ({self.num_tokens}).",
        )


class Trtllm(Accounting):
    """The KV cache manager of TensorRT-LLM 1.x, without `max_attention_window`.

    Approximated: windows are freed only where `max_attention_window` lists them (the newest
    versions derive that list for their second manager), which is not modelled; recurrent states
    are taken off for `max_num_seqs` requests; the blocks that CUDA-graph padding takes are not.
    """

    name: ClassVar[str] = "trtllm"
    summary: ClassVar[str] = "TensorRT-LLM, PyTorch backend: every layer stores every token"
    utilization_flag: ClassVar[str] = "--kv_cache_free_gpu_memory_fraction"
    utilization_meaning: ClassVar[str] = "of what is free after loading and the peak, for KV"
    starts_with_less: ClassVar[bool] = True

    def default_utilization(self, deployment: Deployment) -> float:
        """`llmapi/llm_args.py`: KvCacheConfig.free_gpu_memory_fraction."""
        return 0.9

    def default_max_num_seqs(self, deployment: Deployment) -> int:
        """`llmapi/llm_args.py`: max_batch_size."""
        return 2048

    def default_max_num_batched_tokens(self, deployment: Deployment) -> int:
        """`llmapi/llm_args.py`: max_num_tokens."""
        return 8192

    def memory_terms(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        """int((total - peak) x fraction); `_util.py`: KvCacheCreator._cal_max_memory.

        The profiled batch is a step of fresh prompts as long as they may be, each sampled once.
        """
        num_batched_tokens = self.max_num_batched_tokens(deployment)
        num_prompts = math.ceil(num_batched_tokens / max(1, deployment.max_model_len - 1))
        activations = activations_term(
            deployment,
            stage,
            num_batched_tokens=num_batched_tokens,
            num_sampled_sequences=num_prompts,
        )
        free = (
            *gpu_memory_terms(deployment),
            weights_term(deployment, stage),
            activations,
            cuda_graphs_term(deployment),
            non_torch_term(deployment),
        )
        fraction = self.utilization(deployment)
        num_free_bytes = sum_bytes(free)
        held_back = int(num_free_bytes * fraction) - num_free_bytes if num_free_bytes > 0 else 0
        source = deployment.utilization_source
        terms = (
            *free,
            Term("held_back", held_back, source, f"{self.utilization_flag} {fraction:g}"),
        )
        states = state_bytes_per_request(deployment, stage) * self.max_num_seqs(deployment)
        if not states:
            return terms
        detail = f"for {self.max_num_seqs(deployment):,} requests; approximated"
        return (*terms, Term("recurrent_states", -states, "estimate", detail))

    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        return _block_size(deployment) * kv_bytes_per_token(deployment, stage)

    def pool(self, deployment: Deployment, stage: int, kv_bytes: int) -> TrtllmPool:
        num_bytes = self.block_bytes(deployment, stage)
        return TrtllmPool(
            num_blocks=max(0, kv_bytes // num_bytes),
            block_size=_block_size(deployment),
            block_bytes=num_bytes,
            available_bytes=max(0, kv_bytes),
        )


def _block_size(deployment: Deployment) -> int:
    return deployment.block_size or TOKENS_PER_BLOCK
