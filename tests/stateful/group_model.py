"""What block tables and slots hold when the decision log of a policy with groups is carried out."""

from collections import Counter
from itertools import groupby

from kvtwin.sim.vllm_v0.group import Group
from kvtwin.sim.vllm_v0.policy import VllmV0

Key = tuple[int, int]  # (row, branch)
Token = int  # equal where the tokens and all those before them are


class Log(list[tuple[str, int, int, int, int, int]]):
    """Decisions in order: (action, row, first, num, branch, source)."""

    def add(
        self, action: str, row: int, first: int, num: int, branch: int = 0, source: int = -1
    ) -> None:
        self.append((action, row, first, num, branch, source))


class GroupModel:
    """`tables` follows the log of `policy`; `device` and `host` hold tokens by slot.

    A transfer's content arrives when `arrive` says so; its source is pinned until then.
    """

    def __init__(self, policy: VllmV0, seen: Counter[str]) -> None:
        self.policy, self.size, self.seen = policy, policy.block_slots, seen
        self.log = policy.log = Log()
        self.tables: dict[Key, list[int]] = {}  # of the device
        self.host_tables: dict[Key, list[int]] = {}
        self.device: dict[int, Token] = {}
        self.host: dict[int, Token] = {}
        self.tokens: dict[Key, list[Token]] = {}  # committed
        self.pinned: list[tuple[Group, list[int], list[tuple[int, Token]], bool]] = []
        self.vacated: list[int] = []  # by the latest transfer that has ended
        self.numbers: dict[tuple[Token, object], Token] = {}
        self.found_by: dict[int, list[Token]] = {}  # block: what it holds, in the order of storing
        self.cached: list[int] = []  # of these, whom nobody holds, in the order of reuse

    def follow(self) -> None:
        actions, self.log[:] = list(self.log), []
        for key, of_key in groupby(actions, lambda decision: (*decision[:2], decision[4])):
            decisions = list(of_key)
            if key[0] == "free":
                # Of a table that is given up, the end is reused before the beginning.
                decisions.reverse()
            self.follow_all(decisions)
        self.tables = {key: table for key, table in self.tables.items() if table}

    def follow_all(self, decisions: list[tuple[str, int, int, int, int, int]]) -> None:
        for action, row, block, num, branch, source in decisions:
            assert num == 1
            self.seen[action] += 1
            if action.startswith("swap"):
                self.swap(action, row, block, source)
                continue
            if action.startswith("vacate"):
                self.vacated.append(block)
                continue
            table = self.tables.setdefault((row, branch), [])
            if action in ("grant", "extend"):
                self.take(block)
                table.append(block)
            elif action == "share":
                if block in self.cached:
                    self.cached.remove(block)
                    self.seen["hit"] += 1
                else:
                    assert self.holders(block), f"block {block} is shared, and nobody has it"
                table.append(block)
            elif action == "free":
                table.remove(block)
                self.leave(block)
            elif action == "copy":
                self.take(block)
                assert source not in self.found_by, "a block that can be found is copied"
                table[table.index(source)] = block
                assert self.holders(source), "the source of a copy is held by others"
                for offset in range(self.size):
                    if source * self.size + offset in self.device:
                        copied = self.device[source * self.size + offset]
                        self.device[block * self.size + offset] = copied

    def take(self, block: int) -> None:
        """Somebody gets a block, without what is in it: one that cannot be found, else the first in line."""
        assert not self.holders(block), f"INV-2: block {block} is granted, and held"
        if block in self.found_by:
            held = {block for table in self.tables.values() for block in table}
            held |= {source for _, sources, _, out in self.pinned if out for source in sources}
            free = set(range(self.policy.device.num_blocks)) - held - set(self.cached)
            assert not free, f"block {block} is evicted, {free} are free"
            assert self.cached[0] == block, f"block {block} is evicted before {self.cached}"
            del self.cached[0], self.found_by[block]
            self.seen["evict"] += 1
            self.clear(block)

    def holders(self, block: int) -> list[Key]:
        pins = [(group.row, -1) for group, blocks, _, out in self.pinned if out and block in blocks]
        return pins + [key for key, table in self.tables.items() if block in table]

    def leave(self, block: int) -> None:
        """One holder less. What the last one leaves can be found, or is gone."""
        if self.holders(block):
            return
        if block in self.found_by:
            self.cached.append(block)
        else:
            self.clear(block)

    def clear(self, block: int) -> None:
        for offset in range(self.size):
            self.device.pop(block * self.size + offset, None)

    def can_find(self, group: Group, committed: int) -> None:
        """What is full can be found from now on; of beams, what is full of the prompt."""
        if not self.policy.reuses_prefixes:
            return
        end = min(committed, group.num_prompt_tokens) if group.is_beam else committed
        for branch in group.branches:
            key = group.row, branch.branch
            for place in range(end // self.size):
                tokens = self.tokens[key][place * self.size : (place + 1) * self.size]
                self.found_by.setdefault(self.tables[key][place], tokens)

    def longest_hit(self, tokens: list[Token]) -> list[int]:
        """Blocks with the first of these tokens, at least one left over; of equal ones the first that was stored."""
        blocks, size = list[int](), self.size
        while len(blocks) * size + size < len(tokens):
            wanted = tokens[len(blocks) * size :][:size]
            equal = (block for block, held in self.found_by.items() if held == wanted)
            if (block := next(equal, None)) is None:
                break
            blocks.append(block)
        return blocks

    def swap(self, action: str, row: int, block: int, source: int) -> None:
        """Tables of the request that name `source` name `block` in the other pool."""
        is_out = action == "swap_out"
        if not is_out:
            self.take(block)
        origin, target = (
            (self.tables, self.host_tables) if is_out else (self.host_tables, self.tables)
        )
        holders = [key for key, table in origin.items() if key[0] == row and source in table]
        assert holders, f"{action} of block {source}, which request {row} does not have"
        for key in holders:
            target.setdefault(key, [-1] * len(self.tokens_table(key)))
            target[key][self.tokens_table(key).index(source)] = block
        self.moves.append((source, block))

    def tokens_table(self, key: Key) -> list[int]:
        return self.before_swap[key]

    def swap_group(self, group: Group, is_out: bool) -> None:
        """The content leaves its source, which stays pinned, and arrives later."""
        origin, memory = (self.tables, self.device) if is_out else (self.host_tables, self.host)
        keys = [(group.row, branch.branch) for branch in group.branches]
        self.before_swap = {key: list(origin[key]) for key in keys}
        self.moves: list[tuple[int, int]] = []
        (self.policy.swap_out if is_out else self.policy.swap_in)(group, 0)
        self.follow()
        for key in keys:
            del (self.tables if is_out else self.host_tables)[key]
        content = [
            (new * self.size + offset, memory[old * self.size + offset])
            for old, new in self.moves
            for offset in range(self.size)
            if old * self.size + offset in memory
        ]
        self.pinned.append((group, [old for old, _ in self.moves], content, is_out))

    def next_token(self, group: Group, branch: int, before: list[Token]) -> Token:
        """The token behind these: what the trace says of a prompt, and of the first answer; else like no other."""
        position, content = len(before), None
        is_prompt = position < group.num_prompt_tokens
        if is_prompt or not (branch or group.is_beam):
            known = [(stream, at) for stream, at, num in group.pieces for at in range(at, at + num)]
            content = known[position] if position < len(known) else None
        if content is None:
            content = (group.row, None if is_prompt else branch, position, "unknown")
        key = before[-1] if before else 0, content
        return self.numbers.setdefault(key, len(self.numbers) + 1)

    def first_tokens(self, group: Group, branch: int, num: int) -> list[Token]:
        tokens: list[Token] = []
        while len(tokens) < num:
            tokens.append(self.next_token(group, branch, tokens))
        return tokens

    def slot(self, key: Key, position: int) -> int:
        return self.tables[key][position // self.size] * self.size + position % self.size

    def write(self, group: Group, first: int) -> None:
        """Tokens from position `first` on are computed."""
        for branch in group.branches:
            key = group.row, branch.branch
            for position, token in list(enumerate(self.tokens[key]))[first:]:
                slot = self.slot(key, position)
                assert self.device.get(slot, token) == token, "a slot is written twice"
                assert slot // self.size not in self.found_by, "what can be found is written"
                self.device[slot] = token

    def read(self, key: Key) -> None:
        """INV-7, by what the slots hold."""
        for position, token in enumerate(self.tokens[key]):
            found = self.device.get(self.slot(key, position))
            assert found == token, f"INV-7: {key} reads {found} at {position}, not {token}"

    def arrive(self) -> Group | None:
        """The oldest transfer ends. Returns its group if that is on the device now."""
        group, blocks, content, is_out = self.pinned.pop(0)
        self.policy.arrive(self.policy.transfers[0])
        self.vacated = []
        self.follow()
        assert sorted(self.vacated) == sorted(blocks), "what was pinned is said to be free"
        (self.host if is_out else self.device).update(content)
        if is_out:
            for block in reversed(blocks):
                self.leave(block)
            return None
        for block in blocks:
            for offset in range(self.size):
                self.host.pop(block * self.size + offset, None)
        return group
