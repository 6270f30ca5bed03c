"""`python -m benchmarks`: every benchmark, with its defaults."""

from __future__ import annotations

import sys

from benchmarks import bert_forward, compile_time, validator

if __name__ == "__main__":
    sys.exit(max([bert_forward.main(sys.argv[1:]), compile_time.main([]), validator.main([])]))
