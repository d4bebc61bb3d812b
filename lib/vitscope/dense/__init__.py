"""Dense evaluation of patch tokens."""
