"""vLLM's V1 scheduler and KV-cache manager (release 0.32), rule for rule: `docs/vllm_v1.md` says which."""
