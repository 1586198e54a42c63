"""What both pools of a policy with groups hold, slot by slot, and the parts and integrals that follow from it."""

from collections.abc import Callable, Iterable
from typing import Any

from naive_group_tokens import GroupTokens, Token
from naive_queue import NaiveQueue

from kvtwin.sim.decisions import Decisions
from kvtwin.sim.ledger import FIELDS
from kvtwin.sim.plan import Limits
from kvtwin.sim.queue import WaitingQueue
from kvtwin.sim.recorder import Recorder, Sample
from kvtwin.sim.requests import RequestTable
from kvtwin.sim.vllm_v0.group import Branch, Group
from kvtwin.sim.vllm_v0.policy import Transfer, VllmV0


class GroupPools(GroupTokens):
    """The state of an engine of groups: who is where, and which token every slot holds."""

    def __init__(
        self,
        requests: RequestTable,
        policy: VllmV0,
        limits: Limits,
        recorder: Recorder,
        log: Decisions | None = None,
    ) -> None:
        super().__init__(requests, policy)
        self.recorder, self.limits = recorder, limits
        queue_type = WaitingQueue if requests.waits is None else NaiveQueue
        self.queue = queue_type(requests, self._group)
        self.paranoid = False
        self.moved_slots = self.recomputed_tokens = 0
        self.least_free_slots = policy.num_slots
        self.most_running = 0
        self._log = policy.log = log
        self.running: list[Group] = []
        self.swapped: list[Group] = []
        self.prompts: list[Group] = []
        self.copies: list[tuple[int, int, int]] = []  # (source, target, slots) of this step
        self.last_token_ns: dict[Branch, int] = {}
        self.again: set[Group] = set()  # several sequences, recomputed as they were
        self.lost: dict[Group, int] = {}  # tokens that a preemption took
        self.hits: dict[Group, int] = {}  # tokens that those who compute prompts have found
        self.arriving_tokens: dict[
            int, list[tuple[int, int]]
        ] = {}  # by row: (source, target) block
        self.totals = dict.fromkeys(FIELDS, 0)
        self.waits_for = ""
        self.host_sums = dict.fromkeys(("live", "useful", "held", "free"), 0)
        self.tables = [0, 0, 0, 0]  # x ns: entries, blocks, running sequences, 1
        self.loaded_tables = [0, 0, 0, 0]
        self.at_ns = self.external = self.waited_ns = self.link_free_ns = self.link_busy_ns = 0
        self.num_out = self.num_swapped = self.num_host_full = 0
        self.host_least_free = policy.host.num_blocks

    def _group(self, requests: RequestTable, row: int) -> Group:
        outputs, prompt = requests.branch_outputs[row], requests.num_prompt_tokens[row]
        pieces = requests.prompts[row] if requests.prompts else ()
        is_beam = requests.beam_width > 1
        group = Group(row, requests.arrival_ns[row], prompt, outputs, is_beam, pieces)
        for branch in group.branches:
            self.tokens[branch] = []
        return group

    def arrival(self, who: Group | Transfer) -> tuple[int, int]:
        """What groups and their transfers are ordered by."""
        return self.requests.arrival_ns[who.row], who.row

    def committed(self, group: Group) -> int:
        (num,) = {len(self.tokens[branch]) for branch in group.branches}
        return num

    def slot(self, branch: Branch, position: int) -> int:
        return branch.blocks[position // self.size] * self.size + position % self.size

    # What the pools hold, from tables and slots.

    def on_device(self) -> list[Group]:
        coming = [t.group for t in self.policy.transfers if not t.is_out]
        return [*self.running, *self.prompts, *coming]

    def blocks_of(self, groups: Iterable[Group]) -> set[int]:
        return {block for group in groups for branch in group.branches for block in branch.blocks}

    def leaving(self) -> set[int]:
        return {block for t in self.policy.transfers for block in t.blocks}

    def held(self) -> set[int]:
        return self.blocks_of(self.on_device()) | self.leaving()

    def room(self) -> int:
        """Blocks that nobody holds."""
        return self.policy.device.num_blocks - len(self.held())

    def take(self, action: Callable[[], Any], num_hit_tokens: int = 0) -> None:
        """Whoever gets blocks that he has not found gets them empty. They are free ones, as long as there are any."""
        before = self.held()
        cached = {slot // self.size for slot in self.device} - before
        action()
        taken = self.held() - before
        if num_hit_tokens:
            found = self.prompts[-1].branches[0].blocks[: num_hit_tokens // self.size]
            taken -= set(found)
        num_free = self.policy.device.num_free_blocks
        assert not (taken & cached and num_free), f"{taken & cached} are evicted, {num_free} free"
        self.clear(taken)
        self.note_free()

    def count(self) -> dict[str, int]:
        size, groups = self.size, self.on_device()
        leaving, held = self.leaving(), self.held()
        if not self.policy.reuses_prefixes:
            assert not self.blocks_of(groups) & leaving, "INV-2: blocks that leave are in tables"
        useful = {
            self.slot(branch, position)
            for group in groups
            for branch in group.branches
            for position in range(min(branch.end, len(branch.blocks) * size))
        }
        live = {slot for slot in self.device if slot // size in held}
        cached = {slot // size for slot in self.device} - held
        assert all(map(self.can_be_found, cached)), "INV-2: free slots are live"
        useful |= {slot for slot in live if slot // size in leaving}
        free = self.policy.device.num_free_blocks
        assert len(held) + len(cached) + free == self.policy.device.num_blocks, "INV-1"
        return {
            "live": len(live),
            "useful": len(useful),
            "asked": len(held) * size,
            "granted": len(held) * size,
            "free": free * size,
            "external": self.external,
            "cached": len(cached) * size,
            "running": len(self.running) + len(self.prompts),
        }

    def count_host(self) -> dict[str, int]:
        size, policy = self.size, self.policy
        pinned = {block for t in policy.transfers for block in t.pinned_host_blocks}
        held = self.blocks_of(policy.on_host.values()) | pinned
        assert {slot // size for slot in self.host} <= held, (
            "INV-2: free slots of the host are live"
        )
        promised = sum(len(self.filled(t.blocks, self.device)) for t in policy.transfers)
        return {
            "live": len(self.host),
            "useful": len(self.host) + promised,
            "held": len(held) * size,
            "free": policy.host.num_free_blocks * size,
        }

    def filled(self, blocks: Iterable[int], memory: dict[int, Token]) -> list[int]:
        slots = (block * self.size + offset for block in blocks for offset in range(self.size))
        return [slot for slot in slots if slot in memory]

    def pass_time(self, now_ns: int) -> None:
        duration_ns = now_ns - self.at_ns
        assert duration_ns >= 0, f"INV-4: from {self.at_ns} back to {now_ns} ns"
        self.at_ns = now_ns
        self.totals["duration_ns"] += duration_ns
        for name, value in self.count().items():
            self.totals[name] += value * duration_ns
        if self.waits_for:
            self.totals[f"waits_for_{self.waits_for}"] += duration_ns
        for name, value in self.count_host().items():
            self.host_sums[name] += value * duration_ns
        for group in self.on_device():
            self.tables[0] += sum(len(b.blocks) for b in group.branches) * duration_ns
            self.tables[1] += len(self.blocks_of([group])) * duration_ns
        running = [*self.running, *self.prompts]
        self.tables[2] += sum(len(group.branches) for group in running) * duration_ns
        self.tables[3] += duration_ns

    def transfer_end(self, num_blocks: int) -> int:
        link = self.policy.settings.link
        bytes_ns = -(-num_blocks * link.block_bytes * 10**9 // link.bytes_per_s)
        duration_ns = bytes_ns + num_blocks * link.copies_per_block * link.copy_ns
        self.link_free_ns = max(self.link_free_ns, self.at_ns) + duration_ns
        self.link_busy_ns += duration_ns
        self.num_swapped += num_blocks
        return self.link_free_ns

    def remember_moves(self, group: Group, tables: dict[Branch, list[int]]) -> None:
        pairs = {
            pair for branch, old in tables.items() for pair in zip(old, branch.blocks, strict=True)
        }
        self.arriving_tokens[group.row] = sorted(pairs)

    def arrive(self, now_ns: int) -> None:
        transfer = self.policy.transfers[0]
        self.pass_time(max(now_ns, self.at_ns))
        memories = (self.device, self.host) if transfer.is_out else (self.host, self.device)
        source, target = memories
        for old, new in self.arriving_tokens.pop(transfer.row):
            for offset in range(self.size):
                token = source.get(old * self.size + offset)
                if token is not None:
                    target[new * self.size + offset] = token
                if not transfer.is_out:
                    source.pop(old * self.size + offset, None)
        self.policy.arrive(transfer)
        if transfer.is_out:
            self.sweep(self.held())
        else:
            self.policy.store(transfer.group, self.committed(transfer.group))
        joined = self.swapped if transfer.is_out else self.running
        joined.append(transfer.group)
        joined.sort(key=self.arrival)
        self.note_free()

    def note_free(self) -> None:
        self.least_free_slots = min(self.least_free_slots, self.room() * self.size)
        self.host_least_free = min(self.host_least_free, self.policy.host.num_free_blocks)

    def read(self, branch: Branch) -> None:
        for position, token in enumerate(self.tokens[branch]):
            found = self.device.get(self.slot(branch, position))
            assert found == token, f"INV-7: {branch.row}/{branch.branch} reads {found}, not {token}"

    def release(self, action: Callable[[], Any]) -> None:
        action()
        self.sweep(self.held())

    def idle(self, start_ns: int, end_ns: int) -> None:
        self.external = 0
        self.pass_time(end_ns)
        self.totals["idle"] += end_ns - start_ns
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(tuple(self.totals.values()), self.sample(end_ns))

    def finish(self, end_ns: int) -> None:
        assert not self.held(), f"INV-8: {self.held()} are left"
        assert not self.host, f"INV-8: {self.host} is left"
        assert self.policy.num_free_slots() + len(self.device) == self.policy.num_slots, "INV-8"
        self.recorder.finish(tuple(self.totals.values()), self.sample(end_ns))

    def sample(self, end_ns: int) -> Sample:
        rows: dict[int, int] = {}  # by block: the last one that holds it
        if self.recorder.snapshots:
            for branch in (b for group in self.on_device() for b in group.branches):
                rows |= dict.fromkeys(branch.blocks, branch.row)
            for t in self.policy.transfers:
                rows |= dict.fromkeys(t.blocks, t.row)
        pieces = [(block * self.size, self.size, row) for block, row in rows.items()]
        num_waiting = self.queue.advance(end_ns) + len(self.policy.on_host)
        free = sorted(self.policy.device.free_block_ids())
        longest = run = 0
        for number, block in enumerate(free):
            run = run + 1 if number and free[number - 1] == block - 1 else 1
            longest = max(longest, run)
        return Sample(num_waiting, longest * self.size, len(free) * self.size, tuple(pieces))

    def details(self) -> dict[str, Any]:
        num_slots = self.policy.host.num_blocks * self.size
        end_ns, host = self.totals["duration_ns"], self.host_sums
        parts = {
            "live": host["live"],
            "reserved": host["useful"] - host["live"],
            "internal": host["held"] - host["useful"],
            "free": host["free"],
        }
        assert sum(parts.values()) == num_slots * end_ns, f"INV-1: {parts} of the host"
        # Nobody ever waited: the window is the whole run.
        entries, blocks, sequences, loaded_ns = (
            self.loaded_tables if self.loaded_tables[3] else self.tables
        )
        whole = num_slots * end_ns
        return {
            "sharing": {
                "mean_running_sequences": sequences / loaded_ns if loaded_ns else 0.0,
                "saved_share_of_blocks": 1 - blocks / entries if entries else 0.0,
                "num_copied_blocks": self.moved_slots // self.size,
            },
            "swapping": {
                "num_groups_out": self.num_out,
                "num_blocks_out_and_in": self.num_swapped,
                "num_bytes_out_and_in": self.num_swapped * self.policy.settings.link.block_bytes,
                "num_recomputed_for_want_of_host": self.num_host_full,
                "link_busy_share": self.link_busy_ns / end_ns if end_ns else 0.0,
                "waited_ns": self.waited_ns,
                "host_slots": num_slots,
                "host_peak_used_share": 1 - self.host_least_free * self.size / num_slots
                if num_slots
                else 0.0,
                "host_shares": {
                    name: value / whole if whole else float(name == "free")
                    for name, value in parts.items()
                },
            },
        }
