"""Events of a log in files of their own, and back."""
