"""What block tables and slots hold when the decision log of a policy with groups is carried out."""

from collections import Counter

from kvtwin.sim.vllm_v0.group import Group
from kvtwin.sim.vllm_v0.policy import VllmV0

Key = tuple[int, int]  # (row, branch)
Token = tuple[int, int, int]  # (row, position, number of the write)


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
        self.num_writes = 0
        self.vacated: list[int] = []  # by the latest transfer that has ended

    def follow(self) -> None:
        actions, self.log[:] = list(self.log), []
        for action, row, block, num, branch, source in actions:
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
                assert not self.holders(block), f"INV-2: block {block} is granted, and held"
                table.append(block)
            elif action == "share":
                assert self.holders(block), f"block {block} is shared, and nobody has it"
                table.append(block)
            elif action == "free":
                table.remove(block)
                self.clear(block)
            elif action == "copy":
                assert not self.holders(block)
                table[table.index(source)] = block
                assert self.holders(source), "the source of a copy is held by others"
                for offset in range(self.size):
                    if source * self.size + offset in self.device:
                        copied = self.device[source * self.size + offset]
                        self.device[block * self.size + offset] = copied
        self.tables = {key: table for key, table in self.tables.items() if table}

    def holders(self, block: int) -> list[Key]:
        pins = [(group.row, -1) for group, blocks, _, out in self.pinned if out and block in blocks]
        return pins + [key for key, table in self.tables.items() if block in table]

    def clear(self, block: int) -> None:
        if not self.holders(block):
            for offset in range(self.size):
                self.device.pop(block * self.size + offset, None)

    def swap(self, action: str, row: int, block: int, source: int) -> None:
        """Tables of the request that name `source` name `block` in the other pool."""
        is_out = action == "swap_out"
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

    def write(self, row: int, position: int) -> Token:
        self.num_writes += 1
        return row, position, self.num_writes

    def slot(self, key: Key, position: int) -> int:
        return self.tables[key][position // self.size] * self.size + position % self.size

    def store(self, group: Group, first: int) -> None:
        for branch in group.branches:
            key = group.row, branch.branch
            for position, token in list(enumerate(self.tokens[key]))[first:]:
                slot = self.slot(key, position)
                assert self.device.get(slot, token) == token, "a slot is written twice"
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
        source, target = (self.device, self.host) if is_out else (self.host, self.device)
        target.update(content)
        for block in blocks:
            for offset in range(self.size):
                source.pop(block * self.size + offset, None)
        return None if is_out else group
