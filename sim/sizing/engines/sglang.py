"""SGLang 0.5.23: pools of pages, one more for windows where its model class asks for it."""

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

from ..accounting import Accounting, SizedPool
from ..deployment import Deployment
from ..estimates import gpu_memory_terms, non_torch_term, weights_term
from ..stage_bytes import kept_by_window, state_bytes_per_request
from ..terms import Term, sum_bytes
from .sglang_fraction import default_fraction, size_class

WINDOW_POOL_RATIO = Fraction(8, 10)  # `arg_groups/fields/schedule.py`: swa_full_tokens_ratio
STATE_POOL_RATIO = Fraction(9, 10)  # mamba_full_memory_ratio: states to KV
# `kv_cache_configurator.py: _calculate_mamba_ratio`: three slots a request, and two that track
# states for the prefix cache while a step overlaps the next.
STATES_PER_REQUEST = 5
EVICTION_INTERVAL = 128  # decode steps between frees behind a window (`environ.py`)
MAX_PREFILL_TOKENS = 16384
# Model classes with a pool of their own for windows (`configs/model_config.py`:
# is_hybrid_swa_model), by name; all others, Gemma 2 and 3 among them, store windows in full.
WINDOW_POOL_NAMES = re.compile(r"gptoss|llama4|gemma4|mimov2|step3p5|step3\.5|laguna|graniteswa")


@dataclass(frozen=True)
class SglangPool(SizedPool):
    """A page is `block_size` tokens of the layers that store every token.

    `window_tokens` x `window_token_bytes`: the pool of the layers with `window` (0: there is none).
    `num_states` x `state_bytes`: slots of recurrent states. Each pool has one page or slot more,
    which is written by padding and counted in no size but that of the buffers.
    """

    num_blocks: int
    block_size: int
    block_bytes: int
    window: int
    window_tokens: int
    window_token_bytes: int
    num_states: int
    state_bytes: int
    num_reserved_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """max_total_num_tokens."""
        return self.num_blocks * self.block_size

    @property
    def pool_bytes(self) -> int:
        window = self.window_tokens * self.window_token_bytes
        return self.num_blocks * self.block_bytes + window + self.num_states * self.state_bytes

    def bytes_for(self, num_tokens: int) -> int:
        pages = math.ceil(num_tokens / self.block_size) * self.block_bytes
        window = self._window_tokens_of(num_tokens) * self.window_token_bytes
        return pages + window + STATES_PER_REQUEST * self.state_bytes

    def concurrency(self, num_tokens: int) -> Fraction:
        """The pool that is used up first counts."""
        limits = [Fraction(self.num_blocks, math.ceil(num_tokens / self.block_size))]
        if self.window:
            limits.append(Fraction(self.window_tokens, self._window_tokens_of(num_tokens)))
        if self.state_bytes:
            limits.append(Fraction(max(0, self.num_states), STATES_PER_REQUEST))
        return min(limits)

    def share_held(self, num_tokens: int) -> Fraction:
        return 1 / self.concurrency(num_tokens)

    def fits(self, num_tokens: int) -> bool:
        """One token less than the pool holds, however long prompt and output are
        (`tp_worker.py`: max_req_len)."""
        if self.window and self.window + self.block_size >= self.window_tokens:
            return False  # validate_swa_pool_size: the server does not start
        if self.state_bytes and self.num_states < STATES_PER_REQUEST:
            return False
        return num_tokens <= self.num_tokens - 1

    def sentences(self, deployment: Deployment) -> tuple[str, ...]:
        """`pool_configurator.py`, `memory_pool.py: _finalize_allocation_log`, `scheduler.py`.

        What is left after the graphs, the end of the last line, is not predicted.
        """
        if self.num_tokens < 1:
            return ("Not enough memory. Please try to increase --mem-fraction-static.",)
        accounting = Sglang()
        chunk = accounting.max_num_batched_tokens(deployment)
        running = max(min(self.num_tokens * 512 // deployment.max_model_len, 4096), 2048)
        running = min(deployment.max_num_seqs or running, self.num_tokens // 2)
        return (
            *self._allocations(deployment),
            f"max_total_num_tokens={self.num_tokens}, chunked_prefill_size={chunk}, "
            f"max_prefill_tokens={MAX_PREFILL_TOKENS}, max_running_requests={running}, "
            f"context_len={deployment.max_model_len}",
        )

    def _allocations(self, deployment: Deployment) -> list[str]:
        dtype = "torch.float8_e4m3fn" if deployment.kv_element_bytes == 1 else "torch.bfloat16"
        full = _allocated(
            "Full KV Cache" if self.window else "KV Cache",
            dtype,
            self.num_tokens,
            (self.num_blocks + 1) * self.block_bytes,
            latent=bool(deployment.model.mla_latent_dim),
        )
        if not self.window:
            return [full]
        num_bytes = (self.window_tokens + self.block_size) * self.window_token_bytes
        return [
            f"Use sliding window memory pool. full_layer_tokens={self.num_tokens}, "
            f"swa_layer_tokens={self.window_tokens}",
            full,
            _allocated("SWA KV Cache", dtype, self.window_tokens, num_bytes, latent=False),
        ]

    def _window_tokens_of(self, num_tokens: int) -> int:
        """Slots of one request in the window pool, at most (compute_swa_request_cap)."""
        if not self.window:
            return 0
        whole = math.ceil(num_tokens / self.block_size) * self.block_size
        return min(whole, self.window + EVICTION_INTERVAL + 2 * self.block_size)


class Sglang(Accounting):
    """Without speculative decoding or attention data parallelism; page size 1 unless given.

    Some attention backends set a page size of their own, which is not modelled.
    """

    name: ClassVar[str] = "sglang"
    summary: ClassVar[str] = (
        "SGLang 0.5.23: token pages; activations and graphs in a held-back share"
    )
    utilization_flag: ClassVar[str] = "--mem-fraction-static"
    utilization_meaning: ClassVar[str] = "of the memory free before loading, for weights and KV"
    starts_with_less: ClassVar[bool] = True

    def default_utilization(self, deployment: Deployment) -> float:
        return default_fraction(deployment, self.max_num_batched_tokens(deployment))

    def default_max_num_seqs(self, deployment: Deployment) -> int:
        """Least default of max_running_requests (`kv_cache_configurator.py`: resolve_max_num_reqs)."""
        return 2048

    def default_max_num_batched_tokens(self, deployment: Deployment) -> int:
        """chunked_prefill_size."""
        return size_class(deployment).chunked_prefill_size

    def memory_terms(self, deployment: Deployment, stage: int) -> tuple[Term, ...]:
        """Free after loading, less (1 - fraction) of what was free before
        (`kv_cache_configurator.py`: _profile_available_bytes).

        What is outside the tensors is taken to be there before loading.
        """
        before = (*gpu_memory_terms(deployment), non_torch_term(deployment))
        fraction = self.utilization(deployment)
        held_back = math.ceil(sum_bytes(before) * (1 - fraction))
        source = deployment.utilization_source
        detail = f"for activations and CUDA graphs: {self.utilization_flag} {fraction:g}"
        return (
            *before,
            Term("held_back", -held_back, source, detail),
            weights_term(deployment, stage),
        )

    def block_bytes(self, deployment: Deployment, stage: int) -> int:
        """A page of the layers that store every token; of states where there are no others."""
        page = _page_size(deployment) * _split(deployment, stage)[0]
        return page or state_bytes_per_request(deployment, stage)

    def pool(self, deployment: Deployment, stage: int, kv_bytes: int) -> SglangPool:
        """`pool_configurator.py`: DefaultPoolConfigurator, HybridSWAPoolConfigurator."""
        page_size = _page_size(deployment)
        full_bytes, window, window_bytes = _split(deployment, stage)
        num_states, state_bytes = _states(deployment, stage, kv_bytes)
        if state_bytes:
            kv_bytes -= (num_states + 1) * state_bytes
        cell_bytes = full_bytes + WINDOW_POOL_RATIO * window_bytes
        num_pages = int(max(0, kv_bytes) // cell_bytes) // page_size if cell_bytes else num_states
        override = deployment.num_gpu_blocks_override
        if override is not None:
            num_pages = override
        window_tokens = int(num_pages * page_size * WINDOW_POOL_RATIO) // page_size * page_size
        return SglangPool(
            num_blocks=max(0, num_pages),
            block_size=page_size,
            block_bytes=self.block_bytes(deployment, stage),
            window=window,
            window_tokens=window_tokens if window else 0,
            window_token_bytes=window_bytes,
            num_states=num_states,
            state_bytes=state_bytes,
        )


def _page_size(deployment: Deployment) -> int:
    return deployment.block_size or 1


def _split(deployment: Deployment, stage: int) -> tuple[int, int, int]:
    """(bytes of a token in layers that store all, window, bytes of a token in those with it)."""
    kept = kept_by_window(deployment, stage)
    windows = [window for window in kept if window]
    name = re.sub(r"[^a-z0-9.]", "", deployment.model.name.lower())
    if len(windows) != 1 or not kept.get(0) or not WINDOW_POOL_NAMES.search(name):
        return sum(kept.values()), 0, 0
    return kept[0], windows[0], kept[windows[0]]


def _states(deployment: Deployment, stage: int, kv_bytes: int) -> tuple[int, int]:
    """(slots, bytes of one): 0.9 / 1.9 of the memory, less one slot for padding
    (`kv_cache_configurator.py`: _handle_max_mamba_cache)."""
    num_bytes = state_bytes_per_request(deployment, stage)
    if not num_bytes:
        return 0, 0
    budget = kv_bytes * STATE_POOL_RATIO / (1 + STATE_POOL_RATIO)
    return max(0, int((budget - num_bytes) // num_bytes)), num_bytes


def _allocated(name: str, dtype: str, num_tokens: int, num_bytes: int, *, latent: bool) -> str:
    gib = num_bytes / 2**30
    sizes = (
        f"KV size: {gib:.2f} GB"
        if latent
        else f"K size: {gib / 2:.2f} GB, V size: {gib / 2:.2f} GB"
    )
    return f"{name} is allocated. dtype: {dtype}, #tokens: {num_tokens}, {sizes}"
