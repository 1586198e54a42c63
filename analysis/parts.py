"""The seven parts of the pool: order, colour and meaning, the same in all tables and figures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """One part of the pool: hex RGB `colour`, and what its slots are (`meaning`)."""

    name: str
    colour: str
    meaning: str


# Hues of Okabe and Ito (2008), "Color Universal Design", apart for all common kinds of colour
# blindness. Free is near white with an outline, so that what is coloured is what is taken.
PARTS = (
    Part("live", "#009E73", "computed KV of unfinished requests"),
    Part("reserved", "#56B4E9", "granted, will be written"),
    Part("internal", "#D55E00", "granted as asked, never to be written"),
    Part("rounding", "#E69F00", "granted beyond what was asked: powers of two, padding"),
    Part("cached", "#CC79A7", "kept for reuse, held by no request"),
    Part("external", "#4D4D4D", "free, but no use to the request that waits"),
    Part("free", "#FAFAFA", "free and usable"),
)
PART_NAMES = tuple(part.name for part in PARTS)
GRANTED_PARTS = ("live", "reserved", "internal", "rounding")
OUTLINE = "#8C8C8C"
