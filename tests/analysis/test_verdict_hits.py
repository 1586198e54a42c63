"""The one sentence, where some find prompts in the pool and others compute them."""

from typing import Any

from fabricated import summary

from kvtwin.analysis.verdict import comparison_verdict


def test_who_finds_prompts_in_the_pool_is_compared_by_what_comes_out() -> None:
    def finding(policy: str, share: float, rate: float, **changed: Any) -> dict[str, Any]:
        hits = {"hit_tokens": round(1000 * share), "hit_share_of_prompt_tokens": share}
        return summary("orca-max", policy=policy, output_tokens_per_s=rate, **(hits | changed))

    ttft = {"mean": 1.0, "p50": 88.8, "p99": 2.0}
    v1 = finding("vllm-v1", 0.855, 551.0, mean_running=31.4, ttft_ms=ttft)
    v0 = finding("vllm-v0-prefix-caching", 0.5, 549.0)
    paged = summary("paged", output_tokens_per_s=393.0)
    contiguous = summary("contiguous", output_tokens_per_s=99.9)
    # Less of the pool is live, and fewer run together, where requests are done sooner.
    assert comparison_verdict([contiguous, paged, v0, v1]) == (
        "vllm-v1 and vllm-v0-prefix-caching generate 549 tokens/s to 551 tokens/s (uncalibrated), 1.40 times paged "
        "(393 tokens/s) and 5.52 times contiguous (99.9 tokens/s); the median first token comes after 89 ms in vllm-v1 "
        "and 100 ms in paged; 31.4 requests run together on average, against 34.2: with less to compute each is done "
        "sooner; vllm-v0-prefix-caching found 50.0 % and vllm-v1 found 85.5 % of the prompt tokens cached."
    )
    fitted = [s | {"calibrated": True} for s in (paged, v1)]
    assert comparison_verdict(fitted).startswith("vllm-v1 generates 551 tokens/s, 1.40 times paged")
    # All of them find as much: their memory is compared as ever.
    assert comparison_verdict([v1, v0 | {"hit_share_of_prompt_tokens": 0.8451}]).startswith(
        "vllm-v1 and vllm-v0-prefix-caching keep"
    )
