"""What torch's own ways need for the six blocks at full size, measured by another program than the bench:
an allocator that counts, and matrix products that allocate and do nothing."""

from __future__ import annotations

from collections.abc import Iterator

COLUMNS = ("fp32_cast", "up_proj", "silu_up", "swiglu", "rms_norm", "fp32_softmax")

# By dtype and number of layers: peak MiB / held MiB / per cent more FLOPs than plain.
PEERS = {
    ("float32", 1): """
        plain                   | 208/32/0     | 544/160/0    | 672/288/0    | 1088/544/0   | 272/96/0     | 240/64/0
        torch checkpoint        | 208/32/0     | 544/32/17    | 672/32/17    | 1088/32/22   | 256/32/0     | 208/32/0
        torch checkpoint, inner | 208/32/0     | 544/160/0    | 640/160/17   | 1088/160/22  | 256/64/0     | 240/64/0
        torch reentrant         | 208/32/33    | 576/32/33    | 704/32/33    | 1152/32/33   | 320/32/33    | 256/32/33
        torch reentrant, inner  | 208/32/0     | 608/160/17   | 768/160/17   | 1216/160/22  | 352/64/0     | 240/64/0
        selective               | 208/32/0     | 544/160/0    | 672/160/0    | 1088/288/0   | 288/64/0     | 208/32/0
        selective, inner        | 208/32/0     | 608/160/0    | 672/288/0    | 1088/416/0   | 256/64/0     | 240/64/0
    """,
    ("float32", 8): """
        plain                   | 544/256/0    | 2560/1280/0  | 3584/2304/0  | 6240/4352/0  | 1056/768/0   | 576/288/0
        torch checkpoint        | 544/256/0    | 2336/256/17  | 2464/256/17  | 3776/256/22  | 592/256/0    | 544/256/0
        torch checkpoint, inner | 544/256/0    | 2560/1280/0  | 2656/1280/17 | 3776/1280/22 | 816/512/0    | 800/512/0
        torch reentrant         | 544/256/33   | 2368/256/33  | 2496/256/33  | 3840/256/33  | 656/256/33   | 592/256/33
        torch reentrant, inner  | 544/256/0    | 2624/1280/17 | 2784/1280/17 | 3904/1280/22 | 912/512/0    | 800/512/0
        selective               | 544/256/0    | 2560/1280/0  | 2688/1280/0  | 4448/2304/0  | 848/512/0    | 544/256/0
        selective, inner        | 544/256/0    | 2624/1280/0  | 3584/2304/0  | 5344/3328/0  | 816/512/0    | 800/512/0
    """,
    ("bfloat16", 1): """
        plain                   | 160/48/0     | 272/80/0     | 336/144/0    | 544/272/0    | 256/96/0     | 152/64/0
        torch checkpoint        | 160/16/0     | 272/16/17    | 336/16/17    | 544/16/22    | 256/16/0     | 144/16/0
        torch checkpoint, inner | 160/48/0     | 272/80/0     | 320/80/17    | 544/80/22    | 256/32/0     | 144/32/0
        torch reentrant         | 192/16/33    | 288/16/33    | 352/16/33    | 576/16/33    | 272/16/33    | 176/16/33
        torch reentrant, inner  | 160/48/0     | 304/80/17    | 384/80/17    | 608/80/22    | 288/32/0     | 160/32/0
        selective               | 192/48/0     | 272/80/0     | 336/80/0     | 544/144/0    | 272/32/0     | 144/16/0
        selective, inner        | 160/48/0     | 304/80/0     | 336/144/0    | 544/208/0    | 256/32/0     | 144/32/0
    """,
    ("bfloat16", 8): """
        plain                   | 496/272/0    | 1280/640/0   | 1792/1152/0  | 3120/2176/0  | 872/656/0    | 544/400/0
        torch checkpoint        | 384/128/0    | 1168/128/17  | 1232/128/17  | 1888/128/22  | 424/128/0    | 312/128/0
        torch checkpoint, inner | 496/272/0    | 1280/640/0   | 1328/640/17  | 1888/640/22  | 536/256/0    | 424/256/0
        torch reentrant         | 416/128/33   | 1184/128/33  | 1248/128/33  | 1920/128/33  | 440/128/33   | 344/128/33
        torch reentrant, inner  | 608/384/0    | 1312/640/17  | 1392/640/17  | 1952/640/22  | 568/256/0    | 440/256/0
        selective               | 640/384/0    | 1280/640/0   | 1344/640/0   | 2224/1152/0  | 552/256/0    | 320/128/0
        selective, inner        | 496/272/0    | 1312/640/0   | 1792/1152/0  | 2672/1664/0  | 536/256/0    | 424/256/0
    """,
}


def cells() -> Iterator[tuple[str, int, str, str, tuple[int, ...]]]:
    """dtype, layers, block, method, and the three numbers."""
    for (dtype, layers), table in PEERS.items():
        for line in table.strip().splitlines():
            method, *found = (cell.strip() for cell in line.split("|"))
            for block, cell in zip(COLUMNS, found, strict=True):
                yield dtype, layers, block, method, tuple(map(int, cell.split("/")))
