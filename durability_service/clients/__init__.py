"""What programs use without running a service: questions, history, a resync source."""
