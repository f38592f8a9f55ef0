"""The interactive explorer, ``cst explore``. `reader`, `curves` and `fields` compute; the rest makes the page."""
