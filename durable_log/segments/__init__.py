"""Sealed segments: Parquet files, made, read and compacted."""
