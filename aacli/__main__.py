"""``python -m aacli`` is ``aac``."""

from aacli.app import main

if __name__ == "__main__":
    main()
