"""`retape gradcheck`: starts ranks, runs a check on them, and shows what it found."""
