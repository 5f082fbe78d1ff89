"""`python -m runners.emulated FLAGS`: SGLang's flags, an emulated engine."""

import sys

from runners.emulated.command import main

if __name__ == "__main__":
    sys.exit(main())
