"""Memories that predict, and write what they got wrong."""
