"""The coding agents: from a failing model to a proven, reviewed adapter.

`graph.py` is the workflow, `protocol.py` what a drafter is, `screening/` and `sandbox/` what stands between a draft and
this machine, `acceptance/` what stands between a draft and the catalogue, `review.py` what people decide.
Nothing below this package imports it.
"""
