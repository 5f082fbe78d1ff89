"""A model of an SGLang-like engine: in virtual time for searches, over HTTP for everything else.

No figure that comes out of here is a measurement of real hardware.
"""
