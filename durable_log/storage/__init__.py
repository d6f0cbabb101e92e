"""What log drivers are built on."""
