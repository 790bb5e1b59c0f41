"""``aac report``: what runs were like, on one page, as pictures and at the terminal."""
