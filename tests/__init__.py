"""Tests; they mirror stages/ and aacli/."""
