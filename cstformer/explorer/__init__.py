"""The live explorer, ``cst explore``: arithmetic in `reader`, `curves` and `fields`, the page around it in the rest."""
