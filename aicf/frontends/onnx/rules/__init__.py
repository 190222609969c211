"""The rules by family; `..table` finds every file here."""
