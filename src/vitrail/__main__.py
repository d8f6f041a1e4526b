"""``python -m vitrail`` and ``torchrun -m vitrail`` do what the command ``vitrail`` does."""

import sys

from vitrail.cli import main

if __name__ == "__main__":
    sys.exit(main())
