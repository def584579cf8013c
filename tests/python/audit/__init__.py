"""What every aten op does to memory, found by running it, against what Retape assumes of it."""
