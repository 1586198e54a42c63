"""A planted fault: an exact piece of a kernel's source and what stands there instead."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """`file` is relative to gpu/. `old` must occur in it exactly once.

    `why_equivalent`: proof, in words, that no caller can tell the mutant from the original.
    """

    name: str
    file: str
    old: str
    new: str
    why_equivalent: str = ""

    def apply(self, gpu_folder: Path) -> None:
        """Change the file below `gpu_folder`; raises ValueError if `old` is not there once."""
        path = gpu_folder / self.file
        source = path.read_text(encoding="utf-8")
        num_found = source.count(self.old)
        if num_found != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: {self.old!r} occurs {num_found} times in {self.file}")
        path.write_text(source.replace(self.old, self.new), encoding="utf-8")
