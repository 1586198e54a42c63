"""vLLM 0.32: groups of layers with a block table each, over one pool of equal blocks."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ...catalog import GpuMemory
from ..accounting import Accounting, SizedPool
from ..bisect import largest_that
from ..deployment import Deployment
from ..estimates import profiled_terms
from ..terms import Term
from .vllm_groups import Group, block_bytes, group_layers
from .vllm_specs import LayerSpec, attention_block_size, layer_specs, state_padding

# Before, the printed size was blocks // groups x block size.
FIRST_TO_DERIVE_SIZE = (0, 20)
# (least GPU memory, tokens, requests) in a step of `vllm serve` (`engine/arg_utils.py`:
# get_batch_defaults); an A100 is treated as a small GPU.
STEP_LIMITS = ((160 * 2**30, 16_384, 1_024), (70 * 2**30, 8_192, 1_024), (0, 2_048, 256))


@dataclass(frozen=True)
class VllmPool(SizedPool):
    """`groups` of the whole model; a block has the bytes of the largest group's layers on the rank.

    One block, the null block, is never given to a request. `in_flight`: tokens that may be
    scheduled and not yet processed; `states`: pages that each recurrent layer keeps of a request.
    `available_bytes`: what the blocks were cut from. `num_tokens` is not blocks x block size since
    groups exist: int(blocks / blocks of one request of `max_model_len` x max_model_len), in floats
    (get_kv_cache_capacity). Earlier versions printed blocks // groups x block size.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    groups: tuple[Group, ...]
    in_flight: int
    states: int
    max_model_len: int
    available_bytes: int
    num_reserved_blocks: int = 1

    @property
    def num_tokens(self) -> int:
        share = self.num_blocks / self._blocks_to_admit(self.max_model_len)
        return int(share * self.max_model_len)

    @property
    def derived(self) -> str:
        if self.num_tokens == self.num_blocks * self.block_size:
            return ""
        return (
            f"the concurrency at max_model_len x max_model_len ({self.max_model_len:,}), as vLLM prints it; "
            f"{self.num_blocks:,} blocks of {self.block_size} tokens in {len(self.groups)} group(s)"
        )

    def num_tokens_printed_by(self, version: tuple[int, int]) -> int:
        if version < FIRST_TO_DERIVE_SIZE:
            return self.num_blocks // len(self.groups) * self.block_size
        return self.num_tokens

    def bytes_for(self, num_tokens: int) -> int:
        held = (group.blocks_held(num_tokens, states=self.states) for group in self.groups)
        return sum(held) * self.block_bytes

    def bytes_to_admit(self, num_tokens: int) -> int:
        return self._blocks_to_admit(num_tokens) * self.block_bytes

    def concurrency(self, num_tokens: int) -> Fraction:
        """The null block counts (get_max_concurrency_for_kv_cache_config)."""
        return Fraction(self.num_blocks, self._blocks_to_admit(num_tokens))

    def fits(self, num_tokens: int) -> bool:
        """Beside the null block (get_kv_cache_configs: check_memory)."""
        return self._blocks_to_admit(num_tokens) <= self.num_blocks - self.num_reserved_blocks

    def sentences(self, deployment: Deployment) -> tuple[str, ...]:
        """`kv_cache_utils.py`: update_kv_cache_capacity, _check_enough_kv_cache_memory."""
        said = _said_of_states(deployment) + _said_of_padding(self.groups)
        if deployment.num_gpu_blocks_override is None and deployment.kv_cache_memory_bytes is None:
            said.append(f"Available KV cache memory: {_gib(self.available_bytes)} GiB")
        if not self.fits(self.max_model_len):
            return (*said, self._refusal())
        share = self.num_blocks / self._blocks_to_admit(self.max_model_len)
        said.append(
            f"GPU KV cache size: {self.num_tokens:,} tokens, Maximum concurrency for "
            f"{self.max_model_len:,} tokens per request: {share:.2f}x"
        )
        return tuple(said)

    def _blocks_to_admit(self, num_tokens: int) -> int:
        return sum(
            group.blocks_to_admit(num_tokens, in_flight=self.in_flight, states=self.states)
            for group in self.groups
        )

    def _refusal(self) -> str:
        """The null block is taken off the available memory first."""
        available = self.available_bytes - self.block_bytes
        if available <= 0:
            return "No available memory for the cache blocks."
        longest = largest_that(self.fits, self.max_model_len)
        estimate = (
            f"Based on the available memory, the estimated maximum model length is {longest}. "
        )
        return (
            "To serve at least one request with the model's max seq len "
            f"({self.max_model_len}), ({_gib(self.bytes_to_admit(self.max_model_len))} GiB KV "
            "cache is needed, which is larger than the available KV cache "
            f"memory ({_gib(available)} GiB). {estimate if longest else ''}"
        ).rstrip()


class Vllm(Accounting):
    """The default of vLLM 0.32: asynchronous scheduling, prefix caching, hybrid KV cache manager."""

    name: ClassVar[str] = "vllm"
    summary: ClassVar[str] = "vLLM 0.32: blocks shared by groups of layers, windows freed"
    utilization_flag: ClassVar[str] = "--gpu-memory-utilization"
    utilization_meaning: ClassVar[str] = "of the memory that CUDA reports, for everything"
    hybrid: ClassVar[bool] = True

    def default_utilization(self, deployment: Deployment) -> float:
        """`config/cache.py`: CacheConfig.gpu_memory_utilization."""
        return 0.92

    def default_max_num_seqs(self, deployment: Deployment) -> int:
        """Not above the tokens of a step (`engine/arg_utils.py`)."""
        return min(step_limits(deployment.gpu)[1], self.max_num_batched_tokens(deployment))

    def default_max_num_batched_tokens(self, deployment: Deployment) -> int:
        return step_limits(deployment.gpu)[0]

    def memory_terms(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        """The profiling run samples for min(requests, tokens) of a step."""
        num_batched_tokens = self.max_num_batched_tokens(deployment)
        return profiled_terms(
            deployment,
            stage,
            utilization=self.utilization(deployment),
            flag=self.utilization_flag,
            num_batched_tokens=num_batched_tokens,
            num_sampled_sequences=min(self.max_num_seqs(deployment), num_batched_tokens),
        )

    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        return block_bytes(self.groups(deployment), deployment.stages[stage])

    def pool(self, deployment: Deployment, stage: int, kv_bytes: int) -> VllmPool:
        groups = self.groups(deployment)
        num_bytes = block_bytes(groups, deployment.stages[stage])
        # `config/vllm.py`: max_concurrent_batches; one batch a pipeline stage, and one that is
        # scheduled while they run.
        batches = deployment.pipeline_parallel_size + 1
        return VllmPool(
            num_blocks=max(0, kv_bytes // num_bytes),
            block_size=_smallest_block_size([group.spec for group in groups], deployment),
            block_bytes=num_bytes,
            groups=groups,
            in_flight=batches * self.max_num_batched_tokens(deployment),
            # With prefix caching a state is kept at the last block boundary, too ("align").
            states=2 if deployment.enable_prefix_caching and _has_attention(groups) else 1,
            max_model_len=deployment.max_model_len,
            available_bytes=kv_bytes,
        )

    def groups(self, deployment: Deployment) -> tuple[Group, ...]:
        """Layers that share a block table, of the whole model.

        Without the hybrid manager where attention is chunked, too (`config/vllm.py`, unless
        VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is set)."""
        chunked = any(layer.chunked for layer in deployment.model.attention_layers)
        return group_layers(layer_specs(deployment), hybrid=self.hybrid and not chunked)


def step_limits(gpu: GpuMemory) -> tuple[int, int]:
    """(tokens, requests) in a step of `vllm serve` on `gpu` where nothing is said: STEP_LIMITS."""
    memory_bytes = gpu.memory_bytes
    if "a100" in gpu.name.lower():
        memory_bytes = 0
    return next((tokens, seqs) for least, tokens, seqs in STEP_LIMITS if memory_bytes >= least)


def _has_attention(groups: tuple[Group, ...]) -> bool:
    """Prefix caching is off in models of recurrent layers only (`config/model.py`:
    is_prefix_caching_supported)."""
    return any(group.spec.kind != "state" for group in groups)


def _smallest_block_size(specs: list[LayerSpec], deployment: Deployment) -> int:
    sizes = [spec.block_size for spec in specs if spec.kind != "state"]
    return min(sizes, default=deployment.max_model_len)


def _said_of_states(deployment: Deployment) -> list[str]:
    """`platforms/interface.py`: _align_hybrid_block_size."""
    said = []
    block_size = attention_block_size(deployment)
    if block_size > (deployment.block_size or 16):
        said.append(
            f"Setting attention block size to {block_size} tokens to ensure that attention page "
            "size is >= mamba page size."
        )
    if padding := state_padding(deployment):
        said.append(
            f"Padding mamba page size by {padding:.2f}% to ensure that mamba page size and "
            "attention page size are exactly equal."
        )
    return said


def _said_of_padding(groups: tuple[Group, ...]) -> list[str]:
    """`kv_cache_utils.py`: _get_kv_cache_groups_uniform_page_size; a line a bucket."""
    padded: dict[LayerSpec, tuple[int, int]] = {}
    for group in groups:
        layers, padding = padded.get(group.spec, (0, 0))
        padded[group.spec] = (
            layers + len(group.page_bytes),
            padding + group.num_padding_layers,
        )
    return [
        f"Add {padding} padding layers, may waste at most {padding / layers * 100:.2f}% KV cache memory"
        for layers, padding in padded.values()
        if padding
    ]


def _gib(num_bytes: int) -> str:
    """`utils/mem_utils.py`: format_gib."""
    return f"{round(num_bytes / 2**30, 2)}"
