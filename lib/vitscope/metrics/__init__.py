"""Measures of what a state holds: tensors in, tensors out; nothing here knows a model or a dataset."""
