"""Sockets: addresses, socket files, messages in a stream of bytes, and waking a thread that polls."""
