"""Predictions from first principles: values in, values out, no input or output.

Nothing here may read what an engine reported, the byte budget aside, and no model name appears.
"""
