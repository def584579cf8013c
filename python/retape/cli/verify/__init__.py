"""`retape verify`: cases, a row for each, reports of them."""
