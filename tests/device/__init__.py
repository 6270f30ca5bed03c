"""The device's contract: one module for each capability; the list of files is the list of what a device needs.

=================================== ========================================================================
device, several devices             test_streams (the functions), test_devices
memory, pinned memory               test_memory, test_pinned
storage                             test_storage
copies, views, dtypes, number format test_copies, test_dtypes, test_dl16
streams, events                     test_streams, test_events
random numbers                      test_rng
autocast, autograd                  test_autocast, test_autograd
compile                             test_compile
profiler                            test_profiler
serialization                       test_serialization
CPU fallback                        test_fallback
fork, import, processes             test_isolation, test_processes
failures, misuse                    test_failures, test_bad_input
everything at once                  test_stress
PyTorch's own suites                test_contract, test_upstream, test_autocast; operators and modules: tests/opinfo
=================================== ========================================================================

Skips say what the card has not.
"""
