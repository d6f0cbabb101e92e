"""What every package needs at run time and no package should write again."""
