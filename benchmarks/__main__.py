"""`python -m benchmarks`: every benchmark, with its defaults."""

from __future__ import annotations

import sys

from benchmarks import bert_forward, validator

if __name__ == "__main__":
    sys.exit(bert_forward.main(sys.argv[1:]) or validator.main([]))
