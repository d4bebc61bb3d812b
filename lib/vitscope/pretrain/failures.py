"""Why a training cannot go on, as one error whose message is for whoever started it."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says at which step, why, and what is left."""
