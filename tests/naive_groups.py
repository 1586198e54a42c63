"""An engine of groups that looks at every token in every step.

It knows what every slot of both pools holds, checks each read against that, and counts every part of the pools from
it. `kvtwin.sim.vllm_v0` must write the same files. Of that it uses the block manager, and the draw of beams.
"""

from collections.abc import Sequence as Seq

from naive_group_pools import GroupPools

from kvtwin.sim.engine_contract import Work
from kvtwin.sim.plan import Plan
from kvtwin.sim.vllm_v0.beams import parents
from kvtwin.sim.vllm_v0.group import Group


class NaiveGroups(GroupPools):
    """Same interface as `kvtwin.sim.vllm_v0.engine.GroupEngine`."""

    def plan(self, now_ns: int) -> Plan | None:
        policy = self.policy
        num_waiting = self.queue.advance(now_ns)
        if not (num_waiting or self.running or self.swapped or policy.transfers):
            return None
        self.pass_time(now_ns)
        if self._log is not None:
            self._log.step = self.totals["num_steps"]
        self.external, self.prompts, self.copies = 0, [], []
        refused = preempted = False
        while policy.transfers and policy.transfers[0].end_ns <= now_ns:
            self.arrive(now_ns)
        while True:
            refused = self.admit()
            if self.prompts:
                break
            had_to = bool(self.running) and self.append_all()
            preempted |= had_to
            if not had_to:
                refused |= self.swap_in()
            if self.running:
                break
            assert policy.transfers, f"INV-5: nothing runs at {now_ns} ns, {num_waiting} wait"
            self.arrive(policy.transfers[0].end_ns)
        self.waited_ns += self.at_ns - now_ns
        held_back = min(policy.device.num_free_blocks, policy.watermark_blocks)
        self.external = held_back * self.size if refused else 0
        self.waits_for = self.why_nobody_else(refused or preempted)
        self.most_running = max(self.most_running, len(self.running) + len(self.prompts))
        self.note_free()
        return self.describe(now_ns)

    def why_nobody_else(self, no_memory: bool) -> str:
        group = self.queue.head()
        if group is None or self.policy.on_host:
            return "memory" if self.policy.on_host else ""
        if no_memory or self.policy.transfers:
            return "memory"
        num_seqs = sum(len(g.branches) for g in [*self.running, *self.prompts, group])
        return "max_num_seqs" if num_seqs > self.limits.max_num_seqs else "max_num_batched_tokens"

    def admit(self) -> bool:
        """True if the head was refused for memory."""
        policy, budget = self.policy, self.limits.max_num_batched_tokens
        if self.swapped or policy.transfers:
            return False
        while (group := self.queue.head()) is not None:
            again = group in self.again
            num_seqs = sum(len(g.branches) for g in [*self.running, *self.prompts, group])
            blocks = self.blocks_of([group]) if again else set()
            num_hit_tokens = 0 if again else self.num_hit_tokens(group)
            num_tokens = len(self.distinct_positions(group)) if again else group.known
            num_tokens -= num_hit_tokens
            needed = len(blocks) + len(group.branches) if again else -(-group.known // self.size)
            if (self.prompts and num_tokens > budget) or num_seqs > self.limits.max_num_seqs:
                return False
            if self.room() - needed < policy.watermark_blocks:
                return True
            found = [] if again else policy.find(group)
            assert len(found) * self.size == num_hit_tokens, f"{found}, not {num_hit_tokens} tokens"
            self.queue.pop(self.at_ns)
            budget -= num_tokens
            if group in self.lost:
                self.recomputed_tokens += self.lost.pop(group) - num_hit_tokens
            else:
                self.requests.num_hit_tokens[group.row] = num_hit_tokens
            self.hits[group] = num_hit_tokens
            self.admit_one(group, found)
            self.note_admission()
        return False

    def admit_one(self, group: Group, found: list[int]) -> None:
        def get_blocks() -> None:
            if group in self.again:
                self.policy.restore(group)
            else:
                self.policy.allocate(group, found)
            self.prompts.append(group)

        self.take(get_blocks, len(found) * self.size)

    def note_admission(self) -> None:
        if self.queue.all_admitted and self.queue.head() is None and not self.policy.on_host:
            self.recorder.end_loaded_window(tuple(self.totals.values()))
            self.loaded_tables = list(self.tables)

    def append_all(self) -> bool:
        """Whether somebody was preempted."""
        done: set[Group] = set()
        preempted = False
        while waiting := [group for group in self.running if group not in done]:
            group, free = waiting[0], self.room()
            coming = len(self.leaving() - self.blocks_of(self.on_device()))
            latest = self.arrival(self.running[-1])
            if free >= len(group.branches):
                self.append(group)
                done.add(group)
            elif coming and free + coming >= len(group.branches):
                while self.room() < len(group.branches):
                    self.arrive(self.policy.transfers[0].end_ns)
            elif any(not t.is_out and self.arrival(t) > latest for t in self.policy.transfers):
                self.arrive(self.policy.transfers[0].end_ns)
            else:
                preempted = True
                assert self.running[-1] not in done, "a group that has room already is preempted"
                self.preempt(self.running[-1])
        return preempted

    def append(self, group: Group) -> None:
        before = {branch: list(branch.blocks) for branch in group.branches}
        committed = self.committed(group)
        self.take(lambda: self.policy.append(group, committed))
        for branch, old in before.items():
            pairs = zip(old, branch.blocks, strict=False)
            replaced = [pair for pair in pairs if len(set(pair)) > 1]
            self.copies += [(*pair, committed % self.size) for pair in replaced]

    def preempt(self, group: Group) -> None:
        policy, mode = self.policy, self.policy.settings.preemption_mode
        self.running.remove(group)
        self.requests.num_preemptions[group.row] += 1
        self.totals["num_preemptions"] += 1
        group.known = self.committed(group) + 1
        several = len(group.branches) > 1
        blocks = self.blocks_of([group])
        group.num_blocks = len(blocks)
        wants_swap = mode == "swap" or (mode == "auto" and several)
        if wants_swap and len(blocks) <= policy.host.num_free_blocks:
            tables = {branch: list(branch.blocks) for branch in group.branches}
            policy.swap_out(group, self.transfer_end(len(blocks)))
            self.num_out += 1
            self.remember_moves(group, tables)
        else:
            self.num_host_full += wants_swap
            self.lost[group] = len(self.filled(blocks, self.device))
            self.release(lambda: policy.forget(group))
            self.queue.push_preempted(group)
            if several:
                self.again.add(group)
            else:
                self.again.discard(group)
                group.branches[0].blocks = []
                self.tokens[group.branches[0]] = []
        self.note_free()

    def swap_in(self) -> bool:
        """True if the head was refused for memory."""
        policy = self.policy
        while self.swapped:
            group = self.swapped[0]
            coming = [t.group for t in policy.transfers if not t.is_out]
            num_seqs = sum(len(g.branches) for g in [*self.running, *coming, group])
            came = self.arrival(group)
            earlier_leaves = any(t.is_out and self.arrival(t) < came for t in policy.transfers)
            if num_seqs > self.limits.max_num_seqs or earlier_leaves:
                return False
            num_blocks = len(self.blocks_of([group]))
            needed = num_blocks + len(group.branches) + policy.watermark_blocks
            if needed > self.room():
                return True
            self.swapped.remove(group)
            tables = {branch: list(branch.blocks) for branch in group.branches}
            end_ns = self.transfer_end(num_blocks)
            self.take(lambda group=group, end_ns=end_ns: policy.swap_in(group, end_ns))
            self.remember_moves(group, tables)
            self.note_admission()
        return False

    def distinct_positions(self, group: Group) -> set[tuple[int, int]]:
        return {
            (branch.blocks[position // self.size], position)
            for branch in group.branches
            for position in range(self.committed(group))
        }

    def work(self, plan: Plan) -> list[Work]:
        if not self.prompts:
            branches = [branch for group in self.running for branch in group.branches]
            return [Work(branch, len(self.tokens[branch]), 1) for branch in branches]
        work = []
        for group in self.prompts:
            if group not in self.again:
                first = self.hits[group]
                work.append(Work(group.branches[0], first, group.known - first))
                continue
            seen: set[int] = set()
            for branch in group.branches:
                num = self.committed(group)
                new = [p for p in range(num) if branch.blocks[p // self.size] not in seen]
                if new:
                    work.append(Work(branch, new[0], num - new[0]))
                seen.update(branch.blocks)
        return work

    def describe(self, now_ns: int) -> Plan:
        plan = Plan(now_ns, 0, 0)
        plan.ready_ns = self.at_ns
        for _, first, num in self.work(plan):
            if self.prompts:
                plan.num_prefill_tokens += num
                plan.prefill_context_slots += first + num
                plan.prefill_pairs += sum(range(first + 1, first + num + 1))
            else:
                plan.num_decode_tokens += 1
                plan.decode_context_slots += first + 1
        plan.moved_slots = len(self.copies) * self.size
        return plan

    def commit(self, plan: Plan, ends_ns: Seq[int]) -> None:
        (end_ns,) = ends_ns
        self.pass_time(end_ns)
        for name in ("num_prefill_tokens", "num_decode_tokens"):
            self.totals[name] += getattr(plan, name)
        self.totals["num_steps"] += 1
        self.moved_slots += plan.moved_slots
        if end_ns >= self.recorder.row_end_ns:
            self.recorder.close_row(tuple(self.totals.values()), self.sample(end_ns))
        for source, target, num in self.copies:
            for offset in range(num):
                self.device[target * self.size + offset] = self.device[source * self.size + offset]
        groups, gives_token = list(self.running), not self.prompts
        for group in self.prompts:
            self.running.append(group)
            self.running.sort(key=self.arrival)
            if group in self.again:
                for branch in group.branches:
                    for position, token in enumerate(self.tokens[branch]):
                        self.device[self.slot(branch, position)] = token
                self.again.remove(group)
                self.policy.store(group, self.committed(group))
                continue
            for branch in group.branches:
                self.tokens[branch] = self.first_tokens(group, branch, group.known)
                for position, token in enumerate(self.tokens[branch]):
                    slot = self.slot(branch, position)
                    assert position >= self.hits[group] or slot in self.device, f"INV-7: {slot}"
                    held = self.device.setdefault(slot, token)
                    assert held == token, f"INV-7: {branch.row} found {held}, not {token}"
            self.policy.store(group, group.known)
            self.take_tokens(group, end_ns)
        self.prompts = []
        if gives_token:
            for group in groups:
                for branch in group.branches:
                    self.read(branch)
                for branch in group.branches:
                    token = self.token(group, branch, self.tokens[branch])
                    slot = self.slot(branch, len(self.tokens[branch]))
                    assert slot not in self.device, f"{token} overwrites {self.device[slot]}"
                    self.device[slot] = token
                    self.tokens[branch].append(token)
            for group in groups:
                self.policy.store(group, self.committed(group))
            for group in groups:
                self.take_tokens(group, end_ns)
            for group in groups:
                if group.is_beam and group.branches:
                    self.choose_beams(group)

    def take_tokens(self, group: Group, end_ns: int) -> None:
        for branch in list(group.branches):
            if branch in self.last_token_ns:
                self.recorder.gaps.add((self.last_token_ns[branch], end_ns), 1)
            elif self.requests.first_token_ns[group.row] < 0:
                self.requests.first_token_ns[group.row] = end_ns
            self.last_token_ns[branch] = end_ns
            if len(self.tokens[branch]) == branch.end:
                self.release(lambda branch=branch: self.policy.free(group, branch))
                group.branches.remove(branch)
        if not group.branches:
            self.running.remove(group)
            self.requests.finished_ns[group.row] = end_ns

    def choose_beams(self, group: Group) -> None:
        num_generated = self.committed(group) + 1 - group.num_prompt_tokens
        seed, beams = self.policy.settings.seed, group.branches
        for number, origin in enumerate(parents(seed, group.row, num_generated, len(beams))):
            beam, parent = beams[number], beams[origin]
            if beam is not parent:
                self.release(lambda beam=beam, parent=parent: self.policy.fork(beam, parent))
                self.tokens[beam] = list(self.tokens[parent])
