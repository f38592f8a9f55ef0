"""``python -m cstformer.cli`` is ``cst``."""

import sys

from cstformer.cli import main

if __name__ == "__main__":
    sys.exit(main())
