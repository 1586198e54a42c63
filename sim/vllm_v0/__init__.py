"""The memory manager and scheduler of the PagedAttention paper's vLLM: sharing, copy-on-write and swapping."""
