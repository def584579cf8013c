"""How libclang has to read a source: the compiler's flags, and headers that are parsed once."""

import json
import pathlib
import re
import shlex
import subprocess

from clang.cindex import Index, TranslationUnit

NOT_FOR_CLANG = {"-Winvalid-pch", "-Werror"}


def compile_flags(commands: pathlib.Path, source: pathlib.Path) -> list[str]:
    """From compile_commands.json, without the source itself, its object and GCC's precompiled header."""
    for entry in json.loads(commands.read_text()):
        if pathlib.Path(entry["file"]) == source:
            break
    else:
        raise KeyError(f"[mutants] {source} is not in {commands}. Fix: configure the build first.")
    words = iter(shlex.split(entry["command"]))
    flags = []
    for word in words:
        if word in {"-o", "-c", "-include"}:
            next(words)
        elif word.startswith("-") and word not in NOT_FOR_CLANG:
            flags.append(word)
            if word in {"-isystem", "-I"}:
                flags.append(next(words))
    return [*flags, *builtin_headers(), "-w"]


def builtin_headers() -> list[str]:
    """libclang's wheel has none of its own (stddef.h and the like); GCC's do."""
    found = subprocess.run(
        ["g++", "-print-file-name=include"], capture_output=True, text=True, check=True
    )
    return ["-isystem", found.stdout.strip()]


def precompiled(sources: list[pathlib.Path], flags: list[str], folder: pathlib.Path) -> list[str]:
    """Flags that include all that the sources include in <>, parsed once: most of the time is there."""
    includes = {
        line
        for source in sources
        for line in re.findall(r"^#include <(?!retape/)[^>]+>$", source.read_text(), re.MULTILINE)
    }
    text = "\n".join(sorted(includes)) + "\n"
    header, saved = folder / "headers.h", folder / "headers.pch"
    if not saved.exists() or header.read_text() != text:
        header.write_text(text)
        unit = Index.create().parse(
            str(header), [*flags, "-x", "c++-header"],
            options=TranslationUnit.PARSE_INCOMPLETE | TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
        )  # fmt: skip
        unit.save(str(saved))
    return ["-include-pch", str(saved)]
