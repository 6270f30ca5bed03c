"""One file, one adapter: a rewrite that makes one kind of operation legal on the device.

The catalogue (:func:`hf_adapters.catalogue`) is this folder. Files that start with an underscore hold what several
adapters share.
"""
