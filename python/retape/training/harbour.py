"""Writes harbour.txt, the text that `retape train` learns from: a year in a harbour, day by day.

    python -m retape.training.harbour > python/retape/training/harbour.txt

Sentences are put together from the lists below. The same lists give the same text everywhere.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from retape.training.data import mix

PATH = Path(__file__).with_name("harbour.txt")

MONTHS = {
    "January": ("cold", "ice on the ropes", "a grey sky"),
    "February": ("raw", "sleet over the roofs", "a low sky"),
    "March": ("windy", "rain before noon", "torn clouds"),
    "April": ("fresh", "showers and sun by turns", "quick clouds"),
    "May": ("mild", "mist until breakfast", "a clean sky"),
    "June": ("bright", "a long light evening", "a high sky"),
    "July": ("warm", "thunder far out", "a white sky"),
    "August": ("hot", "tar soft on the planks", "a still sky"),
    "September": ("golden", "dew on the nets", "a pale sky"),
    "October": ("blowing", "leaves in the basin", "a racing sky"),
    "November": ("wet", "fog from the marsh", "no sky at all"),
    "December": ("dark", "frost on the bollards", "a sky like slate"),
}

WORDS = {
    "boat": "the Heron|the Patience|the Two Sisters|the Old Quarrel|the Marigold|the Northern Light|"
    "the Plain Bread|the Wren|the Good Intent|the Blue Kettle",
    "name": "Anna|Tobias|old Marten|Ruth|the pilot|Widow Lind|Jonas|the harbour master|Little Per|"
    "the schoolmaster|Captain Brandt|the baker's daughter",
    "from": "the islands|the north|Saltholm|the river towns|the far side of the bay|Grey Point|"
    "the lime works",
    "bulk": "barley|salted herring|coal|lamp oil|onions|flour|dried peas",
    "cargo": "barley|roof tiles|salted herring|coal|apples in barrels|timber|a church bell|lamp oil|"
    "wool|window glass|onions|letters and newspapers|a piano in a crate|rope and canvas",
    "wind": "north|north-east|east|south-east|south|south-west|west|north-west",
    "force": "light|steady|rising|sharp|falling|fitful",
    "count": "two|three|four|five|six|seven|nine|eleven|twelve|twenty",
    "thing": "a lantern|an anchor of the old kind|a letter without a name|a pair of good boots|"
    "a bottle with a ship in it|a brass button|an oar|a cradle|a chart of another coast",
    "place": "the mole|the fish market|the inn|the rope walk|the chapel|the slip|the customs house|"
    "the lighthouse|the ferry stairs|the boat yard",
    "work": "mended nets|painted a hull|caulked seams|split wood|counted barrels|carried stones|"
    "spliced a cable|cleaned the lamp|wrote up the ledger|smoked eels",
    "animal": "a seal|the grey cat|two swans|a great many gulls|a dog that belongs to nobody|"
    "a porpoise|a heron",
    "bird": "swallows|geese|terns|cranes|starlings",
}

OPENINGS = (
    "A {weather} day, {sky}, wind {wind} and {force}.",
    "Wind {wind}, {force}, with {detail}.",
    "{Weather} since the morning bell; {sky} and the water {sea}.",
    "The glass {glass} all night, and the day came {weather} with {detail}.",
    "{Detail}. The wind went from {wind} to {wind} and stayed {force}.",
)
EVENTS = (
    "{Boat} came in from {from} with {cargo} and lay at {place} until the tide turned.",
    "{Boat} left for {from} with {count} hands and {cargo}.",
    "{Name} and {name} {work} by {place}, and said little.",
    "{Name} {work} from first light until the lamps were lit.",
    "At {place} {name} found {thing}; nobody has asked for it yet.",
    "{Count} boats went out; most were back by dusk and the others before the moon was up.",
    "{Name} asked what {bulk} costs in Saltholm, and laughed at the answer.",
    "{Name} saw {animal} off {place}, for the first time in {count} years.",
    "{Boat} lost {thing} overboard near the bar, and {name} will not hear the end of it.",
    "We took {count} soundings along {place}: the channel has moved a little to the {wind}.",
    "The mail came with {boat}: {count} letters, {count} of them for {name}.",
    "{Name} has sold {boat} to {name} for less than she is worth, and both are content.",
    "A stranger from {from} slept at {place} and paid with {thing}.",
    "{Count} barrels of {bulk} were short, then found behind {place}, then counted again and short.",
    "{Boat} touched the ground off {place} and came free by herself when the water rose.",
    "The children sailed {thing} across the basin and called it {boat}.",
    "{Name} taught {name} the knot that holds in any weather, which is harder to untie than to make.",
    "The {bird} came over this evening, {count} flocks of them, going {wind}.",
    "Fog at noon. {Boat} rang her bell and {name} answered from {place} until she was in.",
    "{Name} says that {boat} will need a new mast before winter; {name} says she will not.",
    "{Boat} and {boat} came over the bar side by side, and each says that she was first.",
    "There was music at {place}, and {name} danced, who never does.",
    "{Name} brought {cargo} up to {place} by hand, {count} loads, because the horse is lame.",
    "The pump at {place} is broken, so everyone went to {place} for water and stayed to talk.",
)
TALK = (
    '"{Saying}," said {name}, and {name} nodded.',
    '{Name} asked, "Is {boat} back?" and {name} said, "Not before the tide."',
    '"What is in the crate?" asked {name}. "{Cargo}," said {name}, "or so it says on the lid."',
    '{Name} stood at {place} and said to nobody, "{Saying}."',
    '"{Saying}." That is what {name} says whenever the wind is {wind}.',
)
SAYINGS = (
    "a rope remembers every knot",
    "who is in a hurry should have left earlier",
    "the sea gives back what it does not need",
    "a dry boat is a sad boat",
    "count the fish when they are in the barrel",
    "the tide does not read the almanac",
    "a good anchor is the one you brought",
    "write it down or do it twice",
    "no wind is bad for everyone",
    "what you carry up you need not carry down",
    "it is never the big wave",
    "the harbour is older than the quarrel",
)
CLOSINGS = (
    "High water at {count} past the hour. All well.",
    "The lamp was lit at dusk and burned clean.",
    "Nothing more to write.",
    "Dues taken: {count} marks and {count} pence.",
    "{Count} boats in the basin tonight.",
    "Quiet after dark.",
    "All boats in but {boat}.",
    "So ends this day.",
)


class Writer:
    """Draws words one after another; within a sentence no word twice."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn = 0

    def below(self, end: int) -> int:
        self._drawn += 1
        return mix(mix(self._seed) + self._drawn) % end

    def one_of(self, options: tuple[str, ...] | list[str]) -> str:
        return options[self.below(len(options))]

    def sentence(self, pattern: str, month: str) -> str:
        weather, detail, sky = MONTHS[month]
        fixed = {
            "weather": weather,
            "detail": detail,
            "sky": sky,
            "sea": self.one_of(["flat", "choppy", "heavy", "green", "like lead", "restless"]),
            "glass": self.one_of(["fell", "rose", "stood still"]),
            "saying": self.one_of(SAYINGS),
        }
        used: set[str] = set()

        def fill(slot: re.Match[str]) -> str:
            kind = slot[1].lower()
            if kind in fixed:
                word = fixed[kind]
            else:
                word = self.one_of([w for w in WORDS[kind].split("|") if w not in used])
                used.add(word)
            return word[0].upper() + word[1:] if slot[1][0].isupper() else word

        return re.sub(r"\{(\w+)\}", fill, pattern)

    def day(self, month: str, number: int) -> str:
        patterns = [self.one_of(OPENINGS)]
        events = list(EVENTS)
        for _ in range(2 + self.below(3)):
            patterns.append(events.pop(self.below(len(events))))
        if self.below(3) == 0:
            patterns.insert(2, self.one_of(TALK))
        if self.below(2) == 0:
            patterns.append(self.one_of(CLOSINGS))
        body = " ".join(self.sentence(pattern, month) for pattern in patterns)
        return f"{month} {number}.\n{wrap(body)}\n"


def wrap(text: str, width: int = 78) -> str:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "\n".join(lines)


def write(seed: int = 1) -> str:
    writer = Writer(seed)
    days = []
    for month in MONTHS:
        number = 1 + writer.below(2)
        while number <= 28:
            days.append(writer.day(month, number))
            number += 2 + writer.below(2)
    return "THE HARBOUR BOOK\n\n" + "\n".join(days)


if __name__ == "__main__":
    sys.stdout.write(write())
