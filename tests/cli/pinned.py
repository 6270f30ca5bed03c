"""The command line with a fixed code fingerprint, so that editing a file while the tests run starts no sweep anew.

Run as `python -m tests.cli.pinned ARGUMENTS`.
"""

from __future__ import annotations

import signal
import sys

from hf_adapters.sweep import fingerprint

PINNED = "pinned"


def pin() -> None:
    """Replace the hash of the project's files by a constant."""
    for name in ("code_hash", "adapters_hash"):
        setattr(fingerprint, name, lambda: PINNED)


if __name__ == "__main__":
    from hf_adapters.cli import main

    # A test run that was started in the background hands down an ignored SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pin()
    sys.exit(main())
