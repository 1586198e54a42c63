"""What a request of several sequences is said to need, against a walk through its life in a large pool."""

from collections.abc import Sequence as Seq
from pathlib import Path

from example_counts import examples
from hand_runs import run
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtwin.sim import PolicySettings
from kvtwin.sim.vllm_v0.group import Group
from kvtwin.sim.vllm_v0.policy import VllmV0

NUM_BLOCKS = 1000


def policy_of(block_size: int) -> VllmV0:
    num_slots = NUM_BLOCKS * block_size
    return VllmV0(PolicySettings(num_slots, max_model_len=1000, block_size=block_size))


def blocks_asked(policy: VllmV0, num_prompt_tokens: int, outputs: Seq[int]) -> int:
    """The most blocks that it holds and asks for at once: its prompt's, and before each step one for each sequence."""
    group = Group(0, 0, num_prompt_tokens, outputs, is_beam=False)
    most = policy.allocate(group)
    committed = num_prompt_tokens
    while True:
        for branch in [branch for branch in group.branches if branch.end == committed]:
            policy.free(group, branch)
            group.branches.remove(branch)
        if not group.branches:
            return most
        held = NUM_BLOCKS - policy.device.num_free_blocks
        most = max(most, held + len(group.branches))
        policy.append(group, committed)
        committed += 1


@settings(max_examples=examples(300))
@given(
    block_size=st.integers(1, 5),
    num_prompt_tokens=st.integers(1, 20),
    outputs=st.lists(st.integers(1, 20), min_size=1, max_size=5),
)
def test_the_need_is_what_is_held_and_asked_at_once(
    block_size: int, num_prompt_tokens: int, outputs: list[int]
) -> None:
    policy = policy_of(block_size)
    need = policy.group_need(num_prompt_tokens, outputs)
    assert need == blocks_asked(policy, num_prompt_tokens, outputs) * block_size
    assert policy.largest_need(num_prompt_tokens, outputs[0], 99) == policy.group_need(
        num_prompt_tokens, outputs[:1]
    )


def test_two_samples_of_two_tokens_need_a_block_each_and_the_prompts(tmp_path: Path) -> None:
    """A prompt of 1 and blocks of 2: one sample writes behind the prompt, the other into a copy of its block.

    A step asks for a block for each sequence, needed or not, so 3 are enough, and 2 are not.
    """
    for num_blocks, status in ((3, "finished"), (2, "rejected")):
        made = run(
            "vllm-v0",
            [(0, 1, 2)],
            tmp_path / str(num_blocks),
            num_slots=2 * num_blocks,
            block_size=2,
            num_samples=2,
            sample_lengths="equal",
            watermark=0.0,
        )
        assert [row["status"] for row in made.requests] == [status]
        assert made.summary["preemptions"] == 0
    (rejection,) = made.summary["rejections"]
    assert (rejection["value"], rejection["limit"]) == (6, 4)
