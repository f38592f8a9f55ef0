"""The interactive explorer, ``cst explore``. `curves` and `fields` compute; the rest makes the page."""
