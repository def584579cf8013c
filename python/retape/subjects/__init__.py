"""Models to try Retape on with nothing to write and nothing to download."""
