"""Matrix products: variants, their bodies (`*_body.py`), and what these share."""
