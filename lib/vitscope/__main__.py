"""`python -m vitscope`: the same as the `vitscope` command."""

from vitscope.cli import app

if __name__ == "__main__":
    app(prog_name="vitscope")
