"""Measures Heliograph against the raw transports, on the machine it runs on.

``./run bench``, or ``python -m bench [scenario ...]`` in the checkout.  Publisher and subscribers are separate
processes; what is compared takes turns within one run, so the ratios hold on a busy machine, where absolute figures do
not.  Nothing here asserts: a target that is not met is printed as such.  Part of the checkout, not installed.
"""
