"""``python -m otelctx``: the command line, for whichever interpreter is named."""

from otelctx.cli import main

if __name__ == "__main__":
    main()
