"""The hop from a worker to the publisher service.  Sans-IO: no socket, thread, clock or log in here.

Messages are in `messages`, the worker's half of the protocol in `worker`, the service's in `service`.
"""
