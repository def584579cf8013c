"""`python -m retape`: the same as the `retape` command."""

import sys

from retape.cli import main

if __name__ == "__main__":
    sys.exit(main())
