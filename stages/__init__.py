"""The three stages, and the rooms that they share."""

import os

# Read when torch loads OpenMP. Its threads spin for milliseconds while they wait for each other; as
# soon as another program takes one of their cores, a small model is a hundred times slower than
# with threads that soon sleep. On an idle machine it makes no difference.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
