"""A million hops with everything that goes wrong in between: ``make soak``, or ``python -m tests.soak``.

64 threads serve 200 sessions through 4 pools that are shut down and made anew, with tasks that raise, are cancelled,
are waited for no longer, and leave in their workers what they should not. Each task knows whose it is and looks when it
arrives. See `tests.soak.__main__` for what is checked, and for what fails.
"""
