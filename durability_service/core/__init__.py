"""The core of the durability service: every call is given the time and returns values.

No socket, thread, clock, chance, disk or log in here.  `service.DurabilityCore.step` takes an event, returns effects.
"""
